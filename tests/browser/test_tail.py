"""The live tail under load: every message once and in order, and a page that stays small."""

from __future__ import annotations

import os
import re
import time

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.visitor import Visitor
from tests.servers.proxy import TcpProxy
from tests.system.stack import Stack
from tests.system.traffic import create, post

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

RATE = 1_000
SECONDS = int(os.environ.get("SOAK_TAIL_SECONDS", "10"))
POSTS_A_SECOND = 10
MAX_ARTICLES = 500
STORED = 100_000
POST_LINES = 20_000
# What the page's own EventSource hands to the page, beside it.
NOTE_EVENTS = """
window.seen = [];
const listen = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (kind, ...rest) {
  if (kind === "message") {
    listen.call(this, kind, (event) => window.seen.push(Number(JSON.parse(event.data).value)));
  }
  return listen.call(this, kind, ...rest);
};
"""
SHOWN = """(log) => [...log.querySelectorAll("article pre")].map((found) => found.textContent)"""


def open_tail(page: Page, topic: str) -> Locator:
    """Open a topic's messages and wait until the tail is live; return the log."""
    page.goto(f"/console/topics/{topic}?tab=messages")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    return page.get_by_role("log", name="Live messages")


def newest_first(first: int, count: int) -> list[str]:
    return lines(first, count).split("\n")[::-1]


def lines(first: int, count: int) -> str:
    return "\n".join(map(str, range(first, first + count)))


def test_thousand_messages_a_second_come_whole(visitor: Visitor, site: Stack) -> None:
    create(site, "burst", 1)
    visitor.context.add_init_script(NOTE_EVENTS)
    page = visitor.page()
    log = open_tail(page, "burst")
    step = RATE // POSTS_A_SECOND
    began = time.monotonic()
    most = 0
    for number in range(SECONDS * POSTS_A_SECOND):
        assert post(site, "burst", lines(number * step, step)).status == 200
        if number % POSTS_A_SECOND == 0:
            most = max(most, log.get_by_role("article").count())
        ahead = began + (number + 1) / POSTS_A_SECOND - time.monotonic()
        page.wait_for_timeout(max(0.0, ahead) * 1000)
    expect(page.get_by_text(f"{RATE * SECONDS} received", exact=True)).to_be_visible()
    assert page.evaluate("window.seen") == list(range(RATE * SECONDS))
    expect(log.get_by_role("article")).to_have_count(MAX_ARTICLES)
    assert most <= MAX_ARTICLES
    assert log.evaluate(SHOWN) == newest_first(RATE * SECONDS - MAX_ARTICLES, MAX_ARTICLES)


def test_pause_holds_the_page_and_resume_shows_the_newest(page: Page, site: Stack) -> None:
    create(site, "held", 1)
    log = open_tail(page, "held")
    post(site, "held", lines(0, 3))
    expect(log.get_by_role("article")).to_have_count(3)
    page.get_by_role("button", name="Pause").click()
    post(site, "held", lines(3, 700))
    expect(page.get_by_text("703 received", exact=True)).to_be_visible()
    expect(log.get_by_role("article")).to_have_count(3)
    page.get_by_role("button", name="Resume").click()
    expect(log.get_by_role("article")).to_have_count(MAX_ARTICLES)
    assert log.evaluate(SHOWN) == newest_first(703 - MAX_ARTICLES, MAX_ARTICLES)


def test_tail_goes_on_where_it_was_when_the_connection_is_lost(
    browser: Browser, site: Stack
) -> None:
    create(site, "cut", 1)
    address = f"127.0.0.1:{site.port}"
    with TcpProxy(address) as proxy, Visitor(browser, f"http://127.0.0.1:{proxy.port}") as visitor:
        visitor.context.add_init_script(NOTE_EVENTS)
        page = visitor.page()
        log = open_tail(page, "cut")
        post(site, "cut", lines(0, 100))
        expect(page.get_by_text("100 received", exact=True)).to_be_visible()
        proxy.cut()
        expect(page.get_by_role("status").filter(has_text="Connecting again")).to_be_visible()
        post(site, "cut", lines(100, 100))
        proxy.heal()
        expect(page.get_by_text("200 received", exact=True)).to_be_visible()
        assert page.evaluate("window.seen") == list(range(200))
        expect(log.get_by_role("article")).to_have_count(200)


def test_topic_of_many_messages_opens_like_any_other(visitor: Visitor, site: Stack) -> None:
    for topic, count in (("few", 100), ("many", STORED)):
        create(site, topic, 1)
        for first in range(0, count, POST_LINES):
            size = min(count, POST_LINES)
            assert post(site, topic, lines(first, size)).json["count"] == size
    few, many = (opened_bytes(visitor, topic) for topic in ("few", "many"))
    assert many < few * 1.1
    page = visitor.page()
    log = open_tail(page, "many")
    assert log.evaluate(SHOWN)[0] == str(STORED - 1)
    page.get_by_role("searchbox", name="Filter").fill("needle")
    expect(log.locator("article:visible")).to_have_count(0)
    post(site, "many", "a needle")
    expect(log.locator("article:visible")).to_have_text(re.compile("a needle"))
    assert log.get_by_role("article").count() <= MAX_ARTICLES


def opened_bytes(visitor: Visitor, topic: str) -> int:
    """Return how large the page of a topic's messages is."""
    answer = visitor.page().goto(f"/console/topics/{topic}?tab=messages")
    assert answer is not None
    return len(answer.body())
