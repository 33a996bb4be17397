"""When the leader goes away and comes back: banner, stale marks, no line lost or shown twice."""

from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.pool_twin import Leader
from tests.browser.sample_pool import JOB, a_fellow, a_job, a_line, a_run, a_step

LOST = "The connection to the leader is lost. The figures below are stale."


def numbers(page: Page) -> list[str]:
    """All log lines in the view's order, as Copy gives them, by their step."""
    page.get_by_role("region", name="Log of").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    text: str = page.evaluate("navigator.clipboard.readText()")
    return [line.split("step ")[1].split(":")[0] for line in text.splitlines()]


def test_a_lost_leader_is_said_and_old_figures_are_marked(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page()
    expect(page.get_by_role("slider")).to_be_visible()
    leader.stop()
    banner = page.locator(".banner")
    expect(banner.get_by_role("status")).to_have_text(LOST)
    expect(banner).to_contain_text("Trying again")
    expect(page.locator(".stale-mark").first).to_be_hidden()
    page.clock.fast_forward(20_000)
    expect(page.locator(".stale-mark:visible")).to_have_count(4)
    leader.start()
    banner.get_by_role("button", name="Try now").click()
    expect(banner).to_be_hidden()
    expect(page.locator(".stale-mark:visible")).to_have_count(0)


def test_what_happened_meanwhile_is_filled_in_once(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    expect(page.get_by_role("log")).to_be_visible()
    leader.stop()
    expect(page.locator(".banner")).to_be_visible()
    leader.twin.lines = {JOB: [a_line(number) for number in range(900)]}
    leader.twin.jobs = {JOB: a_job(step=25)}
    leader.twin.steps = {JOB: [a_step(step, stage) for stage in range(3) for step in range(1, 26)]}
    leader.start()
    page.get_by_role("button", name="Try now").click()
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuemax", "25")
    expect(page.get_by_text("step 899:", exact=False)).to_be_visible()
    assert numbers(page) == [str(number) for number in range(900)]


def test_the_page_follows_changes_without_being_asked(open_page: Open, leader: Leader) -> None:
    page = open_page()
    expect(page.locator("header .status-words")).to_have_text("No fellows connected")
    leader.tell("fellows", fellows=[a_fellow(0)])
    expect(page.locator("header .status-words")).to_have_text("1 fellow ready")
    expect(page.locator("#announcer")).to_have_text("1 fellow ready")
    leader.tell("jobs", jobs={JOB: a_job(step=0, state="starting")})
    expect(page.locator(".badge")).to_have_text("Starting")


def test_one_tab_holds_one_stream(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page()
    expect(page.get_by_role("slider")).to_be_visible()
    older = a_job("j-bbbbbbbb", state="completed", step=40)
    leader.tell("jobs", jobs={JOB: a_job(), older.job_id: older})
    page.get_by_label("Run", exact=True).select_option("j-bbbbbbbb")
    expect(page.locator(".badge")).to_have_text("Completed")
    leader.tell("fellows", fellows=[a_fellow(0)])
    expect(page.locator("header .status-words")).to_have_text("1 fellow ready")
    assert len(leader.twin.watchers) == 1
