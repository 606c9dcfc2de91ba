"""Every page by axe's rules, in both themes, and on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.pages import PAGES, Entry, Routers, opened

pytestmark = [pytest.mark.system, pytest.mark.slow]

AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
VIOLATIONS = """async () => (await axe.run()).violations.flatMap(
  (rule) => rule.nodes.map((node) => `${rule.id}: ${node.target} ${node.failureSummary}`))"""
NARROW = 360
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.fixture(scope="module", params=PAGES, ids=lambda entry: entry.name)
def page(request: pytest.FixtureRequest, browser: Browser, routers: Routers) -> Iterator[Page]:
    """A page of the table, with its dialog open; both tests of it share it."""
    entry: Entry = request.param
    with routers.visitor(browser, entry.viewer) as visitor:
        yield opened(visitor, entry)


def test_axe_finds_nothing_in_either_theme(page: Page) -> None:
    page.evaluate(AXE)
    grounds = set()
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        grounds.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        found = page.evaluate(VIOLATIONS)
        assert not found, (theme, found)
    assert len(grounds) == len(THEMES)


def test_narrow_screen_scrolls_in_one_direction_and_axe_finds_nothing(page: Page) -> None:
    page.set_viewport_size({"width": NARROW, "height": 700})
    wide = page.evaluate(
        """(width) => [...document.querySelectorAll("body *")].filter((found) =>
             found.getBoundingClientRect().right > width + 1 && !found.closest(".scroll, pre")
           ).map((found) => found.outerHTML.slice(0, 100))""",
        NARROW,
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, wide
    page.emulate_media(color_scheme="dark")
    page.evaluate(AXE)
    assert not page.evaluate(VIOLATIONS)
