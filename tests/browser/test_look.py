"""How pages look: the theme that a user chooses, and how much of a screen is what they came for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import CONSUMER, DEAD, STREAM, TOPIC, Routers
from tests.browser.visitor import Visitor
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]

GROUND = "getComputedStyle(document.documentElement).backgroundColor"
DOCS_GROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(247, 248, 250)", "rgb(13, 17, 23)"
MIN_ROWS = 20
# Of the texts in a heading and in the first cell below it, but not of a chart beside a number.
RIGHT_EDGES = """(table) => {
  const right = (cell) => {
    const text = document.createRange();
    text.selectNodeContents(cell.querySelector("button") ?? cell);
    return text.getBoundingClientRect().right;
  };
  const [head, row] = table.rows;
  return [...head.cells].map((cell, n) => [cell, row.cells[n]])
    .filter(([cell, below]) => cell.classList.contains("number") && !below.querySelector("svg"))
    .map((both) => both.map(right));
}"""
TOP = "(found) => found.getBoundingClientRect().top"
LEFT = "(found) => found.getBoundingClientRect().left"


@pytest.fixture
def plain(browser: Browser, site: Stack) -> Iterator[Page]:
    """A page of a browser that runs no script."""
    with Visitor(browser, site.url, java_script_enabled=False, color_scheme="light") as visitor:
        yield visitor.page()
        visitor.check()


def choose(page: Page, name: str) -> None:
    page.get_by_role("form", name="Theme").get_by_role("button", name=f"{name} theme").click()


def test_theme_is_chosen_at_once_and_kept(page: Page, site: Stack) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/console/topics?q=none")
    assert page.evaluate(GROUND) == LIGHT
    with page.expect_response("**/console/theme"):
        choose(page, "Dark")
    assert page.evaluate(GROUND) == DARK
    page.goto("/console/groups")
    assert page.evaluate(GROUND) == DARK
    page.goto(f"{site.url}/docs")
    assert page.evaluate(DOCS_GROUND) == DARK
    page.goto("/console/groups")
    with page.expect_response("**/console/theme"):
        choose(page, "System")
    assert page.evaluate(GROUND) == LIGHT
    schemes: tuple[tuple[Literal["light", "dark"], str], ...] = (("dark", DARK), ("light", LIGHT))
    for scheme, ground in schemes:
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(GROUND) == ground


def test_theme_is_chosen_without_script(plain: Page, site: Stack) -> None:
    plain.goto("/console/groups?q=none")
    choose(plain, "Dark")
    expect(plain).to_have_url(f"{site.url}/console/groups?q=none")
    pressed = plain.get_by_role("button", name="Dark theme")
    expect(pressed).to_have_attribute("aria-pressed", "true")
    expect(plain.locator("html")).to_have_css("background-color", DARK)


def test_twenty_topics_stand_above_the_fold(browser: Browser, routers: Routers) -> None:
    size = {"width": 1280, "height": 800}
    with Visitor(browser, routers.site.url, viewport=size) as visitor:
        page = visitor.page()
        page.goto("/console/topics")
        row = page.get_by_role("table", name="Topics").locator("tbody tr").first
        box = row.bounding_box()
        assert box is not None
        assert box["y"] + MIN_ROWS * box["height"] <= size["height"]
        visitor.check()


def test_numbers_stand_under_their_headings(page: Page, routers: Routers) -> None:
    page.goto("/console/topics")
    table = page.get_by_role("table", name="Topics")
    expect(table.get_by_role("button", name="Messages")).to_be_visible()  # it sorts by this column
    found = table.evaluate(RIGHT_EDGES)
    assert len(found) == 5
    assert all(abs(heading - number) < 1 for heading, number in found), found


def test_link_of_a_topic_leads_to_its_messages(page: Page, routers: Routers) -> None:
    page.goto(f"/console/topics?q={TOPIC}")
    page.get_by_role("link", name=TOPIC, exact=True).click()
    expect(page.get_by_role("tab", name="Messages")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("log", name="Live messages")).to_be_visible()


def test_navigation_shows_the_page_on_a_narrow_screen(page: Page, routers: Routers) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/console/settings")
    link = page.get_by_role("navigation", name="Main").get_by_role("link", name="Settings")
    expect(link).to_be_in_viewport(ratio=0.9)


@pytest.mark.parametrize(
    ("path", "heading"),
    [
        (f"/console/topics/{TOPIC}?tab=settings", "Change this topic"),
        (f"/console/streams/{STREAM}", "Configuration"),
        (f"/console/streams/{STREAM}/consumers/{CONSUMER}", "Configuration"),
    ],
)
def test_settings_stand_beside_the_state_on_a_wide_screen(
    page: Page, routers: Routers, path: str, heading: str
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(path)
    state, second = (page.get_by_role("heading", name=name) for name in ("State", heading))
    assert second.evaluate(LEFT) > 640
    assert second.evaluate(TOP) == state.evaluate(TOP)


def test_dead_letters_stand_close_to_their_buttons(page: Page, routers: Routers) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"/console/dead-letters/{DEAD}")
    assert page.get_by_role("table", name="Dead letters").evaluate(TOP) <= 220


def test_reasons_and_the_help_of_filters_fit_a_narrow_screen(page: Page, routers: Routers) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/console/dead-letters/{DEAD}")
    dead_letter = page.get_by_role("table", name="Dead letters").get_by_role("row").nth(1)
    reason = dead_letter.get_by_role("cell").nth(1)
    box = reason.bounding_box()
    assert box is not None
    assert box["width"] >= 180
    assert box["x"] + box["width"] <= 390
    page.goto(f"/console/topics/{TOPIC}?tab=messages")
    page.locator("summary[aria-label='How filters are written']").click()
    help_table = page.get_by_role("table", name="How filters are written")
    expect(help_table).to_be_visible()
    edges = help_table.evaluate("""(table) => [...table.querySelectorAll("code, td")]
        .map((part) => part.getBoundingClientRect().right)""")
    assert max(edges) <= 390


@pytest.mark.parametrize(("width", "height", "most"), [(1280, 800, 150), (390, 844, 200)])
def test_tab_of_a_topic_begins_high_on_the_page(
    browser: Browser, routers: Routers, width: int, height: int, most: int
) -> None:
    viewport = {"width": width, "height": height}
    with Visitor(browser, routers.site.url, viewport=viewport) as visitor:
        page = visitor.page()
        for tab in ("publish", "messages", "groups", "settings"):
            page.goto(f"/console/topics/{TOPIC}?tab={tab}")
            assert page.get_by_role("tabpanel").evaluate(TOP) <= most
        visitor.check()


@pytest.mark.parametrize(
    ("path", "lit"),
    [
        (f"/console/topics/{TOPIC}?tab=groups", "Topics"),
        (f"/console/topics/{TOPIC}/groups/billing", "Groups"),
        (f"/console/topics/{TOPIC}/groups/billing/reset", "Groups"),
        (f"/console/dead-letters/{TOPIC}.dlq", "Groups"),
        ("/console/streams/shipments/consumers/worker", "Streams"),
    ],
)
def test_navigation_says_where_a_page_is(
    browser: Browser, routers: Routers, path: str, lit: str
) -> None:
    with Visitor(browser, routers.site.url) as visitor:
        page = visitor.page()
        page.goto(path)
        current = page.get_by_role("navigation", name="Main").locator("[aria-current]")
        expect(current).to_have_text(lit)
        expect(page.get_by_role("navigation", name="Back")).to_be_visible()
        visitor.check()
