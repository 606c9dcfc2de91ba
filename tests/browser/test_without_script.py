"""The console in a browser that runs no script: what can be done by forms and links is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.visitor import Visitor
from tests.system.stack import Stack
from tests.system.traffic import poll

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC = "plain"


@pytest.fixture
def page(browser: Browser, site: Stack) -> Iterator[Page]:
    with Visitor(browser, site.url, java_script_enabled=False) as visitor:
        yield visitor.page()
        visitor.check()


def test_topic_is_created_filled_searched_and_its_group_reset(page: Page, site: Stack) -> None:
    page.goto("/")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Topics").click()
    page.get_by_role("button", name="Create topic").click()
    page.get_by_role("textbox", name="Name").fill(TOPIC)
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(TOPIC)
    publish(page)
    search(page)
    assert poll(site, f"{TOPIC}/readers/1", 5).json == ["one", "two", "three"]
    reset(page)
    assert poll(site, f"{TOPIC}/readers/1", 5).json == ["one", "two", "three"]


def test_form_that_is_refused_is_corrected_on_its_page(browser: Browser, site: Stack) -> None:
    with Visitor(browser, site.url, java_script_enabled=False) as visitor:
        visitor.expect_status(400)
        page = visitor.page()
        page.goto("/console/topics?dialog=create")
        page.get_by_role("textbox", name="Name").fill("corrected")
        page.get_by_role("textbox", name="Retention").fill("a while")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("retention")
        retention = page.get_by_role("textbox", name="Retention")
        expect(retention).to_have_attribute("aria-invalid", "true")
        retention.fill("7d")
        page.get_by_role("button", name="Send again").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("corrected")
        visitor.check()


def publish(page: Page) -> None:
    page.get_by_role("tab", name="Publish").click()
    page.get_by_role("combobox", name="Format").select_option("Text")
    page.get_by_role("textbox", name="Message").fill("one\ntwo\nthree")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("3")


def search(page: Page) -> None:
    page.get_by_role("tab", name="Messages").click()
    shown = page.get_by_role("log", name="Live messages").get_by_role("article")
    expect(shown).to_have_count(3)
    page.get_by_role("searchbox", name="Filter").fill("tw")
    page.get_by_role("button", name="Apply").click()
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("two")
    with page.expect_download() as started:
        page.get_by_role("button", name="Export", exact=True).click()
    assert len(started.value.path().read_text().splitlines()) == 1


def reset(page: Page) -> None:
    page.get_by_role("link", name="Groups", exact=True).click()
    row = page.get_by_role("table", name="Groups").get_by_role("row").filter(has_text=TOPIC)
    expect(row.get_by_role("cell").nth(2)).to_have_text("0")
    row.get_by_role("button", name="Reset").click()
    page.get_by_role("combobox", name="To").select_option("Earliest")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("status")).to_contain_text("3")
    page.get_by_role("button", name="Reset position").click()
    expect(row.get_by_role("cell").nth(2)).to_have_text("3")
