"""The console without a mouse: each control is reached, works, and dialogs give the focus back."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.stack import Stack
from tests.system.traffic import poll

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC = "typed"
MAX_STEPS = 60
FOCUSED = "(found) => found === document.activeElement"


def walk_to(page: Page, wanted: Locator, key: str = "Tab") -> None:
    """Press a key until the focus is where it is wanted, and seen there."""
    for _ in range(MAX_STEPS):
        if wanted.count() == 1 and wanted.evaluate(FOCUSED):
            width = wanted.evaluate("(found) => parseFloat(getComputedStyle(found).outlineWidth)")
            assert width >= 2, "the focus is seen"
            return
        page.keyboard.press(key)
    raise AssertionError(f"{wanted} is not reached by {key}")


def test_topic_is_created_filled_and_its_group_reset(page: Page, site: Stack) -> None:
    page.goto("/console/topics")
    create(page)
    publish(page)
    assert poll(site, f"{TOPIC}/readers/1", 5).json == ["hello", "world"]
    reset(page)
    assert poll(site, f"{TOPIC}/readers/1", 5).json == ["hello", "world"]


def create(page: Page) -> None:
    opener = page.get_by_role("button", name="Create topic")
    walk_to(page, opener)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("textbox", name="Name")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("textbox", name="Name")).to_be_focused()
    page.keyboard.type(TOPIC)
    walk_to(page, dialog.get_by_role("textbox", name="Partitions"))
    page.keyboard.type("1")
    walk_to(page, dialog.get_by_role("button", name="Create", exact=True))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(TOPIC)


def publish(page: Page) -> None:
    walk_to(page, page.get_by_role("tab", name="Publish"))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Messages")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    walk_to(page, page.get_by_role("combobox", name="Format"))
    page.keyboard.type("Text")
    walk_to(page, page.get_by_role("textbox", name="Message"))
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    page.keyboard.type("world")
    walk_to(page, page.get_by_role("button", name="Publish", exact=True))
    page.keyboard.press("Space")
    expect(page.get_by_role("status")).to_contain_text("2")


def reset(page: Page) -> None:
    page.goto(f"/console/groups?topic={TOPIC}")
    opener = page.get_by_role("table", name="Groups").get_by_role("button", name="Reset")
    walk_to(page, opener)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    place = dialog.get_by_role("combobox", name="To")
    walk_to(page, place)
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    walk_to(page, place)
    page.keyboard.type("Earliest")
    expect(dialog.get_by_role("status")).to_contain_text("2")
    walk_to(page, dialog.get_by_role("button", name="Reset position"))
    page.keyboard.press("Enter")
    row = page.get_by_role("table", name="Groups").get_by_role("row").filter(has_text=TOPIC)
    expect(row.get_by_role("cell").nth(2)).to_have_text("2")


def test_first_stop_skips_to_the_content(page: Page) -> None:
    page.goto("/console/")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.get_by_role("main").evaluate("(found) => found.contains(document.activeElement)")
