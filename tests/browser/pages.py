"""The pages of the console: what is proved of each is proved of all in this table."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, StorageState, expect

from tests.browser.visitor import Visitor
from tests.system.stack import Stack
from tests.system.traffic import ask, create, poll, post

TOPIC = "orders.europe"
GROUP = "billing"
DEAD = f"{TOPIC}.dlq"
STREAM, CONSUMER = "shipments", "worker"
ANYBODY, STRANGER, USER = "anybody", "stranger", "anna"
PASSWORD = "secret"
BINARY = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One page: its name in reports, its path, and its heading."""

    name: str
    path: str
    heading: str
    # The name of a button that opens a dialog.
    dialog: str = ""
    # Who looks: ANYBODY at the open router, STRANGER or USER at the one with users.
    viewer: str = ANYBODY


PAGES = (
    Entry("overview", "/console/", "Overview"),
    Entry("topics", "/console/topics", "Topics"),
    Entry("topics-found", "/console/topics?q=none-of-these", "Topics"),
    Entry("create", "/console/topics", "Topics", dialog="Create topic"),
    Entry("publish", f"/console/topics/{TOPIC}", TOPIC),
    Entry("messages", f"/console/topics/{TOPIC}?tab=messages", TOPIC),
    Entry("messages-found", f"/console/topics/{TOPIC}?tab=messages&filter=anna", TOPIC),
    Entry("messages-tree", f"/console/topics/{TOPIC}?tab=messages&view=tree&from=earliest", TOPIC),
    Entry("messages-hex", f"/console/topics/{TOPIC}?tab=messages&view=hex&path=$.id", TOPIC),
    Entry("watch", "/console/watch?topics=orders.*,payments", "Watch"),
    Entry("replay", f"/console/topics/{TOPIC}/replay?from=earliest", "Replay"),
    Entry("topic-groups", f"/console/topics/{TOPIC}?tab=groups", TOPIC),
    Entry("topic-settings", f"/console/topics/{TOPIC}?tab=settings", TOPIC),
    Entry("groups", "/console/groups", "Groups"),
    Entry("reset-dialog", f"/console/groups?topic={TOPIC}", "Groups", dialog="Reset"),
    Entry("reset", f"/console/topics/{TOPIC}/groups/{GROUP}/reset?to=earliest", "Reset"),
    Entry("group", f"/console/topics/{TOPIC}/groups/{GROUP}", GROUP),
    Entry("reset-group", f"/console/topics/{TOPIC}/groups/{GROUP}", GROUP, dialog="Reset"),
    Entry("dead-letters", "/console/dead-letters", "Dead letters"),
    Entry("dead-letter-topic", f"/console/dead-letters/{DEAD}", DEAD),
    Entry("streams", "/console/streams", "Streams"),
    Entry("streams-found", "/console/streams?q=none-of-these", "Streams"),
    Entry("stream", f"/console/streams/{STREAM}", STREAM),
    Entry("consumer", f"/console/streams/{STREAM}/consumers/{CONSUMER}", CONSUMER),
    Entry("pipelines", "/console/pipelines", "Pipelines"),
    Entry("connections", "/console/connections", "Connections"),
    Entry("transactions", "/console/transactions", "Transactions"),
    Entry("access", "/console/access", "Access"),
    Entry("audit", "/console/audit", "Audit"),
    Entry("access-topics", "/console/access/topics", "Access"),
    Entry("access-topic", f"/console/access/topics/{TOPIC}", "Access"),
    Entry("access-keys", "/console/access/keys", "Access"),
    Entry("signin", "/console/signin", "Sign in"),
    Entry("settings", "/console/settings", "Settings"),
    Entry("about", "/console/about", "About"),
    Entry("failure", "/console/topics/no-such-topic", "Not Found"),
    Entry("refused", "/console/groups?q=a&page=x", "Bad Request"),
    Entry("signin-form", "/console/", "Sign in", viewer=STRANGER),
    Entry("overview-user", "/console/?span=24h", "Overview", viewer=USER),
    Entry("topics-user", "/console/topics", "Topics", viewer=USER),
    Entry("access-users", "/console/access", "Access", viewer=USER),
    Entry("access-topics-user", "/console/access/topics", "Access", viewer=USER),
    Entry("access-topic-user", "/console/access/topics/owned", "Access", viewer=USER),
    Entry("access-keys-user", "/console/access/keys", "Access", viewer=USER),
)
UPDATED = "2026-11-01T09:00:00+00:00"
RUN = {"batch": 4, "rows": 1200, "rows_per_second": 40.5, "lag": {TOPIC: 7}}
STATUSES = {"failure": 404, "refused": 400}


def new_site(folder: Path) -> Stack:
    """Return a router that is open to all of this machine, and has a folder of pipelines."""
    (folder / "declared").mkdir()
    return Stack(folder, "--workers", "2", pipelines_folder=str(folder / "declared"))


def fill(site: Stack) -> None:
    """Store what the pages of the table show: the same each time, but for the clock."""
    create(site, TOPIC, 2)
    for number, (key, country) in enumerate([("anna", "FI"), ("bob", "DE"), ("carol", "FR")] * 4):
        text = f'{{"id": {1000 + number}, "customer": "{key}", "country": "{country}"}}'
        post(site, TOPIC, text, f"partitionKey={key}")
    assert ask(site, "POST", f"/events/{TOPIC}", bytes(range(0, 256, 5)), BINARY).status == 200
    pipeline(site, "archive", "", {"state": "running", "sinks": {"files": RUN}})
    pipeline(site, "report", "", {"state": "failed", "error": "FileNotFoundError: rates.csv"})
    for topic, text in (("payments", "paid\nrefunded"), ("audit.log", "user anna signed in")):
        post(site, topic, text)
    create(site, DEAD, 1)
    bury(site, DEAD, TOPIC, "no JSON")
    poll(site, f"{TOPIC}/{GROUP}/1", 2, "from=earliest&limit=3")
    poll(site, f"{TOPIC}/shipping/1", 0, "from=earliest&limit=1")
    poll(site, "payments/ledger/1", 2, "from=earliest")
    stream(site)


def stream(site: Stack) -> None:
    """Make a stream of JetStream with two messages, and a consumer of it."""
    durable = {"durable_name": CONSUMER, "ack_policy": "explicit"}
    for path, body in (
        (f"api/STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": [f"{STREAM}.*"]}),
        (f"publish/{STREAM}.sent", {"id": 1}),
        (f"publish/{STREAM}.arrived", {"id": 1}),
        (f"api/CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": durable}),
    ):
        answer = ask(site, "POST", f"/jetstream/{path}", json.dumps(body).encode())
        assert answer.status == 200, answer.body


def bury(site: Stack, dead: str, topic: str, *reasons: str) -> None:
    """Store a dead letter for each reason, which came from a topic."""
    notes = [{"router-topic": topic, "router-error": reason} for reason in reasons]
    dead_letters = [{"value": f"letter {n}", "properties": one} for n, one in enumerate(notes)]
    produce(site, dead, dead_letters)


def produce(site: Stack, topic: str, messages: list[dict[str, Any]]) -> None:
    """Publish messages with keys and headers."""
    body = json.dumps({"messages": messages}).encode()
    kind = {"Content-Type": "application/json"}
    path = f"/topics/persistent/public/default/{topic}"
    answer = ask(site, "POST", path, body, kind)
    assert answer.status == 200, answer.body


def pipeline(site: Stack, name: str, description: str, status: dict[str, Any]) -> None:
    """Declare a pipeline, and write down what a run of it would say."""
    declared = f"description = {json.dumps(description)}\n"
    (site.folder / "declared" / f"{name}.toml").write_text(declared, "utf-8")
    state = site.folder / "data" / "pipelines" / name
    state.mkdir(parents=True)
    own = {"host": socket.gethostname(), "pid": os.getpid(), "updated": UPDATED}
    (state / "status.json").write_text(json.dumps(own | status), "utf-8")


@dataclass(frozen=True, slots=True)
class Routers:
    """The router that is open to all of this machine, and one whose users sign in."""

    site: Stack
    guarded: Stack
    session: StorageState

    @contextlib.contextmanager
    def visitor(self, browser: Browser, viewer: str) -> Iterator[Visitor]:
        """Give one who looks at pages; what went wrong there fails the test at the end."""
        url = (self.site if viewer == ANYBODY else self.guarded).url
        options = {"storage_state": self.session} if viewer == USER else {}
        with Visitor(browser, url, **options) as made:
            for status in STATUSES.values():
                made.expect_status(status)
            yield made
            made.check()


def sign_in(page: Page, user: str = USER) -> None:
    """Fill the form on the page that asks for it."""
    page.get_by_role("textbox", name="User", exact=True).fill(user)
    page.get_by_role("textbox", name="Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def opened(visitor: Visitor, entry: Entry) -> Page:
    """Open a page of the table, and its dialog."""
    page = visitor.page()
    page.goto(entry.path)
    expect(page.get_by_role("heading", level=1)).to_contain_text(entry.heading)
    if entry.dialog:
        page.get_by_role("button", name=entry.dialog).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
    return page
