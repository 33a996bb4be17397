"""The console's files themselves: what must never stand in them, and that they fit together."""

import re
from pathlib import Path

import pytest

from tests.house.tree import ROOT

CONSOLE = ROOT / "static_console"
MODULES = sorted(CONSOLE.rglob("*.js"))
SHEETS = sorted(CONSOLE.rglob("*.css"))
IMPORT = re.compile(r'import \{([^}]*)\} from "([^"]+)";')
# Each of these turns text into markup or code, or is refused by the policy of the page.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    r"|setAttribute\(.style|srcdoc|https?://(?!www\.w3\.org/2000/svg)"
)


def imports(module: Path) -> list[tuple[str, Path]]:
    """The names that a module imports, each with the file it comes from."""
    found = IMPORT.findall(module.read_text("utf-8"))
    return [
        (name.strip(), (module.parent / source).resolve())
        for names, source in found
        for name in names.split(",")
        if name.strip()
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_no_module_can_make_markup_or_code_of_text(module: Path) -> None:
    assert FORBIDDEN.findall(module.read_text("utf-8")) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_every_imported_name_exists_and_is_used(module: Path) -> None:
    body = IMPORT.sub("", module.read_text("utf-8"))
    wrong = [
        name
        for name, source in imports(module)
        if not re.search(rf"export (async )?(const|function|class) {name}\b", source.read_text())
        or not re.search(rf"(?<![\w.]){name}\b", body)
    ]
    assert wrong == []


def test_only_the_api_asks_and_only_the_stream_listens() -> None:
    def speakers(word: str) -> list[str]:
        return [path.name for path in MODULES if re.search(word, path.read_text("utf-8"))]

    assert speakers(r"\bfetch\(") == ["api.js"]
    assert speakers(r"new EventSource|XMLHttpRequest|WebSocket") == ["stream.js"]


def test_the_page_has_no_inline_code_and_names_only_files_that_exist() -> None:
    page = (CONSOLE / "index.html").read_text("utf-8")
    assert re.findall(r"<style|\son\w+=|\sstyle=|<script(?![^>]*src=)", page) == []
    named = re.findall(r'(?:src|href)="(/[^"]+\.(?:js|css|svg))"', page)
    assert len(named) >= 8
    assert [name for name in named if not (CONSOLE / name[1:]).is_file()] == []


def test_every_colour_stands_in_the_tokens() -> None:
    loose = {
        path.name: re.findall(r":[^;{}]*#[0-9a-f]{3,8}\b[^;{}]*;", path.read_text("utf-8"))
        for path in SHEETS
        if path.name != "tokens.css"
    }
    assert {name: found for name, found in loose.items() if found} == {}
