"""The first minute: somebody who reads no page publishes, watches, finds, resets and exports."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.visitor import Visitor
from tests.system.stack import Stack
from tests.system.traffic import create, poll, post

pytestmark = [pytest.mark.system, pytest.mark.slow]


def tab(page: Page, name: str) -> None:
    """Choose one of a topic's tabs."""
    page.get_by_role("tab", name=name, exact=True).click()


def publish(page: Page, kind: str, message: str, key: str = "") -> None:
    """Fill the form of the tab Publish and send it."""
    page.get_by_role("combobox", name="Format", exact=True).select_option(kind)
    page.get_by_role("textbox", name="Key", exact=True).fill(key)
    page.get_by_role("textbox", name="Message", exact=True).fill(message)
    page.get_by_role("button", name="Publish", exact=True).click()


def log(page: Page) -> Locator:
    return page.get_by_role("log", name="Live messages")


def test_first_minute(visitor: Visitor, site: Stack) -> None:
    visitor.expect_status(400)  # of JSON that is none
    page = visitor.page()
    page.goto("/")
    expect(page).to_have_url(f"{site.url}/console/")
    create_topic(page, "orders", "2")
    live = visitor.page()
    live.goto("/console/topics/orders")
    tab(live, "Messages")
    expect(live.get_by_role("status").filter(has_text="Live")).to_be_visible()
    publish_each_format(page)
    watch(live)
    filter_messages(live)
    export(live)
    replay(live, site)
    group(page, site)
    reset(page, site)


def create_topic(page: Page, name: str, partitions: str) -> None:
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Topics").click()
    expect(page.get_by_role("table", name="Topics")).to_be_visible()
    page.get_by_role("button", name="Create topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill(name)
    dialog.get_by_role("textbox", name="Partitions").fill(partitions)
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def publish_each_format(page: Page) -> None:
    tab(page, "Publish")
    status = page.get_by_role("status")
    publish(page, "Text", "first\nsecond", key="anna")
    expect(status).to_contain_text("2")
    publish(page, "JSON", '[{"id": 1}, {"id": 2}, {"id": 3}]')
    expect(status).to_contain_text("3")
    publish(page, "Cambria", "3.5.bobhello")
    expect(status).to_contain_text("1")
    publish(page, "JSON", "{no")
    expect(status).to_contain_text("JSON")
    expect(page.get_by_text("curl")).to_have_count(0)


def watch(live: Page) -> None:
    expect(live.get_by_text("6 received")).to_be_visible()
    articles = log(live).get_by_role("article")
    expect(articles).to_have_count(6)
    for text in ("first", "second", '"id": 1', '"id": 3', "hello", "anna", "bob"):
        expect(log(live).get_by_text(text).first).to_be_visible()


def filter_messages(live: Page) -> None:
    live.get_by_role("searchbox", name="Filter").fill("bob")
    expect(log(live).locator("article:visible")).to_have_count(1)
    expect(log(live).locator("article:visible")).to_contain_text("hello")


def export(live: Page) -> None:
    with live.expect_download() as started:
        live.get_by_role("button", name="Export", exact=True).click()
    assert started.value.suggested_filename == "orders.ndjson"
    lines = started.value.path().read_text().splitlines()
    (found,) = [json.loads(line) for line in lines]
    assert (found["key"], found["value"]) == ("bob", "hello")


def replay(live: Page, site: Stack) -> None:
    """What matches the filter goes to another topic."""
    create(site, "orders-of-bob", 1)
    live.get_by_role("button", name="Replay", exact=True).click()
    live.get_by_role("textbox", name="To topic").fill("orders-of-bob")
    live.get_by_role("button", name="Replay", exact=True).click()
    expect(live.get_by_role("status")).to_contain_text("1 message")
    live.goto("/console/topics/orders-of-bob?tab=messages")
    expect(log(live).get_by_role("article")).to_have_count(1)
    expect(log(live).get_by_role("article")).to_contain_text("hello")


def group(page: Page, site: Stack) -> None:
    """A poll of a shell's makes a group that has had the two messages of one partition."""
    assert sorted(poll(site, "orders/minute/1", 5).json)[:1]
    while poll(site, "orders/minute/1").json:
        pass
    post(site, "orders", "late")
    page.get_by_role("link", name="Groups", exact=True).click()
    expect(row(page, "minute").get_by_role("cell").nth(2)).to_have_text("1")


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("table", name="Groups").get_by_role("row").filter(has_text=name)


def reset(page: Page, site: Stack) -> None:
    row(page, "minute").get_by_role("button", name="Reset").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox", name="To").select_option("Earliest")
    expect(dialog.get_by_role("status")).to_contain_text("7")
    dialog.get_by_role("button", name="Reset position").click()
    expect(row(page, "minute").get_by_role("cell").nth(2)).to_have_text("7")
    found: list[str] = []
    while batch := poll(site, "orders/minute/1", 1).json:
        found += batch
    assert len(found) == 7
