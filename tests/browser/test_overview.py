"""The first page in a browser: a first visit, and what a router does as charts under a pointer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.pages import Routers, new_site
from tests.browser.visitor import Visitor
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router without topics."""
    stack = new_site(tmp_path_factory.mktemp("empty"))
    stack.start()
    yield stack
    stack.stop()


@pytest.mark.parametrize("script", [True, False])
def test_first_visit_leads_to_a_message(browser: Browser, empty: Stack, script: bool) -> None:
    with Visitor(browser, empty.url, java_script_enabled=script) as visitor:
        page = visitor.page()
        page.goto("/")
        expect(page.get_by_role("heading", name="Start here")).to_be_visible()
        expect(page.get_by_text(f"{empty.url}/events/orders")).to_be_visible()
        page.get_by_role("button", name="Publish a sample message to orders").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("orders")
        expect(page.get_by_role("status")).to_contain_text("1")
        page.goto("/console/")
        expect(page.get_by_role("heading", name="Start here")).to_have_count(0)
        expect(page.get_by_role("heading", name="Most traffic")).to_be_visible()
        visitor.check()


def test_chart_says_what_is_under_the_pointer(browser: Browser, routers: Routers) -> None:
    with Visitor(browser, routers.site.url) as visitor:
        page = visitor.page()
        page.goto("/console/?span=15m")
        chart = page.locator("figure").filter(has_text="Messages a second")
        chart.locator(".area").hover()
        expect(chart.locator(".tip")).to_contain_text("In ")
        page.get_by_role("heading", level=1).hover()
        expect(chart.locator(".tip")).to_be_hidden()
        times = page.get_by_role("navigation", name="Time")
        times.get_by_role("link", name="24h").click()
        expect(times.locator("[aria-current]")).to_have_text("24h")
        visitor.check()
