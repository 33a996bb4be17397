"""The tiles and the training run panel: figures, curve, table, error, stop, live changes."""

import re
from typing import Any, Literal

import pytest
from playwright.sync_api import APIResponse, Locator, Page, Route, expect

from tests.browser.conftest import Open
from tests.browser.pool_twin import Leader
from tests.browser.sample_pool import (
    BASE,
    FELLOWS,
    JOB,
    NOW,
    POOL,
    TRAINED,
    a_fellow,
    a_job,
    a_run,
    a_stage,
    a_step,
    loss_at,
    smoothed_at,
)
from transport.api.jobs import IfLost
from transport.api.verify import ShownVerification


def expect_tile(page: Page, section: str, name: str, text: str) -> None:
    """Wait until a tile shows this, however its lines break."""
    region = page.get_by_role("region", name=re.compile(section))
    term = region.locator("dt").get_by_text(name, exact=True)
    words = r"\s*".join(re.escape(word) for word in text.split())
    shown = term.locator("xpath=following-sibling::dd")
    expect(shown).to_have_text(re.compile(rf"^\s*{words}\s*$"))


def panel(page: Page) -> Locator:
    found = page.get_by_role("region", name=re.compile("Training run"))
    expect(found.get_by_role("heading", name="Stages")).to_be_visible()
    return found


def test_six_tiles_tell_the_cluster(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page()
    panel(page)
    told = {
        "Fellows": "3 0 ready · 3 training · 0 offline",
        "GPUs": "3 48 cores · 192 GB RAM",
        "VRAM used": "13.1 GB of 26 GB · 50 %",
        "Step": "17 of 40",
        "Step time": "3.10 s/step 19 steps/min",
        "Avg loss": f"{loss_at(17):.3f} over 1 active run",
    }
    for name, text in told.items():
        expect_tile(page, "Cluster performance", name, text)


def test_unknown_is_a_dash_with_its_reason_and_never_zero(open_page: Open, leader: Leader) -> None:
    leader.twin.fellows = [a_fellow(0, card_used_bytes=None, card_total_bytes=None)]
    page = open_page()
    expect(page.locator(".tile").first).to_contain_text("1 ready")
    dash = {
        "VRAM used": "– no card has told its memory no card has told its memory",
        "Step": "– no run is active no run is active",
        "Step time": "– no run is active no run is active",
        "Avg loss": "– no run is active no run is active",
    }
    for name, text in dash.items():
        expect_tile(page, "Cluster", name, text)
    row = page.get_by_role("row", name=re.compile("atlas"))
    expect(row.locator("[data-column=step] .unknown")).to_have_attribute("title", "runs no stage")


def test_an_empty_pool_says_how_to_start_a_run_and_add_a_fellow(open_page: Open) -> None:
    page = open_page()
    run = page.get_by_role("region", name=re.compile("Training run"))
    expect(run.get_by_text("No run yet in this pool.")).to_be_visible()
    expect(run.get_by_text(f"swarm train --config job.json --follow --pool {POOL}")).to_be_visible()
    expect(run.get_by_role("button", name="Copy")).to_have_count(3)
    expect(page.get_by_role("heading", name="No fellows connected")).to_be_visible()


def test_a_running_job_shows_badge_tiles_and_sentence(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page()
    run = panel(page)
    expect(run.locator(".badge")).to_have_text("Running")
    expect_tile(page, "Training run", "Step", "17 of 40")
    expect_tile(page, "Training run", "Loss", f"{loss_at(17):.3f} smoothed {smoothed_at(17):.3f}")
    expect_tile(page, "Training run", "Fellows", "3 live · float32")
    expect(run.get_by_text(re.compile(r"^1:1\d$"))).to_be_visible()
    expect(page.locator("#loss-sentence")).to_contain_text(
        "Loss went from 3.599 at step 1 to 3.263"
    )
    expect(page.locator("#loss-sentence")).to_contain_text("lowest 3.186 at step 16.")


def test_every_choice_of_the_leader_stands_with_its_reason(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    run = panel(open_page())
    for text in ("train.batch_size", "the largest that fits every placed card", "10 + 10 + 10"):
        expect(run.get_by_text(text, exact=True)).to_be_visible()


def test_a_stage_shows_planned_and_measured_bytes_and_a_dash_before(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin, stages=[a_stage(0), a_stage(1, peak_bytes=None), a_stage(2)])
    run = panel(open_page())
    first = run.get_by_role("row", name=re.compile("atlas"))
    expect(first).to_contain_text("0–9")
    expect(first).to_contain_text("412 MB")
    expect(first).to_contain_text("−3.4 %")
    unknown = run.get_by_role("row", name=re.compile("borealis")).locator(".unknown").first
    expect(unknown).to_have_attribute("title", "the stage has not measured its peak yet")


def test_the_page_follows_the_run_and_a_late_report_never_moves_it_back(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    page = open_page()
    panel(page)
    steps = [a_step(step, stage) for stage in range(3) for step in range(1, 19)]
    leader.tell("jobs", jobs={JOB: a_job(step=18)}, steps={JOB: steps})
    step = page.get_by_role("slider")
    expect(step).to_have_attribute("aria-valuemax", "18")
    expect_tile(page, "Training run", "Step", "18 of 40")
    late = a_job(step=16, summary="late")
    leader.tell("jobs", jobs={JOB: late})
    leader.tell("fellows", fellows=[a_fellow(0)])
    expect(page.locator("header .status-words")).to_have_text("1 fellow ready")
    expect_tile(page, "Training run", "Step", "18 of 40")


def test_a_step_that_is_told_while_records_are_read_is_read_too(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    held: list[tuple[Route, APIResponse]] = []
    asked: list[str] = []

    def hold_the_first(route: Route) -> None:
        asked.append(route.request.url)
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page = open_page(before=lambda one: one.route(re.compile("/records"), hold_the_first))
    run = page.get_by_role("region", name=re.compile("Training run"))
    expect(run).to_contain_text("Step17of 40")
    steps = [a_step(step, stage) for stage in range(3) for step in range(1, 19)]
    leader.tell("jobs", jobs={JOB: a_job(step=18)}, steps={JOB: steps})
    expect(run).to_contain_text("Step18of 40")
    route, answer = held[0]
    route.fulfill(response=answer)
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuemax", "18")
    assert len(asked) > 1


def test_the_cursor_walks_the_curve_by_keyboard_and_stays_while_points_arrive(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    page = open_page()
    panel(page)
    curve = page.get_by_role("slider", name="Step on the loss curve")
    curve.focus()
    page.keyboard.press("Home")
    expect(curve).to_have_attribute("aria-valuetext", "Step 1: loss 3.599, smoothed 3.599")
    page.keyboard.press("ArrowRight")
    expect(curve).to_have_attribute("aria-valuenow", "2")
    steps = [a_step(step, stage) for stage in range(3) for step in range(1, 31)]
    leader.tell("jobs", jobs={JOB: a_job(step=30)}, steps={JOB: steps})
    expect(curve).to_have_attribute("aria-valuemax", "30")
    expect(curve).to_have_attribute("aria-valuenow", "2")
    page.keyboard.press("End")
    expect(curve).to_have_attribute("aria-valuenow", "30")


def test_few_points_have_markers_and_many_are_a_thin_line(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin, state="completed", ended_at=NOW)
    page = open_page()
    panel(page)
    expect(page.locator("path.dot-raw")).to_have_count(1)
    expect(page.locator("path.line-thin")).to_have_count(0)
    expect(page.locator("path.line-fellow")).to_have_count(0)
    leader.tell(
        "jobs",
        jobs={JOB: a_job(step=31, state="completed", ended_at=NOW)},
        steps={JOB: [a_step(step) for step in range(1, 32)]},
    )
    expect(page.locator("path.line-thin")).to_have_count(1)
    expect(page.locator("path.dot-raw")).to_have_count(0)


def test_a_running_job_over_three_fellows_has_a_line_each_and_names_who_is_behind(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin, behind=4, stages=[a_stage(0, 13), a_stage(1), a_stage(2)])
    page = open_page()
    panel(page)
    lines = page.locator(".chart-svg path.line-fellow")
    expect(lines).to_have_count(3)
    assert len(set(lines.evaluate_all("all => all.map(one => one.getAttribute('class'))"))) == 3
    expect(page.locator("#loss-sentence")).to_contain_text("atlas is 4 steps behind, at step 13.")


def test_the_numbers_are_there_as_a_table(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin, step=120, steps=200)
    page = open_page()
    panel(page)
    toggle = page.get_by_role("button", name="Show data as table")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    toggle.click()
    expect(page.get_by_role("button", name="Hide table")).to_have_attribute("aria-expanded", "true")
    table = page.get_by_role("table", name="Loss of each step, newest first")
    expect(table.locator("tbody tr")).to_have_count(50)
    expect(table.locator("tbody tr").first).to_contain_text("120")
    expect(table.locator("thead th")).to_have_text(
        ["Step", "Loss", "Smoothed", "atlas", "borealis", "cedar"]
    )
    page.get_by_role("button", name="Older").click()
    expect(page.get_by_text("Rows 51–100 of 120")).to_be_visible()
    expect(table.locator("tbody tr").first).to_contain_text("70")


def test_a_failed_run_shows_the_first_error_as_text(open_page: Open, leader: Leader) -> None:
    error = "borealis (f-bbbbbbbb): killed by signal 9 <img src=x onerror=alert(1)>"
    a_run(leader.twin, state="failed", reason="stage 1 failed", untrusted_error=error, ended_at=NOW)
    page = open_page()
    run = panel(page)
    expect(run.locator(".badge")).to_have_text("Failed")
    expect(run.get_by_text(error, exact=True)).to_be_visible()
    expect(run.get_by_text("stage 1 failed", exact=True)).to_be_visible()
    expect(page.locator("main img")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)


def test_evaluations_are_compared_and_the_adapter_can_be_fetched(
    open_page: Open, leader: Leader
) -> None:
    given: dict[str, Any] = {
        "state": "completed",
        "evaluations": [BASE, TRAINED],
        "adapter_ready": True,
    }
    a_run(leader.twin, step=40, ended_at=NOW, **given)
    run = panel(open_page())
    expect(run.get_by_text("0.398 nats lower than the base model")).to_be_visible()
    expect(run.get_by_text(f"swarm models export {JOB}")).to_be_visible()


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("equal", "equal to one process within 9.0e-9 nats"),
        ("different", "DIFFERENT from one process by 9.0e-9 nats: do not trust this run"),
        (None, "one fellow trains the probe in one process"),
    ],
)
def test_a_verification_is_told_among_the_runs_facts(
    open_page: Open, leader: Leader, verdict: Literal["equal", "different"] | None, words: str
) -> None:
    one = ShownVerification(
        state="done" if verdict else "comparing",
        verdict=verdict,
        largest_difference=9.0e-9 if verdict else None,
        largest_at="step 3" if verdict else "",
        tolerance=1e-5,
        tolerance_why="float32, nothing compressed",
        probe_job_id="j-aaaaaaaa",
        fellow_id=None,
        stages=3,
        steps=4,
        split_losses=[],
        one_process_losses=[],
        split_held_out=[],
        one_process_held_out=[],
        differs=[],
        reason="",
        untrusted_error=None,
        asked_at=NOW,
        ended_at=None,
    )
    a_run(leader.twin, step=40, ended_at=NOW, state="completed", verification=one)
    expect(panel(open_page()).get_by_text(words, exact=True)).to_be_visible()


def test_what_follows_a_loss_is_told_with_the_names_of_the_fellows(
    open_page: Open, leader: Leader
) -> None:
    first, second, third = FELLOWS
    a_run(
        leader.twin,
        if_lost=[
            IfLost(fellow_id=first, then="split", fellows=[second, third]),
            IfLost(fellow_id=second, then="standby", fellows=[first, "f-unlisted", third]),
            IfLost(fellow_id=third, then="wait", why="it does not fit"),
        ],
    )
    words = (
        "If it loses a fellow: without atlas it is split again over 2; "
        "f-unlisted stands by for borealis; it waits for cedar or a standby."
    )
    expect(panel(open_page()).get_by_text(words, exact=True)).to_be_visible()


def test_stop_asks_first_and_stops_once(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page()
    panel(page)
    stop = page.get_by_role("button", name="Stop", exact=True)
    stop.click()
    dialog = page.get_by_role("dialog", name="Stop this run?")
    expect(dialog.get_by_role("button", name="Keep running")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(stop).to_be_focused()
    assert leader.twin.cancelled == []
    stop.click()
    dialog.get_by_role("button", name="Stop the run").click()
    expect(page.locator(".badge")).to_have_text("Cancelled")
    expect(page.get_by_text(f"{JOB} was stopped.")).to_be_visible()
    assert leader.twin.cancelled == [JOB]


def test_a_failed_run_with_a_saved_step_is_resumed_by_a_button(
    open_page: Open, leader: Leader
) -> None:
    lost = "stage 1 was lost"
    a_run(leader.twin, saved_step=10, state="failed", reason=lost, ended_at=NOW)
    page = open_page()
    run = panel(page)
    expect_tile(page, "Training run", "Step", "17 of 40 · saved at 10")
    run.get_by_role("button", name="Resume", exact=True).click()
    dialog = page.get_by_role("dialog", name="Resume this run?")
    expect(dialog).to_contain_text("goes on from step 10 of 40")
    expect(dialog).to_contain_text("Steps 11 to 17 are done again")
    dialog.get_by_role("button", name="Resume the run").click()
    expect(page.locator(".badge")).to_have_text("Recovering")
    expect(run).to_contain_text("Attempt 2 went on from step 10, by hand: 7 steps were lost")
    expect(run.get_by_role("button", name="Resume", exact=True)).to_be_hidden()
    assert leader.twin.resumed == [JOB]


def test_a_failed_run_without_a_saved_step_offers_no_resuming(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin, state="failed", reason="stage 1 was lost", ended_at=NOW)
    run = panel(open_page())
    expect(run.get_by_role("button", name="Resume", exact=True)).to_be_hidden()
    expect(run.get_by_role("button", name="Stop", exact=True)).to_be_hidden()


def test_a_run_that_cannot_save_says_why(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin, saving_paused="saving is paused: the disk is full")
    expect(panel(open_page())).to_contain_text("saving is paused: the disk is full")


def test_a_refused_stop_says_why_in_the_dialog(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    leader.twin.scope = "read"
    page = open_page()
    panel(page)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop the run").click()
    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("stopping a run needs a token of scope train")
    expect(page.get_by_role("button", name="Stop the run")).to_be_enabled()


def test_another_run_can_be_picked_and_stands_in_the_address(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    older = a_job(
        "j-bbbbbbbb", state="completed", step=40, created_at=NOW - 9000, ended_at=NOW - 8000
    )
    leader.twin.jobs[older.job_id] = older
    page = open_page()
    panel(page)
    picker = page.get_by_label("Run", exact=True)
    expect(picker.locator("option")).to_have_count(2)
    assert JOB in picker.locator("option").first.inner_text()
    picker.select_option("j-bbbbbbbb")
    expect(page.locator(".badge")).to_have_text("Completed")
    expect(page).to_have_url(re.compile("job=j-bbbbbbbb"))
    expect_tile(page, "Training run", "Step", "40 of 40")
    page.reload()
    expect(page.locator(".badge")).to_have_text("Completed")


@pytest.mark.parametrize("name", ["jobs_get", "jobs_records"])
def test_what_cannot_be_read_is_said_and_the_rest_still_stands(
    open_page: Open, leader: Leader, name: str
) -> None:
    a_run(leader.twin)
    leader.twin.failing = {name}
    page = open_page()
    expect(page.get_by_text("the leader could not read it").first).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("atlas"))).to_be_visible()
    leader.twin.failing = set()


def test_a_waiting_run_says_why(open_page: Open, leader: Leader) -> None:
    why = "1 ready fellow, 2 are needed"
    a_run(leader.twin, step=0, state="pending", reason=why, started_at=None, stages=[])
    leader.twin.steps = {}
    page = open_page()
    run = page.get_by_role("region", name=re.compile("Training run"))
    expect(run.get_by_text(why)).to_be_visible()
    expect(run.locator(".badge")).to_have_text("Pending")
    expect_tile(page, "Training run", "Step", "0 of 40")
    expect_tile(page, "Training run", "Loss", "– no loss yet no loss yet")
    expect(run.get_by_text("The run is not placed yet.", exact=True)).to_be_visible()


def test_the_run_of_a_selected_fellow_is_marked(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page()
    run = panel(page)
    page.get_by_role("button", name="borealis").click()
    expect(run.locator("tbody tr[aria-current=true]")).to_contain_text("borealis")
    assert FELLOWS[1]
