"""A real Chromium on the real doors of a leader; pages are found by role and name."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.pool_twin import Leader, PoolTwin
from tests.browser.sample_pool import NOW, POOL

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 15_000
# How long a page may take on a busy machine; what holds is seen at once.
expect.set_options(timeout=WAIT_MS)
# A refused or broken connection is what some tests are about; the browser notes each.
NETWORK = re.compile(r"Failed to load resource|ERR_CONNECTION|ERR_INCOMPLETE|ERR_NETWORK")
Open = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a browser, and says so."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


# Not of the session: an open sync_playwright keeps an event loop running in this thread, which
# async tests of other folders would stumble over.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def _leader() -> Iterator[Leader]:
    leader = Leader()
    leader.start()
    yield leader
    if leader.thread.is_alive():
        leader.stop()


@pytest.fixture
def leader(_leader: Leader) -> Leader:
    """The doors, with an empty pool behind them."""
    if not _leader.thread.is_alive():
        _leader.start()
    _leader.twin.__dict__.update(PoolTwin(watchers=_leader.twin.watchers).__dict__)
    return _leader


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console said against the page: must stay empty."""
    return []


@pytest.fixture
def open_page(chromium: Browser, leader: Leader, complaints: list[str]) -> Iterator[Open]:
    """Opens the training page, signed in, at the sample's time; at the end nothing complained."""
    contexts = []

    def go(
        path: str = f"/pools/{POOL}/training",
        *,
        signs_in: bool = True,
        width: int = 1440,
        height: int = 1000,
        before: Callable[[Page], None] | None = None,
        **given: object,
    ) -> Page:
        options: dict[str, object] = {"color_scheme": "light", "timezone_id": "UTC"} | given
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)  # type: ignore[arg-type]
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("console", lambda message: _note(message, complaints))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        if given.get("java_script_enabled", True):
            page.clock.install(time=NOW)
        if signs_in:
            context.request.get(f"{leader.url}/signin?code={leader.sign_in_code()}")
        if before is not None:
            before(page)
        page.goto(leader.url + path)
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []


def _note(message: ConsoleMessage, complaints: list[str]) -> None:
    if message.type in ("error", "warning") and not NETWORK.search(message.text):
        complaints.append(f"{message.type}: {message.text}")
