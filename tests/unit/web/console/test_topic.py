"""The page of one topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from router.backends import Batch
from router.model import Message, TopicInfo, TopicName
from tests.unit.web.applications import HASHES, Site, header

BROWSER = {"Accept": "text/html"}
MARKUP = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></article><svg/onload=alert(1)>",
    "{{ 7*7 }}",
    "' onmouseover='alert(1)",
]


def twin(site: Site, path: str, **headers: str) -> dict[str, Any]:
    """Return the JSON of a page."""
    mark = "&" if "?" in path else "?"
    answer = site.client.get(f"{path}{mark}format=json", headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def publish(site: Site, **form: str) -> dict[str, Any]:
    """Send the form as a script does."""
    answer = site.client.post("/console/topics/t/publish?format=json", data=form)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


class Attributes(HTMLParser):
    """Notes the names of all attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names += [name for name, _ in attrs]


def attributes(page: str) -> list[str]:
    """Return the names of all attributes of a page."""
    found = Attributes()
    found.feed(page)
    return found.names


@pytest.mark.parametrize("tab", ["publish", "messages", "groups", "settings"])
def test_page_has_four_tabs_and_says_which_is_shown(site: Site, tab: str) -> None:
    site.post("/events/t", "a")
    page = site.client.get(f"/console/topics/t?tab={tab}", headers=BROWSER).text
    tabs = re.findall(r'<a role="tab"[^>]* aria-selected="(\w+)"[^>]*>(\w+)</a>', page)
    assert [name for _, name in tabs] == ["Publish", "Messages", "Groups", "Settings"]
    assert [name.lower() for chosen, name in tabs if chosen == "true"] == [tab]
    assert 'role="tabpanel"' in page


@pytest.mark.parametrize(
    ("chosen", "message", "values"),
    [
        ("Text", "a\r\nb", ["a", "b"]),
        ("Text", "ä€", ["ä€"]),
        ("JSON", '{"a":1}', ['{"a":1}']),
        ("JSON", '[{"a":1},{"b":2}]', ['{"a":1}', '{"b":2}']),
        ("Cambria", "1.3.ka\r\nb", ["a\nb"]),
    ],
)
def test_form_publishes_in_each_format(
    site: Site, chosen: str, message: str, values: list[str]
) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    found = publish(site, format=chosen, key="k", message=message)
    words = "1 message stored" if len(values) == 1 else f"{len(values)} messages stored"
    assert (found["stored"], found["status"]) == (len(values), words)
    messages = twin(site, "/console/topics/t?tab=messages")["messages"]
    assert [(told["key"], told["value"]) for told in messages] == [("k", v) for v in values]


def test_form_without_script_is_told_how_many_were_stored(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    form = {"format": "Text", "message": "a\nb"}
    answer = site.client.post("/console/topics/t/publish", data=form, headers=BROWSER)
    assert answer.status_code == 303
    page = site.client.get(answer.headers["Location"], headers=BROWSER).text
    assert 'role="status">2 messages stored<' in page


def test_publishing_shows_its_commands_and_no_file_is_read_by_them(site: Site) -> None:
    found = publish(site, format="Text", key="a&b", message="@/etc/passwd it's")
    assert found["commands"] == [
        "curl -H 'Content-Type: text/plain' --data-raw '@/etc/passwd it'\"'\"'s'"
        " 'http://localhost/events/t?partitionKey=a%26b'",
        "printf %s\\\\n '@/etc/passwd it'\"'\"'s' | router pub t --key 'a&b'",
    ]


@pytest.mark.parametrize(
    "form", [{"format": "JSON", "message": "{"}, {"format": "XML", "message": "a"}]
)
def test_message_that_is_not_of_its_format_is_refused(site: Site, form: dict[str, str]) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    answer = site.client.post("/console/topics/t/publish?format=json", data=form)
    assert (answer.status_code, answer.mimetype) == (400, "application/problem+json")
    assert twin(site, "/console/topics/t?tab=messages")["messages"] == []


def test_live_tail_goes_on_behind_the_last_message_of_the_page(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t", "partitionCount": 2})
    site.post("/events/t", "\n".join(map(str, range(100))))
    found = twin(site, "/console/topics/t?tab=messages")
    assert [told["value"] for told in found["messages"]] == [str(n) for n in range(50, 100)]
    site.post("/events/t", "next")
    answer = site.client.get(found["stream"], headers={"Accept": "text/event-stream"})
    events: Iterator[Any] = iter(answer.response)
    assert b"retry:" in next(events)
    assert re.findall(rb'"value":"(\w+)"', next(events)) == [b"next"]
    answer.close()


def test_topic_without_a_message_is_read_from_its_first(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    found = twin(site, "/console/topics/t?tab=messages")
    assert found["messages"] == []
    site.post("/events/t", "first")
    answer = site.client.get(found["stream"])
    events: Iterator[Any] = iter(answer.response)
    next(events)
    assert b'"first"' in next(events)
    answer.close()


@pytest.mark.parametrize("markup", MARKUP)
def test_what_a_message_carries_is_shown_as_text(site: Site, markup: str) -> None:
    topic = TopicName.parse("t")
    site.client.post("/topics/create", json={"topicName": "t"})
    message = Message(markup.encode(), markup.encode(), {markup: markup})
    site.backend.publish(Batch(topic, -1, [message]), 5)
    page = site.client.get(
        "/console/topics/t", query_string={"tab": "messages", "filter": markup}, headers=BROWSER
    ).text
    assert markup in unescape(page)
    for tag in ("<script>", "<img", "<svg/"):
        assert tag not in page
    assert not [name for name in attributes(page) if name.startswith("on")]
    assert page.count("<article>") == 1


def test_bytes_that_are_no_text_are_in_hexadecimal_and_long_ones_are_cut(site: Site) -> None:
    site.post("/events/t", b"\xff\x00", "application/octet-stream")
    site.post("/events/t", b"x" * 20_001, "application/octet-stream")
    first, second = twin(site, "/console/topics/t?tab=messages")["messages"]
    assert (first["value"], first["text"]) == ("ff 00", False)
    assert (len(second["value"]), second["left_out"]) == (20_000, 1)


def test_groups_of_a_topic_are_told_with_their_lag(site: Site) -> None:
    site.post("/events/t", "a")
    site.poll()
    site.post("/events/t", "b\nc")
    found = twin(site, "/console/topics/t?tab=groups")
    assert found["groups"] == [{"group": "g", "lag": 2, "members": 0, "last_used": None}]


def test_settings_of_a_topic_say_what_it_keeps(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t", "retentionMs": 1000})
    rows = twin(site, "/console/topics/t?tab=settings")["rows"]
    assert rows["Full name"] == "persistent://public/default/t"
    assert rows["Retention"] == "1s"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/topics/absent", 404),
        ("/console/topics/absent?tab=messages", 404),
        ("/console/topics/t?tab=none", 400),
        ("/console/topics/a%2Fb", 400),
        ("/console/topics/%3Cb%3E", 400),
    ],
)
def test_page_that_cannot_be_shown_says_why(site: Site, path: str, status: int) -> None:
    site.post("/events/t", "a")
    answer = site.client.get(path, headers=BROWSER)
    assert (answer.status_code, answer.mimetype) == (status, "text/html")
    assert "<b>" not in answer.text


def test_rights_are_those_of_the_api(sites: Callable[..., Site], tmp_path: Path) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    names = ("writer", "reader", "stranger")
    users.write_text("".join(f"{name}:{HASHES['bcrypt']}\n" for name in names))
    rules.write_text("writer t publish\nreader t subscribe\nstranger u subscribe\n")
    site = sites(auth_users=str(users), auth_permissions=str(rules))
    known = {name: {"Authorization": header(name, "secret")} for name in names}
    site.backend.create_topic(TopicInfo(TopicName.parse("t")), 5)
    form = {"format": "Text", "message": "a"}
    statuses = {
        name: (
            site.client.get("/console/topics/t", headers=known[name]).status_code,
            site.client.post(
                "/console/topics/t/publish?format=json", data=form, headers=known[name]
            ).status_code,
        )
        for name in names
    }
    assert statuses["stranger"] == (403, 403)
    assert statuses["reader"] == (200, 403)
    assert statuses["writer"] == (200, 200)
    writer = twin(site, "/console/topics/t?tab=messages", **known["writer"])
    assert (writer["messages"], writer["stream"]) == ([], "")
    page = site.client.get("/console/topics/t", headers=known["reader"] | BROWSER).text
    assert "<fieldset disabled>" in page
    assert len(twin(site, "/console/topics/t?tab=messages", **known["reader"])["messages"]) == 1
