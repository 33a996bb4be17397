"""Fails a run that skips more than tests/skips.txt allows, so that a silent skip is seen."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

BUDGET = Path(__file__).with_name("skips.txt")


@dataclass(frozen=True)
class Allowed:
    """At most `count` skips whose reason matches `pattern`."""

    count: int
    pattern: str


def read_budget(text: str) -> list[Allowed]:
    """Read the lines of skips.txt: a count, white space, a pattern. `#` starts a comment line."""
    lines = [line.strip() for line in text.splitlines()]
    parts = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [Allowed(int(count), pattern) for count, pattern in parts]


def over_budget(reasons: Sequence[str], budget: Sequence[Allowed]) -> list[str]:
    """One sentence for each skip beyond the budget; empty when all is well."""
    left = {allowed.pattern: allowed.count for allowed in budget}
    complaints = []
    for reason in reasons:
        pattern = next((p for p in left if re.search(p, reason)), None)
        if pattern is None:
            complaints.append(f"skipped for a reason that tests/skips.txt does not list: {reason}")
        elif left[pattern] == 0:
            complaints.append(f"skipped more often than tests/skips.txt allows: {reason}")
        else:
            left[pattern] -= 1
    return complaints


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The words after `Skipped:`; a skip's long form is (file, line, words)."""
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(words).removeprefix("Skipped: ")


class SkipBudget:
    """Collects the reasons of a run and compares them at its end."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.reasons.append(_reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.reasons.append(_reason(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.complaints = over_budget(self.reasons, read_budget(BUDGET.read_text()))
        if self.complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for complaint in self.complaints:
            terminalreporter.write_line(f"SKIP BUDGET: {complaint}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Count in the process that sums up, not in each worker of a parallel run."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipBudget(), "skip-budget")
