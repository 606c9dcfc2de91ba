"""The pictures of the documentation: pages as a new user finds them, and made from them.

    WRITE_PICTURES=1 python -m pytest tests/browser/test_pictures.py    writes docs/pictures

What a clock or a port would change in them is written over, so that a picture changes when its
page does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import GROUP, TOPIC, fill, new_site
from tests.browser.visitor import Visitor
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "pictures"
WRITES = os.environ.get("WRITE_PICTURES") == "1"
MAX_BYTES = 150_000
SIZE = (1000, 700)
PNG = b"\x89PNG\r\n\x1a\n"
# Times are the only text that differs from one run to the next.
STILL = """() => {
  let seconds = 0;
  for (const time of document.querySelectorAll("time")) {
    seconds += 1;
    time.textContent = `2026-11-01 09:00:${String(seconds).padStart(2, "0")}.000Z`;
  }
}"""


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router that has what the pages of the table show, and nothing else."""
    stack = new_site(tmp_path_factory.mktemp("pictured"))
    stack.start()
    fill(stack)
    yield stack
    stack.stop()


def show_topics(page: Page) -> None:
    page.goto("/console/topics")
    expect(page.get_by_role("table", name="Topics").get_by_role("row")).to_have_count(6)


def show_publish(page: Page) -> None:
    page.goto(f"/console/topics/{TOPIC}")
    page.get_by_role("combobox", name="Format", exact=True).select_option("JSON")
    page.get_by_role("textbox", name="Message", exact=True).fill(
        '[\n  {"id": 1012, "customer": "anna", "country": "FI"},\n'
        '  {"id": 1013, "customer": "bob", "country": "DE"}\n]'
    )


def show_messages(page: Page) -> None:
    page.goto(f"/console/topics/{TOPIC}?tab=messages")
    expect(page.get_by_role("log", name="Live messages").get_by_role("article")).to_have_count(13)
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()


def show_reset(page: Page) -> None:
    page.goto("/console/groups")
    row = page.get_by_role("table", name="Groups").get_by_role("row").filter(has_text=GROUP)
    row.get_by_role("button", name="Reset").click()
    expect(page.get_by_role("dialog").get_by_role("status")).not_to_be_empty()


def show_settings(page: Page) -> None:
    page.goto("/console/settings?q=heartbeat")
    expect(page.get_by_role("table", name="Settings")).to_be_visible()


PICTURES: dict[str, Callable[[Page], None]] = {
    "topics": show_topics,
    "publish": show_publish,
    "messages": show_messages,
    "reset": show_reset,
    "settings": show_settings,
}


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_of_a_page_that_works(browser: Browser, pictured: Stack, name: str) -> None:
    size = {"width": SIZE[0], "height": SIZE[1]}
    with Visitor(browser, pictured.url, viewport=size, color_scheme="light") as visitor:
        page = visitor.page()
        PICTURES[name](page)
        page.evaluate(STILL)
        made = page.screenshot(animations="disabled", caret="hide")
        visitor.check()
    assert len(made) <= MAX_BYTES
    kept = FOLDER / f"{name}.png"
    if WRITES:
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(made)
    found = kept.read_bytes()
    assert found.startswith(PNG)
    assert len(found) <= MAX_BYTES
    assert f"(pictures/{name}.png)" in (ROOT / "docs" / "console.md").read_text(encoding="utf-8")


def test_readme_shows_a_picture() -> None:
    assert "(docs/pictures/messages.png)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert {file.stem for file in FOLDER.glob("*.png")} == set(PICTURES)
