"""The console's pure modules, run in the browser: smoothing, thinning, formats, the store."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Open
from tests.browser.pool_twin import row_of
from tests.browser.sample_pool import JOB, a_fellow, a_job, a_step
from tests.house.test_docs import command_tree, complaint
from tests.house.tree import ROOT
from transport.units import human_bytes, human_seconds


@pytest.fixture
def page(open_page: Open) -> Page:
    return open_page("/", signs_in=False)


def call(page: Page, module: str, expression: str, *given: Any) -> Any:
    """Evaluate an expression over a module's exports `m` and the arguments `a`."""
    script = f"async (a) => {{ const m = await import('/js/{module}'); return {expression}; }}"
    return page.evaluate(script, list(given))


def test_the_smoothed_curve_is_the_published_one(page: Page) -> None:
    published = call(page, "ema.js", "m.smooth([1, 0.5, 0], 0.6)")
    assert published == pytest.approx([1, 0.6875, 0.33673], abs=1e-5)
    ours = call(page, "ema.js", "m.smooth([1, 0.5, 0])")
    assert ours == pytest.approx([1, 0.72222, 0.42623], abs=1e-5)


def test_a_constant_series_stays_itself_and_a_gap_is_not_averaged(page: Page) -> None:
    assert call(page, "ema.js", "m.smooth([2, 2, 2, 2])") == pytest.approx([2, 2, 2, 2])
    broken = call(page, "ema.js", "m.smooth([1, NaN, 0.5, null, 0], 0.6)")
    assert broken == [
        pytest.approx(1),
        None,
        pytest.approx(0.6875),
        None,
        pytest.approx(0.33673, abs=1e-5),
    ]


def test_thinning_keeps_every_peak_and_every_gap(page: Page) -> None:
    script = """(() => {
      const values = Array.from({length: 10000}, (_, n) => Math.sin(n / 50));
      values[5000] = 9; values[5001] = -9; values[7777] = NaN;
      const kept = m.thin(values, 300);
      return {count: kept.length, has: [5000, 5001, 7777].every((n) => kept.includes(n)),
              rises: kept.every((n, at) => at === 0 || n > kept[at - 1])};
    })()"""
    told = call(page, "ema.js", script)
    assert told["has"]
    assert told["rises"]
    assert told["count"] <= 601


def test_sizes_and_times_read_as_on_the_command_line(page: Page) -> None:
    sizes = [None, 0, 12, 999, 1000, 6_060_000_000, 12_000_000, 99_950_000, 640_300_000, 2 * 10**12]
    assert call(page, "format.js", "a.map(m.bytes)", *sizes) == [human_bytes(one) for one in sizes]
    times = [None, 0.25, 4.2, 59.9, 60, 95, 3599, 4000, 90_000]
    assert call(page, "format.js", "a.map(m.seconds)", *times) == [human_seconds(t) for t in times]


def test_unknown_is_a_dash_in_every_format(page: Page) -> None:
    formats = (
        "['bytes','rate','count','seconds','duration','loss','percent','change','clock','day']"
    )
    told = call(page, "format.js", f"{formats}.map((name) => m[name](null))")
    assert set(told) == {"–"}


def test_foreign_text_loses_terminal_codes_and_direction_marks(page: Page) -> None:
    given = "\u001b[31mred\u001b[0m \u202eevil\u202c\u0007 a\tb"
    assert call(page, "format.js", "m.plain(a[0])", given) == "red evil a    b"
    assert len(call(page, "format.js", "m.plain(a[0])", "x" * 5000)) == 2000


def test_every_command_that_the_console_names_exists(page: Page) -> None:
    made = """[m.HOW.planCommand("ann/lab"), m.HOW.runCommand(null), m.HOW.inviteCommand("ann/lab"),
               m.RUN.adapterCommand("j-aaaaaaaa"), m.SIGNED_OUT.command]"""
    static = re.findall(r"<code>(swarm [^<]+)<", (ROOT / "static_console/index.html").read_text())
    named = [*call(page, "text.js", made), *static]
    assert len(named) >= 10
    root = command_tree()
    assert [(line, wrong) for line in named if (wrong := complaint(line, root))] == []


def reduced(page: Page, *events: dict[str, Any]) -> dict[str, Any]:
    """The store's state after these events."""
    script = "a.reduce((state, event) => m.reduce(state, event), m.initial('ann/lab'))"
    state: dict[str, Any] = call(page, "store.js", script, *events)
    return state


def told(step: int, **given: Any) -> dict[str, Any]:
    """The event that tells the run's view at a step."""
    return {"type": "view", "data": a_job(step=step, **given).model_dump(mode="json")}


def test_a_late_report_fills_its_point_and_never_moves_the_step_back(page: Page) -> None:
    points = [a_step(step).model_dump() for step in (15, 17, 16)]
    records = [{"type": "records", "jobId": JOB, "rows": [point]} for point in points]
    state = reduced(page, {"type": "pick", "jobId": JOB}, told(17), told(16), *records)
    assert state["view"]["step"] == 17
    assert [stage["step"] for stage in state["view"]["stages"]] == [17, 17, 17]
    assert state["series"]["2"]["steps"] == [15, 16, 17]
    assert state["series"]["2"]["losses"][1] == pytest.approx(points[2]["loss"])


def test_a_new_attempt_may_begin_at_an_earlier_step(page: Page) -> None:
    state = reduced(page, {"type": "pick", "jobId": JOB}, told(17), told(10, attempt=2))
    assert state["view"]["step"] == 10


def test_the_newest_report_of_a_step_wins(page: Page) -> None:
    rows = [a_step(3).model_dump(), a_step(3, loss=9.0).model_dump()]
    state = reduced(
        page, {"type": "pick", "jobId": JOB}, {"type": "records", "jobId": JOB, "rows": rows}
    )
    assert state["series"]["2"] == {"steps": [3], "losses": [9.0]}


def test_a_known_fellow_keeps_its_place_and_a_new_one_comes_last(page: Page) -> None:
    rows = [a_fellow(index).model_dump() for index in range(3)]
    first = {"cluster": None, "fellows": [rows[2], rows[0]], "jobs": []}
    again = {"cluster": None, "fellows": rows, "jobs": []}
    events = [{"type": "snapshot", "data": first}, {"type": "snapshot", "data": again}]
    change = {"type": "fellows", "data": {"changed": [rows[0]], "gone": []}}
    state = reduced(page, *events, change)
    order = [row["fellow_id"] for row in state["fellows"]["rows"]]
    assert order == [rows[2]["fellow_id"], rows[0]["fellow_id"], rows[1]["fellow_id"]]
    gone = {"type": "fellows", "data": {"changed": [], "gone": [rows[0]["fellow_id"]]}}
    assert len(reduced(page, *events, gone)["fellows"]["rows"]) == 2


def test_runs_are_listed_active_first_then_the_newest(page: Page) -> None:
    ages = [
        ("j-aaaaaaaa", "completed", 5),
        ("j-bbbbbbbb", "running", 1),
        ("j-cccccccc", "failed", 9),
    ]
    rows = [
        row_of(a_job(name, state=state, created_at=float(at))).model_dump()
        for name, state, at in ages
    ]
    order = call(page, "store.js", "m.sortedJobs(a).map((row) => row.job_id)", *rows)
    assert order == ["j-bbbbbbbb", "j-cccccccc", "j-aaaaaaaa"]


def test_five_thousand_lines_are_kept(page: Page) -> None:
    script = """(() => {
      const rows = Array.from({length: 5200}, (_, n) =>
        ({at: n, stage: 0, level: n % 10 ? 'info' : 'error', untrusted_text: `line ${n}`}));
      const start = m.reduce(m.initial(null), {type: 'pick', jobId: 'j-aaaaaaaa'});
      const {log} = m.reduce(start, {type: 'logs', jobId: 'j-aaaaaaaa', rows});
      return [log.lines.length, log.lines[0].untrusted_text, log.errors];
    })()"""
    assert call(page, "store.js", script) == [5000, "line 200", 520]


def test_axis_numbers_are_round_and_inside(page: Page) -> None:
    assert call(page, "scale.js", "m.ticks(3.17, 3.62, 5)") == [3.2, 3.3, 3.4, 3.5, 3.6]
    assert call(page, "scale.js", "m.ticks(3.2, 5.7, 5)") == [3.5, 4, 4.5, 5, 5.5]
    assert call(page, "scale.js", "m.wholeTicks(1, 3, 10)") == [1, 2, 3]
    assert call(page, "scale.js", "m.path([[0, 1], [1, null], [2, 3]])") == "M0.0 1.0M2.0 3.0"
