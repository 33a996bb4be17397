"""The fellows table and the log: keyboard, filters, selection, windowing, foreign text."""

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.pool_twin import Leader
from tests.browser.sample_pool import JOB, NOW, a_fellow, a_line, a_run, training

HOSTILE = "<img src=x onerror=alert(1)>"


def log_region(page: Page) -> None:
    expect(page.get_by_role("log")).to_be_visible()


def test_the_table_has_caption_and_scopes_and_an_offline_fellow_no_last_values(
    open_page: Open, leader: Leader
) -> None:
    off = a_fellow(1, status="offline", step=17, loss=3.2, last_seen_at=NOW - 190, causes=["away"])
    leader.twin.fellows = [a_fellow(0), off]
    page = open_page()
    table = page.get_by_role("table", name="Fellows of the pool")
    expect(table.locator("thead th[scope=col]")).to_have_count(12)
    row = table.get_by_role("row", name=re.compile("borealis"))
    expect(row).to_contain_text("3 min ago")
    expect(row).to_contain_text("away")
    for column in ("memory", "traffic", "step", "loss"):
        unknown = row.locator(f"[data-column={column}] .unknown")
        expect(unknown).to_have_attribute("title", "the fellow is offline")


def test_a_fellow_shows_its_peaks_and_says_nothing_of_what_nobody_told(
    open_page: Open, leader: Leader
) -> None:
    silent = a_fellow(1, card_peak_bytes=None, busy_peak=None)
    off = a_fellow(2, status="offline")
    leader.twin.fellows = [a_fellow(0), silent, off]
    page = open_page()
    table = page.get_by_role("table", name="Fellows of the pool")
    expect(table.get_by_text("peak 11.8 GB, busy 93 %")).to_be_visible()
    for hidden in ("borealis", "cedar"):
        row = table.get_by_role("row", name=re.compile(hidden))
        expect(row.locator(".peaks")).to_be_hidden()
    leader.tell("fellows", fellows=[a_fellow(0, busy_peak=None), silent, off])
    expect(table.get_by_text("peak 11.8 GB", exact=True)).to_be_visible()


def test_filters_count_and_select(open_page: Open, leader: Leader) -> None:
    leader.twin.fellows = [a_fellow(0), a_fellow(1, status="offline"), a_fellow(2)]
    page = open_page()
    page.get_by_role("radio", name="Offline 1").check()
    rows = page.get_by_role("table", name="Fellows of the pool").locator("tbody tr")
    expect(rows).to_have_count(1)
    page.get_by_role("radio", name="Training 0").check()
    expect(page.get_by_text("No fellow is in this state.")).to_be_visible()
    page.get_by_role("radio", name="All 3").check()
    expect(rows).to_have_count(3)


def test_a_fellow_is_selected_by_keyboard_and_the_mark_survives_a_refresh(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    page = open_page()
    log_region(page)
    name = page.get_by_role("button", name="cedar")
    name.focus()
    page.keyboard.press("Enter")
    row = page.locator("tr.selectable", has=name)
    expect(row).to_have_attribute("aria-current", "true")
    expect(page.get_by_label("Stage", exact=True)).to_have_value("2")
    leader.tell("fellows", fellows=[*training((18, 18, 18)), a_fellow(0, fellow_id="f-dddddddd")])
    expect(page.locator("tr.selectable")).to_have_count(4)
    expect(row).to_have_attribute("aria-current", "true")
    expect(row).to_contain_text("18")
    expect(name).to_be_focused()


def test_foreign_names_and_lines_stay_text(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    leader.twin.fellows = [a_fellow(0, untrusted_hostname=HOSTILE)]
    leader.twin.lines = {JOB: [a_line(0, text=f"\u001b[31m{HOSTILE}\u001b[0m")]}
    page = open_page()
    expect(page.get_by_role("button", name=HOSTILE)).to_be_visible()
    expect(page.locator(".log-text")).to_have_text(HOSTILE)
    expect(page.locator("main img")).to_have_count(0)


def test_five_thousand_lines_draw_only_those_in_view(open_page: Open) -> None:
    page = open_page(signs_in=False)
    expect(page.get_by_role("heading", name="Signed out")).to_be_visible()
    page.evaluate(
        """async () => {
          const { LogList } = await import('/js/loglist.js');
          const list = new LogList({ onFollow() {} });
          document.getElementById('main').append(list.region);
          list.update(Array.from({ length: 5000 }, (_, key) =>
            ({ key, at: key, stage: 0, level: 'info', untrusted_text: `line ${key}` })));
        }"""
    )
    region, rows = page.get_by_role("log"), page.locator(".log-row")
    expect(region.get_by_text("line 4999", exact=True)).to_be_visible()
    region.focus()
    for key, line in (("Home", 0), ("PageDown", 17), ("ArrowDown", 18), ("End", 4999)):
        page.keyboard.press(key)
        expect(region.get_by_text(f"line {line}", exact=True)).to_be_visible()
        assert 10 < rows.count() < 100


def test_lines_that_come_are_added_at_the_end(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page()
    log_region(page)
    leader.tell("logs", lines={JOB: [a_line(number) for number in range(180)]})
    expect(page.get_by_text("step 179:")).to_be_visible()
    expect(page.get_by_role("radio", name="All 180")).to_be_visible()


def test_scrolling_up_pauses_the_follow_and_jump_resumes_it(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    leader.twin.lines = {JOB: [a_line(number) for number in range(100)]}
    page = open_page()
    log_region(page)
    expect(page.get_by_role("button", name="Following")).to_be_visible()
    page.get_by_role("log").focus()
    page.keyboard.press("Home")
    expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
    leader.tell("logs", lines={JOB: [a_line(number) for number in range(107)]})
    jump = page.get_by_role("button", name="Jump to latest (7 new)")
    expect(jump).to_be_visible()
    jump.click()
    expect(page.get_by_role("button", name="Following")).to_be_visible()
    expect(page.get_by_text("step 106:", exact=False)).to_be_visible()


def test_levels_are_counted_and_copy_takes_all_that_pass(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    lines = [
        a_line(n, "error" if n in (3, 90) else "warning" if n == 5 else "info") for n in range(100)
    ]
    leader.twin.lines = {JOB: lines}
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    log_region(page)
    page.get_by_role("radio", name="Warnings 1").check()
    expect(page.locator(".log-row")).to_have_count(1)
    page.get_by_role("radio", name="Errors 2").check()
    expect(page.locator(".log-row")).to_have_count(2)
    page.get_by_role("region", name=re.compile("^Log of")).get_by_role(
        "button", name="Copy"
    ).click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert [line.split(" ", 1)[1] for line in copied] == [
        f"stage 2 error {lines[n].untrusted_text}" for n in (3, 90)
    ]


def test_clear_empties_the_view_and_close_ends_the_subscription(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    page = open_page()
    log_region(page)
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_text("No lines yet.")).to_be_visible()
    leader.tell("logs", lines={JOB: [a_line(number) for number in range(41)]})
    expect(page.locator(".log-row")).to_have_count(1)
    with page.expect_request(re.compile("/api/v1/events")) as asked:
        page.get_by_role("button", name="Close").click()
    assert "job_id" not in asked.value.url
    expect(page.get_by_text("The log is closed.")).to_be_visible()
    with page.expect_request(re.compile("/api/v1/events")) as again:
        page.get_by_role("button", name="Open the log").click()
    assert f"job_id={JOB}" in again.value.url
    expect(page.get_by_role("button", name="Close")).to_be_focused()
