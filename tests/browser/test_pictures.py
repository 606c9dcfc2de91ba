"""The pictures of the documentation, and of every page: of a router that `router demo` filled.

WRITE_PICTURES=1 python -m pytest tests/browser/test_pictures.py    writes docs/pictures, and
                    every page, wide and narrow, light and dark, to .cache/pictures
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from router.broker.activity.history import DAY_MINUTES, MINUTE_MS, ActivitySample, MinuteFile
from router.broker.activity.recorder import FILE
from router.cli.demo_run import ALARMS, BILLING, DEVICES, ORDERS, TOPICS
from tests.browser import png
from tests.browser.pages import (
    ANYBODY,
    CONSUMER,
    PAGES,
    RUN,
    STATUSES,
    STREAM,
    TOPIC,
    Entry,
    new_site,
    opened,
    pipeline,
)
from tests.browser.visitor import Visitor
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "pictures"
WRITES = os.environ.get("WRITE_PICTURES") == "1"
MAX_BYTES, MAX_MOVING_BYTES, MAX_ALL_BYTES = 150_000, 700_000, 1_400_000
WIDE, NARROW, MOVING = (1280, 800), (390, 844), (1024, 640)
MOVIE = "first-message"
# What the demo fills most; all pages fit narrow screens by test_accessible.
FULL = {"topics", "messages-tree", "group", "dead-letter-topic", "streams"}
DEMO_PAGES = [e for e in PAGES if e.viewer == ANYBODY and (WRITES or e.name in FULL)]
ALL = ROOT / ".cache" / "pictures"
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router of a day, filled by `router demo`, with pipelines."""
    stack = new_site(tmp_path_factory.mktemp("pictured"))
    record_a_day(stack.folder / "data")
    stack.start()
    command = [sys.executable, "-m", "router", "demo", "--server", stack.url]
    subprocess.run([*command, "--seed", "7", "--for", "1s"], check=True, timeout=60)
    pipeline(stack, "archive", "", {"state": "running", "sinks": {"files": RUN}})
    pipeline(stack, "report", "", {"state": "failed", "error": "FileNotFoundError: rates.csv"})
    with contextlib.ExitStack() as ending:
        ending.callback(stack.stop)
        if WRITES:  # pictures show traffic
            demo = subprocess.Popen([*command, "--seed", "8", "--rate", "60", "--for", "10m"])
            ending.callback(demo.wait)
            ending.callback(demo.terminate)
        yield stack


def of_the_demo(entry: Entry) -> Entry:
    """Return a page of the table, of what the demo makes."""
    path, heading = entry.path, entry.heading
    for name, demo in (
        (TOPIC, ORDERS),
        (STREAM, DEVICES),
        (CONSUMER, ALARMS),
        ("anna", "tea"),
        ("orders.*,payments", "demo-*"),
    ):
        path, heading = path.replace(name, demo), heading.replace(name, demo)
    return replace(entry, path=path, heading=heading)


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
    until = time.monotonic() + 30
    while WRITES and time.monotonic() < until:  # the broker counts traffic every 10 seconds
        activity = page.request.get("/console?format=json").json()["activity"]
        if len(activity["topics"]) == len(TOPICS):
            break
    page.goto("/console/?span=24h")
    expect(page.get_by_role("heading", name="Largest lag")).to_be_visible()


def show_topics(page: Page) -> None:
    page.goto("/console/topics")
    rows = page.get_by_role("table", name="Topics").get_by_role("row")
    expect(rows).to_have_count(1 + len(TOPICS))


def show_publish(page: Page) -> None:
    page.goto(f"/console/topics/{ORDERS}?tab=publish")
    page.get_by_role("combobox", name="Format", exact=True).select_option("JSON")
    page.get_by_role("textbox", name="Message", exact=True).fill(
        '[\n  {"id": 4012, "customer": "anna", "country": "FI", "cents": 450},\n'
        '  {"id": 4013, "customer": "bob", "country": "DE", "cents": 3990}\n]'
    )
    latest = page.get_by_role("log", name="Latest messages")
    expect(latest.get_by_role("article")).not_to_have_count(0)


def show_messages(page: Page) -> None:
    page.goto(f"/console/topics/{ORDERS}?tab=messages")
    expect(page.get_by_role("log", name="Live messages").get_by_role("article")).not_to_have_count(
        0
    )
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()


def show_reset(page: Page) -> None:
    page.goto("/console/groups")
    row = page.get_by_role("table", name="Groups").get_by_role("row").filter(has_text=BILLING)
    row.get_by_role("button", name="Reset").click()
    expect(page.get_by_role("dialog").get_by_role("status")).not_to_be_empty()


def show_settings(page: Page) -> None:
    page.goto("/console/settings?q=heartbeat")
    expect(page.get_by_role("table", name="Settings")).to_be_visible()


class Shown(NamedTuple):
    """How a page is brought to what its picture shows, and on which screen."""

    show: Callable[[Page], None]
    size: tuple[int, int] = WIDE
    theme: Literal["light", "dark"] = "light"


PICTURES = {
    "overview": Shown(show_overview, theme="dark"),
    "topics": Shown(show_topics),
    "publish": Shown(show_publish),
    "messages": Shown(show_messages),
    "narrow": Shown(show_messages, NARROW, "dark"),
    "reset": Shown(show_reset),
    "settings": Shown(show_settings),
}


def viewport(size: tuple[int, int]) -> ViewportSize:
    return {"width": size[0], "height": size[1]}


def shot(page: Page) -> bytes:
    """Return what a page shows."""
    return page.screenshot(animations="disabled", caret="hide")


def keep(name: str, frames: Sequence[png.Frame]) -> None:
    """Write a picture, if pictures are written; the one that is kept must be small, and shown."""
    kept = FOLDER / f"{name}.png"
    if WRITES:
        kept.write_bytes(png.write(frames))
    found = kept.read_bytes()
    assert found.startswith(png.SIGNATURE)
    assert len(found) <= (MAX_BYTES if name in PICTURES else MAX_MOVING_BYTES)
    assert f"(pictures/{name}.png)" in (ROOT / "docs" / "console.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_of_a_page_that_works(browser: Browser, pictured: Stack, name: str) -> None:
    shown = PICTURES[name]
    options = {"viewport": viewport(shown.size), "color_scheme": shown.theme}
    with Visitor(browser, pictured.url, **options) as visitor:
        page = visitor.page()
        shown.show(page)
        made = shot(page)
        visitor.check()
    keep(name, [png.read(made)] if WRITES else [])


def test_moving_picture_is_of_a_first_message_a_search_and_one_sent_again(
    browser: Browser, pictured: Stack
) -> None:
    with Visitor(browser, pictured.url, viewport=viewport(MOVING)) as visitor:
        page = visitor.page()
        made = [(shot(page), ms) for ms in tell(page)]
        visitor.check()
    keep(MOVIE, [png.read(*one) for one in made] if WRITES else [])


def tell(page: Page) -> Iterator[int]:
    """Do it step by step; yields for how many ms a picture of each step is shown."""
    page.goto("/console/topics")
    page.get_by_role("button", name="Create topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("greetings")
    yield 1500
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("greetings")
    message = page.get_by_role("textbox", name="Message", exact=True)
    message.fill('{"hello": "world"}')
    yield 1500
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("1")
    yield 1500
    page.get_by_role("tab", name="Messages").click()
    expect(page.get_by_role("article")).to_contain_text("world")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    yield 2000
    page.goto("/console/topics")
    yield 1000
    page.get_by_role("link", name=ORDERS, exact=True).click()
    lines = page.get_by_role("article")
    expect(lines).not_to_have_count(0)
    yield 1500
    search = page.get_by_role("searchbox").first
    search.fill("key:anna and $.cents > 9000")
    yield 1500
    page.get_by_role("button", name="Apply").click()
    expect(lines.filter(has_not_text="anna")).to_have_count(0)
    expect(page.get_by_text("Checked")).to_be_visible()
    yield 2000
    lines.first.click()
    pane = page.get_by_role("complementary", name="Message")
    expect(pane.get_by_role("region", name="Value")).to_be_visible()
    yield 2500
    pane.get_by_text("Edit and send").click()
    value = pane.get_by_role("textbox", name="Value")
    value.fill(value.input_value().replace('"express": false', '"express": true'))
    pane.get_by_role("button", name="Send", exact=True).scroll_into_view_if_needed()
    yield 2000
    pane.get_by_role("button", name="Send", exact=True).click()
    expect(pane.get_by_role("status")).to_have_text("1 message sent.")
    pane.get_by_role("status").scroll_into_view_if_needed()
    yield 3000


@pytest.mark.parametrize("entry", DEMO_PAGES, ids=lambda entry: entry.name)
def test_page_of_the_demo_fits_each_screen(browser: Browser, pictured: Stack, entry: Entry) -> None:
    with Visitor(browser, pictured.url) as visitor:
        for status in STATUSES.values():
            visitor.expect_status(status)
        page = opened(visitor, of_the_demo(entry))
        for size in (WIDE, NARROW):
            page.set_viewport_size(viewport(size))
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            for theme in THEMES if WRITES else ():
                page.emulate_media(color_scheme=theme)
                ALL.mkdir(parents=True, exist_ok=True)
                page.screenshot(path=ALL / f"{entry.name}-{size[0]}-{theme}.png")
        visitor.check()


def test_readme_shows_pictures_that_are_small() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"(docs/pictures/{MOVIE}.png)" in readme
    assert "(docs/pictures/overview.png)" in readme
    files = list(FOLDER.glob("*.png"))
    assert {file.stem for file in files} == {*PICTURES, MOVIE}
    assert sum(file.stat().st_size for file in files) <= MAX_ALL_BYTES
