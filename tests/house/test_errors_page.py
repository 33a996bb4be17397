"""docs/errors.md tells every code, its HTTP status and its exit code."""

import re

from tests.house.tree import ROOT
from transport.errors import CODES

ROW = re.compile(r"^\| `([a-z-]+)` \| (\d{3}) \| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)


def test_the_page_of_errors_tells_every_code_with_its_numbers() -> None:
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text("utf-8"))
    assert {code: (int(status), int(exit_)) for code, status, exit_, _, _ in rows} == CODES
    assert [code for code, *_ in rows] == list(CODES)


def test_every_code_of_the_page_says_what_it_means_and_what_to_do() -> None:
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text("utf-8"))
    told = [text for *_, meaning, advice in rows for text in (meaning, advice)]
    assert [text for text in told if not re.match(r"[A-Z].{10,}\.$", text)] == []
