"""The pictures of the documentation: pages as a new user finds them, and made from them.

    WRITE_PICTURES=1 python -m pytest tests/browser/test_pictures.py    writes docs/pictures

What a clock or a port would change in them is written over, so that a picture changes when its
page does.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from router.broker.activity.history import DAY_MINUTES, MINUTE_MS, ActivitySample, MinuteFile
from router.broker.activity.recorder import FILE
from tests.browser.pages import GROUP, TOPIC, fill, new_site
from tests.browser.visitor import Visitor
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "pictures"
WRITES = os.environ.get("WRITE_PICTURES") == "1"
MAX_BYTES = 150_000
SIZE = (1280, 800)
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
    record_a_day(stack.folder / "data")
    stack.start()
    fill(stack)
    yield stack
    stack.stop()


def record_a_day(folder: Path) -> None:
    """Write a history of the broker: busier by day than by night, with a lag now and then."""
    folder.mkdir()
    file, now = MinuteFile(folder / FILE), time.time_ns() // 1_000_000
    for minute in range(DAY_MINUTES):
        day = 1 - math.cos(2 * math.pi * minute / DAY_MINUTES)
        noise = 1 + 0.1 * math.sin(minute * 1.7) + 0.06 * math.sin(minute * 0.31)
        behind = max(0.0, math.sin(minute / 97) - 0.8) * 9_000
        file.write(
            ActivitySample(
                at=float(now - (DAY_MINUTES - minute) * MINUTE_MS),
                messages_in=300 * day * noise,
                messages_out=280 * day * noise,
                lag=behind * noise,
                lag_seconds=behind / 60,
                sync_ms=5.0 if noise < 1.1 else 10.0,
                log_bytes=2e9 + 1e6 * minute,
                pulsar=2.0,
                kafka=6.0 + 4 * (day > 1),
                nats=3.0 + (day > 1.5),
            )
        )


def show_overview(page: Page) -> None:
    if WRITES:  # a picture shows traffic; the broker counts it every 10 seconds
        until = time.monotonic() + 30
        while time.monotonic() < until:
            page.request.post("/events/payments", data="paid\n" * 4)
            found = page.request.get("/console?format=json").json()["activity"]
            if found["topics"]:
                break
    page.goto("/console/?span=24h")
    expect(page.get_by_role("heading", name="Largest lag")).to_be_visible()


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
    "overview": show_overview,
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
