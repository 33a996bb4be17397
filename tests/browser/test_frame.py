"""The frame of the page: landmarks, words of the header, scope, signed out, refused, no script."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.pool_twin import Leader
from tests.browser.sample_pool import POOL, a_fellow, a_run, training
from transport.api.fellows import FellowRow

FIRST_TAB = "Skip to main content"


def words(page: Page) -> str:
    """The header's status words."""
    status = page.locator("header .status-words")
    expect(status).to_be_visible()
    return status.inner_text()


def some(*statuses: str) -> list[FellowRow]:
    """Machines with these statuses."""
    return [a_fellow(index, status=status) for index, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("fellows", "told"),
    [
        ([], "No fellows connected"),
        (some("ready"), "1 fellow ready"),
        (some("ready", "ready", "ready"), "3 fellows ready"),
        (some("ready", "offline", "offline"), "1 of 3 fellows online"),
        (training()[:2], "Training on 2 fellows"),
    ],
    ids=["none", "one", "three", "some offline", "training"],
)
def test_the_header_says_the_exact_status_words(
    open_page: Open, leader: Leader, fellows: list[FellowRow], told: str
) -> None:
    leader.twin.fellows = fellows
    assert words(open_page()) == told


def test_the_page_has_its_landmarks_and_the_first_tab_is_the_skip_link(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    page = open_page()
    words(page)
    for role in ("banner", "navigation", "main"):
        expect(page.get_by_role(role)).to_have_count(1)
    expect(page.get_by_role("heading", level=1)).to_have_text("Training")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name=FIRST_TAB)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_title_and_navigation_name_the_pool(open_page: Open, leader: Leader) -> None:
    leader.twin.pools = (POOL, "ann/attic")
    page = open_page()
    expect(page).to_have_title(f"Training · {POOL} · Swarm")
    expect(page.get_by_role("link", name="Training", exact=True)).to_have_attribute(
        "href", f"/pools/{POOL}/training"
    )
    expect(page.get_by_role("link", name="ann/attic")).to_have_attribute(
        "href", "/pools/ann/attic/training"
    )
    expect(page.locator("nav [aria-current=page]")).to_have_text("Training")


@pytest.mark.parametrize("path", ["/training", f"/training?pool={POOL}"])
def test_the_address_decides_between_all_pools_and_one(
    open_page: Open, leader: Leader, path: str
) -> None:
    a_run(leader.twin)
    page = open_page(path)
    words(page)
    is_one = "?" in path
    expect(page.locator(".pool-name")).to_have_text(POOL if is_one else "All pools")
    expect(page.get_by_role("row", name=re.compile("atlas")).last).to_be_visible()
    expect(page.get_by_role("columnheader", name="Pool", exact=True)).to_have_count(
        0 if is_one else 1
    )


def test_the_policy_is_strict_and_nothing_comes_from_elsewhere(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    page = open_page("/", signs_in=True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    response = page.goto(leader.url + f"/pools/{POOL}/training")
    assert response is not None
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    words(page)
    assert [url for url in asked if not url.startswith(leader.url)] == []


def test_who_is_signed_out_is_told_how_to_sign_in_and_no_token_is_kept(
    open_page: Open, leader: Leader
) -> None:
    page = open_page(signs_in=False)
    expect(page.get_by_role("heading", name="Signed out")).to_be_visible()
    expect(page.get_by_text("swarm signin")).to_be_visible()
    page.get_by_label("Or paste the link's code").fill(leader.sign_in_code())
    page.get_by_role("button", name="Sign in").click()
    assert words(page) == "No fellows connected"
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == [
        "",
        0,
        0,
    ]


def test_a_session_that_ends_leads_to_the_signed_out_page(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page()
    words(page)
    leader.tell("fellows", is_signed_in=False)
    expect(page.get_by_role("heading", name="Signed out")).to_be_visible()


def test_a_pool_that_is_not_there_is_said_with_what_to_do(open_page: Open) -> None:
    page = open_page("/pools/no/pool/training")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    expect(page.get_by_text("there is no pool 'no/pool' here")).to_be_visible()
    expect(page.get_by_text("pools_list names the pools that you may see")).to_be_visible()


def test_without_javascript_the_page_says_what_to_use_instead(open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    # By selector: roles and texts are not looked for inside noscript.
    told = page.locator("noscript section")
    expect(told).to_be_visible()
    expect(told.locator("h2")).to_have_text("This page needs JavaScript")
    commands = told.locator("code").all_inner_texts()
    assert {"swarm status", "swarm jobs show JOB", "swarm invite"} <= set(commands)


@pytest.mark.parametrize("is_empty", [False, True], ids=["run", "empty"])
def test_at_320_pixels_nothing_scrolls_sideways_but_the_tables(
    open_page: Open, leader: Leader, is_empty: bool
) -> None:
    if not is_empty:
        a_run(leader.twin)
    page = open_page(width=320, height=640)
    words(page)
    if not is_empty:
        expect(page.get_by_role("slider")).to_be_visible()
    wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
    assert wide <= 0
    for region in page.locator(".table-scroll:visible").all():
        assert region.get_attribute("tabindex") == "0"
        assert region.get_attribute("aria-label")


def test_at_twice_the_size_nothing_scrolls_sideways(open_page: Open, leader: Leader) -> None:
    a_run(leader.twin)
    page = open_page(width=640, height=500, device_scale_factor=2)
    words(page)
    assert page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth") <= 0


def test_the_theme_follows_the_system_until_the_button_is_used_and_is_remembered(
    open_page: Open,
) -> None:
    page = open_page(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Switch to the light theme").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    expect(page.get_by_role("button", name="Switch to the dark theme")).to_be_visible()
    assert page.evaluate(ground) == light


def test_reduced_motion_and_forced_colours_keep_the_states_apart(
    open_page: Open, leader: Leader
) -> None:
    a_run(leader.twin)
    page = open_page(forced_colors="active", reduced_motion="reduce")
    words(page)
    lines = page.locator(".line-smooth, .line-fellow")
    expect(lines.first).to_be_visible()
    assert page.evaluate("document.getAnimations().length") == 0
    shapes = page.locator("tbody .state .icon").evaluate_all("all => all.map(one => one.innerHTML)")
    assert len(shapes) == 3


def test_the_two_buttons_show_the_commands_and_give_the_focus_back(open_page: Open) -> None:
    page = open_page()
    words(page)
    opener = page.get_by_role("button", name="New training run")
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Start a training run")
    expect(
        dialog.get_by_text(f"swarm train --config job.json --plan --pool {POOL}")
    ).to_be_visible()
    expect(dialog.get_by_text("/mcp")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()
    page.get_by_role("banner").get_by_role("button", name="Add fellow").click()
    expect(page.get_by_role("dialog").get_by_text(f"swarm invite --pool {POOL}")).to_be_visible()
