"""The tab of messages: filters, places, views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from router.backends import Batch
from router.model import Message, TopicName
from router.services import scan
from tests.unit.web.applications import Site

PAGE = "/console/topics/t"
TOPIC = TopicName.parse("t")


@pytest.fixture(scope="module")
def many() -> Iterator[Site]:
    """A site with a topic of two partitions and 400 messages."""
    site = Site({})
    site.client.post("/topics/create", json={"topicName": "t", "partitionCount": 2})
    for n in range(400):
        message = Message(b'{"n":%d}' % n, b"k%d" % (n % 100), {"n": str(n)})
        site.backend.publish(Batch(TOPIC, n % 2, [message]), 5)
    yield site
    site.close()


def tab(site: Site, query: str) -> dict[str, Any]:
    """Return the data of the tab."""
    answer = site.client.get(f"{PAGE}?tab=messages&format=json&{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def numbers(found: dict[str, Any]) -> list[int]:
    """Return the numbers of the messages of a page."""
    return [int(message["headers"]["n"]) for message in found["messages"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("key=k7", [7, 107, 207, 307]),
        ("header=n=8", [8]),
        ("path=$.n=9", [9]),
        ("filter=n: 399", [399]),
        ("key=k7&path=$.n=207", [207]),
        ("partition=1&header=n=8", []),
        ("partition=0&header=n=8", [8]),
    ],
)
def test_filters_search_the_topic_and_not_the_last_page_alone(
    many: Site, query: str, found: list[int]
) -> None:
    page = tab(many, quote(query, safe="=&$:"))
    assert sorted(numbers(page)) == found
    assert page["stream"]


def test_pages_go_back_to_the_first_message_and_forward_to_the_last(many: Site) -> None:
    page, seen = tab(many, ""), list[int]()
    assert page["live"]
    seen += numbers(page)
    while page["older"]:
        page = tab(many, page["older"][1:])
        assert (page["live"], page["stream"]) == (False, "")
        seen += numbers(page)
    assert sorted(seen) == list(range(400))
    page, seen = tab(many, "from=earliest"), []
    while numbers(page):
        seen += numbers(page)
        page = tab(many, page["newer"][1:])
    assert sorted(seen) == list(range(400))


def test_filter_stays_while_pages_are_turned(many: Site) -> None:
    page, seen = tab(many, "path=$.n&view=tree"), list[int]()
    while page["older"]:
        seen += numbers(page)
        page = tab(many, page["older"][1:])
        assert (page["view"], page["selection"]["path"]) == ("tree", "$.n")
    assert sorted(seen + numbers(page)) == list(range(400))


def test_message_has_a_link_of_its_own(many: Site) -> None:
    message = tab(many, "header=n=123")["messages"][0]
    page = tab(many, f"from={message['id']}")
    assert numbers(page)[:2] == [123, 125]
    assert page["selection"]["partition"] == "1"
    [line] = page["commands"]
    assert f"/topics/public/default/t/partitions/1/messages?start={message['id']}&" in line
    found = many.client.get(line.split()[-1].strip("'").removeprefix("http://localhost"))
    assert found.get_json()["messages"][0]["properties"] == {"n": "123"}
    link = f"{PAGE}/messages/{quote(message['id'], safe='')}"
    assert f'href="{link}"' in many.client.get(f"{PAGE}?tab=messages&header=n=123").text
    assert many.client.get(f"{link}?format=json").get_json()["value"] == '{"n":123}'


@pytest.mark.parametrize(
    ("query", "first"), [("from=0", 0), ("from=1970-01-01T00:00Z", 0), ("from=1:5:0", 10)]
)
def test_jump_goes_to_a_time_or_position(many: Site, query: str, first: int) -> None:
    page = tab(many, query)
    assert (numbers(page)[0], page["live"]) == (first, False)
    assert any("from" in line or "start" in line for line in page["commands"])


def test_jump_behind_the_end_is_an_empty_page(many: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SILENCE_SECONDS", 0.5)
    page = tab(many, "from=2100-01-01T00:00Z")
    assert (page["messages"], page["live"]) == ([], False)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("from=noon", "from"),
        ("from=1:2:7", "from"),
        ("from=1.2", "from"),
        ("before=x", "before"),
        ("before=@1.2", "before"),
        ("before=@5,@6", "before"),
        ("path=x", "path"),
        ("partition=2", "partition"),
        ("partition=x", "partition"),
        ("view=none", "view"),
    ],
)
def test_place_or_filter_that_cannot_be_read_is_refused(many: Site, query: str, name: str) -> None:
    for path in (f"{PAGE}?tab=messages&format=json&", f"{PAGE}/export?format=json&"):
        if name == "view" and "export" in path:
            continue
        answer = many.client.get(path + query)
        assert answer.status_code == 400, query
        assert answer.get_json()["detail"].count(f"{name}: expected") == 1


@pytest.mark.parametrize(
    ("view", "holds"),
    [
        ("text", ['<pre>{"a":"<b>"}</pre>', "<pre>ff 00</pre>", "<pre>␛[31m[U+202E]x</pre>"]),
        (
            "tree",
            ['<span class="text">"<b>"</span>', "<pre>ff 00</pre>", "<pre>␛[31m[U+202E]x</pre>"],
        ),
        ("hex", ['|{"a":"<b>"}|', "00000000  ff 00 ", "1b 5b 33 31 6d e2 80 ae 78"]),
    ],
)
def test_views_show_values_calmly(site: Site, view: str, holds: list[str]) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    values = (b'{"a":"<b>"}', b"\xff\x00", "\x1b[31m\u202ex".encode())
    for value in values:
        site.backend.publish(Batch(TOPIC, -1, [Message(value, value)]), 5)
    page = site.client.get(f"{PAGE}?tab=messages&view={view}").text
    assert "<b>" not in page
    for held in holds:
        assert held in unescape(page)


def test_page_tells_its_script_the_messages_but_the_long_ones(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    for value in (b"</script><b>", b"x" * 20_001):
        site.backend.publish(Batch(TOPIC, -1, [Message(value)]), 5)
    page = site.client.get(f"{PAGE}?tab=messages").text
    block = page.partition('data-written="')[2].partition('"')[0]
    assert [one and one["value"] for one in json.loads(unescape(block))] == [
        None,
        "</script><b>",
    ]
    assert "<b>" not in page


def test_time_is_how_long_ago(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    site.backend.publish(Batch(TOPIC, -1, [Message(b"a")]), 5)
    assert [one["value"] for one in tab(site, "from=15m")["messages"]] == ["a"]
    assert [one["value"] for one in tab(site, "before=1d")["messages"]] == []


def test_place_that_is_shown_is_the_one_that_from_takes(many: Site) -> None:
    shown = tab(many, "header=n=123")["messages"][0]["place"]
    assert numbers(tab(many, f"from={shown}"))[0] == 123
    assert numbers(tab(many, f"before={shown}"))[-1] == 121


def test_stretch_has_a_begin_and_an_end(many: Site) -> None:
    begin, end = (tab(many, f"header=n={n}")["messages"][0]["place"] for n in (101, 201))
    found = numbers(tab(many, f"from={begin}&before={end}"))
    assert found == list(range(101, 200, 2))


def test_search_says_how_far_it_is_and_where_it_goes_on(
    many: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = scan.ScanBounds(100, 1 << 20, 5.0)
    monkeypatch.setattr("router.services.pages.before.__defaults__", (bounds,))
    page = tab(many, "header=n=3")
    checked = 0
    while page["search"]["next"]:
        assert page["search"]["found"] == 0
        checked += page["search"]["checked"]
        page = tab(many, page["search"]["next"][1:])
    assert 0 < checked < 400
    assert page["search"]["found"] == 1
    assert tab(many, "header=n=3")["search"]["total"] == 400
    assert tab(many, "")["search"] is None


@pytest.mark.parametrize(
    ("query", "field"),
    [("filter=(a", "filter"), ("from=noon", "from"), ("before=noon", "before"), ("path=x", "path")],
)
def test_mistake_is_shown_at_its_field_and_all_values_stay(
    many: Site, query: str, field: str
) -> None:
    answer = many.client.get(
        f"{PAGE}?tab=messages&key=kept&{query}", headers={"Accept": "text/html"}
    )
    assert answer.status_code == 400
    assert 'value="kept"' in answer.text
    place = answer.text.index(f'<input id="{field}"')
    assert 'aria-invalid="true"' in answer.text[place : answer.text.index("\n", place)]
    assert "Expected " in answer.text


def test_empty_result_is_a_sentence(many: Site) -> None:
    text = many.client.get(f"{PAGE}?tab=messages&filter=nowhere").text
    assert "No message matches: 400 messages were checked." in text


def test_search_gives_other_requests_their_turn(
    many: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[float]()
    monkeypatch.setattr("router.services.pages.time.sleep", turns.append)
    for query in ("filter=nowhere", "filter=nowhere&from=earliest"):
        turns.clear()
        tab(many, query)
        assert sum(pause > 0 for pause in turns) >= 7
