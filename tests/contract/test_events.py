"""Streams that go on, events and traces, over every backend."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from router.app import create_app
from router.backends import Start
from router.model import NOT_PARTITIONED, Stored, TopicName
from tests.contract.conftest import WAIT, Bell, Opened
from tests.unit.web.pulsar_rest.events import Event, parse

EVENTS = "application/cloudevents-batch+json"
CONTEXT = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "rojo=00f067aa0ba902b7",
}


@pytest.fixture(scope="module")
def app(opened: Opened) -> Iterator[Flask]:
    app = create_app(opened.settings, opened.backend, opened.node)
    yield app
    app.extensions["router.close"]()


def publish(app: Flask, topic: TopicName, *values: str) -> None:
    """Store each value with a key of its own, so that they lie on all partitions."""
    body = "".join(f"{len(v)}.{len(v)}.{v}{v}" for v in values)
    answer = app.test_client().post(
        f"/events/{topic.local}", data=body, content_type="application/cambria"
    )
    assert answer.status_code == 200, answer.text


def streamed(app: Flask, address: str, last: str, count: int) -> tuple[list[Event], str]:
    """Read a stream until so many events are there, and leave; return the last id as well."""
    headers = {"Last-Event-ID": last} if last else {}
    answer = app.test_client().get(address, headers=headers)
    assert answer.mimetype == "text/event-stream", answer.text
    found, pieces, end = b"", iter(answer.iter_encoded()), time.monotonic() + WAIT
    while not found or len(parse(found)[0]) < count:
        assert time.monotonic() < end, found
        found += next(pieces)
    answer.close()
    # What a connection that breaks off in the midst of an event leaves.
    cut = found if count else found[: found.index(b"\n\n") + 2]
    return parse(cut)


def of(topic: TopicName, path: str) -> str:
    return f"/events/{topic.local}?stream" if path == "events" else f"{topic_at(topic)}?stream"


def topic_at(topic: TopicName) -> str:
    return f"/topics/public/default/{topic.local}/messages"


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("path", ["events", "pip64"])
def test_stream_goes_on_behind_the_last_event_and_misses_none(
    opened: Opened, app: Flask, partitions: int, path: str
) -> None:
    topic = opened.new_topic(partitions)
    begin = "&from=earliest" if path == "events" else "&start=earliest"
    publish(app, topic, *(f"a{number}" for number in range(7)))
    address, last, found = of(topic, path) + begin, "", []
    for more in range(3):
        events, last = streamed(app, address, last, 7 if not more else 4)
        found += [value(event) for event in events]
        publish(app, topic, *(f"b{more}{number}" for number in range(4)))
    expected = [f"a{number}" for number in range(7)]
    expected += [f"b{more}{number}" for more in range(2) for number in range(4)]
    assert sorted(found) == sorted(expected)
    if not partitions:
        assert found == expected


@pytest.mark.parametrize("partitions", [0, 2])
def test_stream_that_had_no_event_goes_on_where_it_began(
    opened: Opened, app: Flask, partitions: int
) -> None:
    topic = opened.new_topic(partitions)
    publish(app, topic, "before")
    address = f"{of(topic, 'events')}&from=latest"
    events, last = streamed(app, address, "", 0)
    assert events == []
    publish(app, topic, "x", "y", "z")
    events, _ = streamed(app, address, last, 3)
    assert sorted(map(value, events)) == ["x", "y", "z"]


def test_sample_goes_on_behind_what_it_skipped(opened: Opened, app: Flask) -> None:
    topic = opened.new_topic()
    publish(app, topic, *"abcde")
    address = f"{of(topic, 'events')}&from=earliest"
    [first], last = streamed(app, f"{address}&sample=1", "", 1)
    assert value(first) == "a"
    events, _ = streamed(app, address, last, 4)
    assert [value(event) for event in events] == list("bcde")


def test_event_and_trace_are_what_was_sent(opened: Opened, app: Flask) -> None:
    topic, client = opened.new_topic(), app.test_client()
    required = {"specversion": "1.0", "id": "é 1", "source": "/s", "type": "t"}
    events: list[dict[str, Any]] = [
        required | {"data": {"a": 1}, "partitionkey": "k", "datacontenttype": "application/json"},
        required | {"data_base64": "AP8=", "datacontenttype": "image/png"},
        required,
        required | {"data": "text\n", "datacontenttype": "text/plain"},
    ]
    answer = client.post(
        f"/events/{topic.local}", data=json.dumps(events), content_type=EVENTS, headers=CONTEXT
    )
    assert answer.status_code == 200, answer.text
    address = f"/events/{topic.local}/g/c?from=earliest&timeout={WAIT * 1000:.0f}"
    assert client.get(address, headers={"Accept": EVENTS}).get_json() == events
    first, _, third, _ = read(opened, topic)
    properties = {f"ce_{name}": text for name, text in required.items()} | CONTEXT
    assert first.message.key == b"k"
    assert first.message.value == b'{"a": 1}'
    assert dict(first.message.properties) == properties | {
        "ce_partitionkey": "k",
        "content-type": "application/json",
    }
    assert dict(third.message.properties) == properties
    assert third.message.null


def read(opened: Opened, topic: TopicName) -> list[Stored]:
    """Return the messages of a topic as the store gives them."""
    found: list[Stored] = []
    bell = Bell()
    reader = opened.backend.read(topic, NOT_PARTITIONED, Start.EARLIEST, bell, WAIT)

    def are_there() -> bool:
        found.extend(reader.receive(100, 1 << 20, WAIT))
        return len(found) >= 4

    bell.until(are_there)
    reader.close()
    return found


def value(event: Event) -> str:
    assert isinstance(event.data, dict), event
    text: str = event.data["value"]
    return text
