"""What the documents say exists: commands, options, links, make targets."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.house.tree import ROOT, short

FENCE = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(swarm [^`\n]+)`(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
ASSIGNMENT = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*")


def documents() -> list[Path]:
    """The pages people and agents read."""
    skills = sorted((ROOT / "agents").rglob("*.md"))
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *skills]


def spoken(text: str) -> Iterator[str]:
    """Every `swarm …` in a page's code blocks and inline code, up to a pipe or a comment."""
    blocks = [line for block in FENCE.findall(text) for line in block.splitlines()]
    lines = [ASSIGNMENT.sub("", line.strip()) for line in blocks]
    outside = FENCE.sub("", text)
    for line in [*lines, *INLINE.findall(outside)]:
        if line.startswith("swarm "):
            yield re.split(r"\s[|#&;>]|…|\.\.\.", line)[0]


def command_tree() -> click.Command:
    """The root of the command line; the test is left out until it exists."""
    if not (ROOT / "agents" / "cli" / "main.py").is_file():
        pytest.skip("there is no command line yet")
    module = importlib.import_module("agents.cli.main")
    found = [getattr(module, name, None) for name in ("root", "cli", "main", "swarm")]
    groups = [one for one in found if isinstance(one, click.Group)]
    assert groups, "agents.cli.main has no click group named root, cli, main or swarm"
    return groups[0]


def complaint(line: str, root: click.Command) -> str | None:
    """What is wrong with one spoken command; None when every word of it exists."""
    command, context = root, click.Context(root, info_name="swarm")
    options = set(_options(command, context))
    words = _words(line)
    while words and isinstance(command, click.Group):
        word = words.pop(0)
        if word.startswith("-"):
            if word.split("=")[0] not in options:
                return f"no option {word}"
            continue
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            return None  # a placeholder such as JOB or <id>
        below = command.get_command(context, word)
        if below is None:
            return f"no command {word}"
        command, context = below, click.Context(below, parent=context, info_name=word)
        options |= set(_options(command, context))
    wrong = [word for word in words if word.startswith("--") and word.split("=")[0] not in options]
    return f"no option {wrong[0]}" if wrong else None


def _words(line: str) -> list[str]:
    try:
        return [word.strip("[]") for word in shlex.split(line)[1:]]
    except ValueError:
        return [word.strip("[]") for word in line.split()[1:]]


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        yield from parameter.opts
        yield from parameter.secondary_opts


@pytest.mark.parametrize("page", documents(), ids=short)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    root = command_tree()
    told = [(line, complaint(line, root)) for line in spoken(page.read_text("utf-8"))]
    assert [f"{line}: {wrong}" for line, wrong in told if wrong] == []


@pytest.mark.parametrize("page", documents(), ids=short)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text("utf-8")) if ":" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", documents(), ids=short)
def test_every_script_and_make_target_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    scripts = set(re.findall(r"`scripts/([a-z_]+)[ `]", text))
    made = set(re.findall(r"`make ([a-z]+)[ `]", text))
    assert [name for name in sorted(scripts) if not (ROOT / "scripts" / name).exists()] == []
    assert sorted(made - targets) == []


def test_a_word_that_is_no_command_is_found() -> None:
    group = click.Group("swarm", commands={"plan": click.Command("plan")})
    assert complaint("swarm plan JOB", group) is None
    assert complaint("swarm plam JOB", group) == "no command plam"
    assert complaint("swarm plan --nope", group) == "no option --nope"
    assert list(spoken("see `swarm plan x`\n```\n$ A=b swarm plan # c\n```\n")) == [
        "swarm plan",
        "swarm plan x",
    ]
