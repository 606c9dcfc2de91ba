"""Fetching: what a poll asks of the consumer, and how its messages are shown."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from router.errors import BackendUnavailableError
from router.wire.nats.headers import build
from router.wire.nats.jetstream.errors import ErrorCode, error
from router.wire.nats.jetstream.replies import ApiReply
from tests.unit.web.applications import Site
from tests.unit.web.jetstream.streams import FakeStreams, given

NEXT = "$JS.API.CONSUMER.MSG.NEXT.ORDERS.worker"
INFO = "$JS.API.CONSUMER.INFO.ORDERS.worker"


@pytest.fixture(params=["direct", "flask"], autouse=True)
def way(request: pytest.FixtureRequest) -> None:
    """Answers are the same by the views that the front calls itself and through Flask."""
    if request.param == "flask":
        request.getfixturevalue("through_flask")


def fetch(site: Site, query: str = "") -> tuple[int, Any]:
    answer = site.client.post(f"/jetstream/fetch/ORDERS/worker{query}")
    assert answer.mimetype == "application/json"
    return answer.status_code, answer.get_json()


def test_messages_are_shown_with_what_acknowledges_them(site: Site, streams: FakeStreams) -> None:
    headers = build([("A", "1"), ("A", "2"), ("Nats-Msg-Id", "x")])
    message = given(7, "grün".encode(), deliveries=2, headers=headers, pending=3)
    streams.answers(NEXT, [message])
    status, found = fetch(site)
    assert status == 200
    assert found["type"] == "io.nats.jetstream.api.v1.consumer_fetch"
    assert found["messages"] == [
        {
            "subject": "orders.new",
            "sequence": 7,
            "consumer_sequence": 7,
            "time": "2023-11-14T22:13:20.000000007Z",
            "deliveries": 2,
            "pending": 3,
            "headers": {"A": ["1", "2"], "Nats-Msg-Id": ["x"]},
            "value": "grün",
            "token": message.reply,
        }
    ]


def test_a_message_whose_headers_have_a_status_is_a_message(
    site: Site, streams: FakeStreams
) -> None:
    headers = b"NATS/1.0 404 none\r\nA: b\r\n\r\n"
    streams.answers(NEXT, [given(1, b"a", headers=headers), given(2, b"b")])
    shown = fetch(site, "?batch=2")[1]["messages"]
    assert [one["value"] for one in shown] == ["a", "b"]
    assert shown[0]["headers"] == {"A": ["b"]}


def test_what_is_no_text_is_in_base64(site: Site, streams: FakeStreams) -> None:
    streams.answers(NEXT, [given(1, b"\xff\x00")])
    (shown,) = fetch(site)[1]["messages"]
    assert base64.b64decode(shown["value"]) == b"\xff\x00"
    assert shown["value_encoding"] == "base64"


def test_what_is_there_is_answered_at_once(site: Site, streams: FakeStreams) -> None:
    streams.answers(NEXT, [given(1, b"a"), given(2, b"b")])
    assert len(fetch(site, "?batch=5&expires=9000")[1]["messages"]) == 2
    (asked,) = streams.asked
    assert asked.max_replies == 5
    assert streams.body() == {"batch": 5, "max_bytes": 4 << 20, "no_wait": True}


def test_without_a_message_the_first_is_waited_for_and_more_taken_with_it(
    site: Site, streams: FakeStreams
) -> None:
    streams.answers(NEXT, 404, [given(1, b"a")], [given(2, b"b"), given(3, b"c")])
    found = fetch(site, "?batch=5&expires=9000&max_bytes=1000")[1]["messages"]
    assert [shown["sequence"] for shown in found] == [1, 2, 3]
    waiting = streams.body(1)
    assert (waiting["batch"], waiting["expires"]) == (1, 9_000_000_000)
    assert (streams.asked[1].seconds, streams.asked[1].long_poll) == (9.0, True)
    rest = streams.body(2)
    assert (rest["batch"], rest["no_wait"]) == (4, True)
    assert 0 < rest["max_bytes"] < 1000


def test_what_was_taken_is_answered_whatever_becomes_of_the_rest(
    site: Site, streams: FakeStreams
) -> None:
    streams.answers(NEXT, 404, [given(1, b"a")], 409)
    assert len(fetch(site, "?batch=5&expires=9000")[1]["messages"]) == 1
    streams.answers(NEXT, 404, [given(1, b"a")], BackendUnavailableError())
    assert len(fetch(site, "?batch=5&expires=9000")[1]["messages"]) == 1


def test_nothing_in_time_is_an_empty_list(site: Site, streams: FakeStreams) -> None:
    nothing: list[tuple[object, ...]] = [(404, 408), (404, []), ([], [])]
    for answers in nothing:
        streams.answers(NEXT, *answers)
        status, found = fetch(site, "?expires=100")
        assert (status, found["messages"], "error" in found) == (200, [], False)
    streams.asked.clear()
    streams.answers(NEXT, 404)
    assert fetch(site, "?expires=0")[1]["messages"] == []
    assert len(streams.asked) == 1


def test_a_consumer_that_is_not_there_is_named(site: Site, streams: FakeStreams) -> None:
    missing = error(ErrorCode.CONSUMER_NOT_FOUND)
    streams.answers(INFO, ApiReply("consumer_info", error=missing).to_json())
    status, found = fetch(site)
    assert (status, found["messages"]) == (404, [])
    assert found["error"] == {
        "message": "unknown consumer worker of stream ORDERS",
        "code": 10014,
        "kind": "JetStreamBadRequest",
    }
    found = fetch(site, "?form=v1")[1]
    assert found["error"] == missing.to_json()
    assert found["type"].endswith(".consumer_fetch_response")


def test_a_consumer_that_pushes_takes_no_fetch(site: Site, streams: FakeStreams) -> None:
    streams.answers(INFO, {"config": {"deliver_subject": "x"}})
    assert fetch(site)[0] == 409
    streams.answers(NEXT, 409)
    assert fetch(site)[0] == 409


@pytest.mark.parametrize("path", ["a*/b", "a/b%20c", "a/>", "a.b/c", "%ff/b"])
def test_names_that_cannot_be_are_refused(site: Site, streams: FakeStreams, path: str) -> None:
    answer = site.client.post(f"/jetstream/fetch/{path}")
    assert (answer.status_code, answer.get_json()["messages"]) == (400, [])
    assert not streams.asked


@pytest.mark.parametrize("query", ["?batch=x", "?expires=5s", "?max_bytes=-1", "?form=x"])
def test_parameters_that_cannot_be_read_are_refused(
    site: Site, streams: FakeStreams, query: str
) -> None:
    assert fetch(site, query)[0] == 400
    assert not streams.asked


def test_a_link_takes_no_message(site: Site, streams: FakeStreams) -> None:
    answer = site.client.get("/jetstream/fetch/ORDERS/worker")
    assert (answer.status_code, answer.get_json()["messages"]) == (405, [])
    assert not streams.asked
