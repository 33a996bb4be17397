"""axe with the WCAG 2.2 AA rules on the page's states, light and dark: no violation."""

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.pool_twin import Leader, PoolTwin
from tests.browser.sample_pool import BASE, JOB, NOW, TRAINED, a_fellow, a_line, a_run

RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}


def running(twin: PoolTwin) -> None:
    a_run(twin)
    twin.lines = {JOB: [a_line(n, ("info", "warning", "error")[n % 3]) for n in range(60)]}


def failed(twin: PoolTwin) -> None:
    a_run(
        twin,
        state="failed",
        reason="stage 1 failed",
        untrusted_error="borealis: died",
        ended_at=NOW,
    )
    twin.fellows = [
        a_fellow(0),
        a_fellow(1, status="offline", health="F", causes=["not heard for 3 min"]),
        a_fellow(2, health="C", causes=["disk nearly full"]),
    ]


def completed(twin: PoolTwin) -> None:
    given: dict[str, Any] = {
        "state": "completed",
        "evaluations": [BASE, TRAINED],
        "adapter_ready": True,
    }
    a_run(twin, step=40, ended_at=NOW, **given)


def nothing(page: Page) -> None:
    expect(page.get_by_text("No run yet in this pool.")).to_be_visible()


def panel(page: Page) -> None:
    expect(page.get_by_role("slider")).to_be_visible()


def table(page: Page) -> None:
    panel(page)
    page.get_by_role("button", name="Show data as table").click()
    page.get_by_role("button", name="borealis").click()


def dialog(page: Page) -> None:
    panel(page)
    page.get_by_role("button", name="Stop", exact=True).click()


STATES: dict[str, tuple[Callable[[PoolTwin], None], Callable[[Page], None]]] = {
    "running": (running, panel),
    "table and selection": (running, table),
    "stop dialog": (running, dialog),
    "failed": (failed, panel),
    "completed": (completed, panel),
    "empty": (lambda twin: None, nothing),
}


def complaints_of(page: Page) -> list[str]:
    """Every violation with the elements it is about."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(open_page: Open, leader: Leader, state: str, scheme: str) -> None:
    prepare, reach = STATES[state]
    prepare(leader.twin)
    page = open_page(color_scheme=scheme)
    reach(page)
    assert complaints_of(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_when_signed_out_or_lost(
    open_page: Open, leader: Leader, scheme: str
) -> None:
    page = open_page(signs_in=False, color_scheme=scheme)
    expect(page.get_by_role("heading", name="Signed out")).to_be_visible()
    assert complaints_of(page) == []
    running(leader.twin)
    page = open_page(color_scheme=scheme, width=320)
    panel(page)
    leader.stop()
    expect(page.locator(".banner")).to_be_visible()
    page.clock.fast_forward(20_000)
    expect(page.locator(".stale-mark").first).to_be_visible()
    assert complaints_of(page) == []
