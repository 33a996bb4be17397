"""Chat templates that refuse, loop or attack: refused in bounded time and memory, nothing run."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.flow.open_leader import POOL
from tests.flow.refusals import World
from tests.flow.refusing_leaders import open_world

pytestmark = pytest.mark.usefixtures("told_where")

CHAT = [
    {"role": "system", "content": "the word"},
    {"role": "user", "content": "was"},
    {"role": "assistant", "content": "with all"},
]
CPU_S = 1.0
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
# name -> (template, what is said)
TEMPLATES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "none": (None, ("no chat template", "rows with prompt and completion")),
    "no-syntax": ("{% for %}", ("this model's chat template refuses the messages",)),
    "no-system": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}",
        ("no system here", "check the order of the roles"),
    ),
    "silent": ("x", ("does not let the assistant's turns be told apart",)),
    "endless": (LOOP, ("tokenizing took more than 1 s of processor time", "is endless")),
    "greedy": ("{% set x = 'a' * 10 ** 10 %}{{ x }}", ("of memory",)),
    "doubling": (
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x*2 %}{% endfor %}",
        ("of memory",),
    ),
    "recursive": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ("refuses the messages",)),
    "great-range": ("{% for i in range(10 ** 9) %}{% endfor %}", ("refuses the messages",)),
    "escape": (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        ("refuses the messages", "unsafe"),
    ),
    "escape-by-filter": (
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        ("does not let the assistant's turns be told apart",),
    ),
    "escape-by-globals": (
        "{{ raise_exception.__globals__['__builtins__']['open']('/etc/passwd').read() }}",
        ("refuses the messages", "unsafe"),
    ),
    "format-string": (
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        ("refuses the messages", "unsafe"),
    ),
    "changes-messages": ("{{ messages.append(1) }}", ("refuses the messages", "unsafe")),
    "includes": ("{% include '/etc/passwd' %}", ("refuses the messages",)),
    "divides-by-zero": ("{{ 1 / 0 }}", ("refuses the messages",)),
}


@pytest.fixture(scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[World]:
    """A leader whose tokenizing may take little, with a bucket of chats."""
    at = tmp_path_factory.mktemp("leader")
    limits = {"tokenize_seconds": CPU_S, "tokenize_memory_bytes": 800_000_000}
    async with open_world(at, **limits) as opened:
        await opened.post("/buckets", pool=POOL, bucket="chats")
        rows = json.dumps({"messages": CHAT}) + "\n"
        await opened.post("/buckets/chats/files", pool=POOL, name="rows.jsonl", content=rows)
        yield opened


async def add_model(world: World, name: str, template: str | None) -> None:
    """The tiny model with another chat template."""
    folder: Path = world.folder / "tiny"
    told = {"eos_token": "<eos>"} | ({"chat_template": template} if template is not None else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    await world.add_model(name)


@pytest.mark.parametrize("case", TEMPLATES)
async def test_a_template_that_cannot_render_the_chat_is_refused_in_bounded_time(
    world: World, case: str
) -> None:
    template, words = TEMPLATES[case]
    await add_model(world, case, template)
    began = time.process_time()
    config = {"model": {"id": f"local:{case}"}, "data": {"bucket": "chats"}, "train": {"steps": 1}}
    await world.refused("jobs_plan", {"pool": POOL, "config": config}, "invalid-input", *words)
    assert time.process_time() - began < 5  # of this process: the template ran in another
    async with world.http() as client:
        assert (await client.get("/healthz")).status_code == 200
