"""The pages of the console: what is proved of each is proved of all in this table."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.sync_api import Page, expect

from tests.browser.visitor import Visitor
from tests.system.stack import Stack
from tests.system.traffic import ask, create, poll, post

TOPIC = "orders.europe"
GROUP = "billing"
BINARY = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One page: its name in reports, its path, and its heading."""

    name: str
    path: str
    heading: str
    # The names of a button, and of the dialog that it opens.
    dialog: str = ""


PAGES = (
    Entry("topics", "/console/", "Topics"),
    Entry("topics-found", "/console/topics?q=none-of-these", "Topics"),
    Entry("create", "/console/topics", "Topics", dialog="Create topic"),
    Entry("publish", f"/console/topics/{TOPIC}", TOPIC),
    Entry("messages", f"/console/topics/{TOPIC}?tab=messages", TOPIC),
    Entry("messages-found", f"/console/topics/{TOPIC}?tab=messages&filter=anna", TOPIC),
    Entry("topic-groups", f"/console/topics/{TOPIC}?tab=groups", TOPIC),
    Entry("topic-settings", f"/console/topics/{TOPIC}?tab=settings", TOPIC),
    Entry("groups", "/console/groups", "Groups"),
    Entry("reset-dialog", f"/console/groups?topic={TOPIC}", "Groups", dialog="Reset"),
    Entry("reset", f"/console/topics/{TOPIC}/groups/{GROUP}/reset?to=earliest", "Reset"),
    Entry("pipelines", "/console/pipelines", "Pipelines"),
    Entry("access", "/console/access", "Access"),
    Entry("access-topics", "/console/access/topics", "Access"),
    Entry("access-topic", f"/console/access/topics/{TOPIC}", "Access"),
    Entry("access-keys", "/console/access/keys", "Access"),
    Entry("signin", "/console/signin", "Sign in"),
    Entry("settings", "/console/settings", "Settings"),
    Entry("about", "/console/about", "About"),
    Entry("failure", "/console/topics/no-such-topic", "Topic not found"),
)
STATUSES = {"failure": 404}


def fill(site: Stack) -> None:
    """Store what the pages of the table show: the same each time, but for the clock."""
    create(site, TOPIC, 2)
    for number, (key, country) in enumerate([("anna", "FI"), ("bob", "DE"), ("chloé", "FR")] * 4):
        text = f'{{"id": {1000 + number}, "customer": "{key}", "country": "{country}"}}'
        # JSON by lines, so that each of them has its key.
        post(site, TOPIC, text, f"partitionKey={number % 3}")
    assert ask(site, "POST", f"/events/{TOPIC}", bytes(range(0, 256, 5)), BINARY).status == 200
    for topic, text in (("payments", "paid\nrefunded"), ("audit.log", "user anna signed in")):
        post(site, topic, text)
    poll(site, f"{TOPIC}/{GROUP}/1", 2, "from=earliest&limit=3")
    poll(site, f"{TOPIC}/shipping/1", 0, "from=earliest&limit=1")
    poll(site, "payments/ledger/1", 2, "from=earliest")


def opened(visitor: Visitor, entry: Entry) -> Page:
    """Open a page of the table, and its dialog."""
    page = visitor.page()
    page.goto(entry.path)
    expect(page.get_by_role("heading", level=1)).to_contain_text(entry.heading)
    if entry.dialog:
        page.get_by_role("button", name=entry.dialog).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
    return page
