"""The child that trains a probe in one process: its words are told once, and it can be stopped."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.fellow.referee import Referee, RefereeSetting
from tests.oracle.settings import some_settings
from transport.orders import CardShare, ModelSource, ReferenceOrder, TokenFile
from transport.reports import ReferenceFailed, ReferenceTrained

ORDER = ReferenceOrder(
    verify_id="v-abcdefgh",
    job_id="j-abcdefgh",
    model=ModelSource(
        model_id="local:tiny", repository="local/tiny", revision="0" * 40, from_leader=True
    ),
    settings=some_settings(),
    tokens=TokenFile(
        digest="0" * 64,
        size_bytes=10,
        layout="packed",
        num_tokens=100,
        num_rows=1,
        train_sequences=4,
        held_out_sequences=0,
        pad_token_id=0,
    ),
    card=CardShare(
        index=0, uuid="cpu-0", first_layer=0, last_layer=1, planned_bytes=1, budget_bytes=2
    ),
    threads=1,
)
READ = "import json, sys; start = json.loads(sys.stdin.readline()); "
TRAINED = {"losses": [2.0, 1.0], "held_out": [], "seconds": 0.1, "peak_bytes": 5}


def referee(tmp_path: Path, script: str) -> tuple[Referee, "asyncio.Queue[Any]"]:
    """One whose child runs a script, and what it puts out."""
    told: asyncio.Queue[Any] = asyncio.Queue()
    setting = RefereeSetting(
        leader_url="http://127.0.0.1:1",
        leader_token="swn_secret",
        leader_pin=None,
        cache_folder=tmp_path,
        command=(sys.executable, "-c", READ + script),
    )
    return Referee(setting, told.put_nowait), told


async def heard(told: "asyncio.Queue[Any]") -> Any:
    return await asyncio.wait_for(told.get(), 20)


async def test_what_the_child_found_is_told_once(tmp_path: Path) -> None:
    said = f"assert start['order']['verify_id'] == 'v-abcdefgh'; print({json.dumps(TRAINED)!r})"
    one, told = referee(tmp_path, said)
    one.want(ORDER)
    found = await heard(told)
    assert isinstance(found, ReferenceTrained)
    assert (found.verify_id, found.losses, found.peak_bytes) == ("v-abcdefgh", [2.0, 1.0], 5)
    one.want(None)
    one.want(ORDER)  # a leader that has not heard of it yet
    await one.close()
    assert told.empty()


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (
            "print(json.dumps({'code': 'cannot-fit', 'message': 'no'})); sys.exit(3)",
            "cannot-fit",
            "no",
        ),
        ("sys.stderr.write('it broke\\n'); sys.exit(1)", "internal", "exit code 1: it broke"),
        ("print(json.dumps({'losses': 'many'}))", "internal", "exit code 0"),
    ],
    ids=["refused", "died", "nonsense"],
)
async def test_why_the_child_could_not_is_told(
    tmp_path: Path, script: str, code: str, words: str
) -> None:
    one, told = referee(tmp_path, script)
    one.want(ORDER)
    found = await heard(told)
    assert isinstance(found, ReferenceFailed)
    assert found.code == code
    assert words in found.message
    await one.close()


async def test_a_child_that_is_not_wanted_any_more_is_killed(tmp_path: Path) -> None:
    begun, outlived = tmp_path / "begun", tmp_path / "outlived"
    script = (
        f"import os; open({str(begun)!r} + '-', 'w').write(str(os.getpid()));"
        f" os.rename({str(begun)!r} + '-', {str(begun)!r});"
        f" sys.stdin.read(); open({str(outlived)!r}, 'w')"
    )
    one, told = referee(tmp_path, script)
    one.want(ORDER)
    async with asyncio.timeout(20):
        while not begun.exists():
            await asyncio.to_thread(begun.parent.stat)
    child = psutil.Process(int(begun.read_text()))
    one.want(None)
    await asyncio.to_thread(psutil.wait_procs, [child], 10)
    assert not child.is_running()
    assert not outlived.exists()
    assert told.empty()
    await one.close()
