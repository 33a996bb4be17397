"""A skip that nobody allowed fails the run."""

from pathlib import Path

import pytest

from tests.skip_budget import BUDGET, Allowed, over_budget, read_budget

BROWSER = Allowed(1, "no Chromium")


def test_a_listed_reason_within_its_count_is_fine() -> None:
    assert over_budget(["no Chromium on this machine"], [BROWSER]) == []


def test_one_more_than_allowed_is_named() -> None:
    told = over_budget(["no Chromium here", "no Chromium there"], [BROWSER])
    assert told == ["skipped more often than tests/skips.txt allows: no Chromium there"]


def test_a_reason_that_is_not_listed_is_named() -> None:
    told = over_budget(["felt like it"], [BROWSER])
    assert told == ["skipped for a reason that tests/skips.txt does not list: felt like it"]


def test_the_budget_file_can_be_read() -> None:
    assert all(allowed.count > 0 for allowed in read_budget(BUDGET.read_text("utf-8")))
    assert read_budget("# words\n\n2  no Chromium\n") == [Allowed(2, "no Chromium")]


SUITE = """
import pytest
pytest_plugins = ["tests.skip_budget"]
"""


def test_a_run_with_an_unlisted_skip_ends_red(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(root))
    pytester.makeconftest(SUITE)
    pytester.makepyfile("import pytest\ndef test_it(): pytest.skip('felt like it')\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["SKIP BUDGET: *felt like it"])
