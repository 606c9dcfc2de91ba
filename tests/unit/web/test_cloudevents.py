"""CloudEvents: accepted in three modes, emitted as batches, and refused with a sentence."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from cloudevents.core.bindings import kafka
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_structured_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.v1.event import CloudEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.backends import Batch
from router.model import Message, Position, Stored, TopicName
from router.web.bodies import event_line
from router.web.bodies.cloudevents import EVENT, EVENT_BATCH, MAX_ATTRIBUTES, events
from tests.unit.web.applications import BOTH, Site

Sites = Callable[..., Site]
REQUIRED = {"specversion": "1.0", "id": "7", "source": "/sensors/1", "type": "org.example.made"}
HEADERS = {f"ce-{name}": value for name, value in REQUIRED.items()}
Event = dict[str, Any]


@pytest.fixture(scope="module")
def refusing() -> Iterator[Site]:
    """An application that the tests which use it store nothing in."""
    site = Site({})
    yield site
    site.close()


def published(site: Site, event: Event | list[Event], kind: str = EVENT, query: str = "") -> Any:
    return site.post(f"/events/t{query}", json.dumps(event), kind)


def polled(site: Site, accept: str = EVENT_BATCH) -> list[Event]:
    answer = site.poll(Accept=accept)
    assert (answer.status_code, answer.content_type) == (200, EVENT_BATCH), answer.text
    events: list[Event] = answer.get_json()
    return events


def stored(site: Site) -> list[Message]:
    return [message for batch in site.backend.published for message in batch.messages]


def refused(answer: Any, sentence: str, numbers: tuple[int, int] = (3005, 5007)) -> None:
    assert answer.status_code == 400, answer.text
    body = answer.get_json()
    assert set(body) == BOTH
    assert (body["mrErrorCode"], body["mrstatus"]) == numbers
    assert sentence in body["message"], body["message"]


# What attributes may hold, headers that are percent-encoded included.
_TEXTS = st.text(
    st.characters(
        exclude_categories=["Cs", "Cc"],
        exclude_characters="".join(
            chr(plane + end) for plane in range(0, 0x110000, 0x10000) for end in (0xFFFE, 0xFFFF)
        )
        + "".join(map(chr, range(0xFDD0, 0xFDF0))),
    ),
    min_size=1,
    max_size=12,
)
_NAMES = st.text("abcxyz019", min_size=1, max_size=20).filter(
    lambda name: name not in {"data", "time", "id", "type", "source", "subject"}
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=6,
)
_ATTRIBUTES = st.builds(
    lambda extensions, own: extensions | REQUIRED | own,
    st.dictionaries(_NAMES, _TEXTS, max_size=3),
    st.fixed_dictionaries(
        {"id": _TEXTS, "type": _TEXTS, "source": st.sampled_from(["/a", "urn:x", "a?b#c"])},
        optional={
            "subject": _TEXTS,
            "time": st.sampled_from(["2026-11-22T10:00:00Z", "2026-11-22t10:00:00.123456+01:30"]),
            "partitionkey": _TEXTS,
            "dataschema": st.just("https://example.org/schema"),
        },
    ),
)
_DATA = st.one_of(
    st.just({}),
    st.builds(lambda data: {"data": data}, _JSON),
    st.builds(lambda data: {"data": data, "datacontenttype": "application/json"}, _JSON),
    st.builds(
        lambda data: {"data": data, "datacontenttype": "text/plain"},
        st.text(st.characters(exclude_categories=["Cs"])),
    ),
    st.builds(
        lambda data, kind: {"data_base64": base64.b64encode(data).decode(), **kind},
        st.binary(),
        st.sampled_from([{}, {"datacontenttype": "image/png"}, {"datacontenttype": "text/xml"}]),
    ),
)


def meaning(event: Event) -> tuple[Event, object]:
    """Return what an event says, however it is written: attributes, and its data as bytes."""
    attributes = {name: value for name, value in event.items() if not name.startswith("data")}
    for name in ("dataschema", "datacontenttype"):
        if name in event:
            attributes[name] = event[name]
    if (encoded := event.get("data_base64")) is not None:
        data: object = base64.b64decode(encoded)
    elif event.get("data") is None:
        return attributes, None
    elif "json" in event.get("datacontenttype", "json"):
        data = event["data"]
    else:
        return attributes, event["data"].encode()
    if isinstance(data, bytes) and "json" in event.get("datacontenttype", "json"):
        try:
            return attributes, ("json", json.loads(data))
        except ValueError:
            return attributes, data
    return attributes, data if isinstance(data, bytes) else ("json", data)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    events=st.lists(st.builds(lambda a, d: a | d, _ATTRIBUTES, _DATA), min_size=1, max_size=3),
    mode=st.sampled_from(["binary", "structured", "batched"]),
)
def test_event_is_emitted_as_it_was_accepted(site: Site, events: list[Event], mode: str) -> None:
    if mode == "batched":
        assert published(site, events, EVENT_BATCH).status_code == 200
    elif mode == "structured":
        for event in events:
            assert published(site, event).status_code == 200
    else:
        for event in events:
            assert in_binary_mode(site, event).status_code == 200
    assert list(map(meaning, polled(site))) == list(map(meaning, events))


def in_binary_mode(site: Site, event: Event) -> Any:
    headers = {
        f"ce-{name}": quote(value, safe="")
        for name, value in event.items()
        if name not in {"data", "data_base64", "datacontenttype"}
    }
    _, data = meaning(event)
    if isinstance(data, tuple):
        body = (
            json.dumps(event["data"]).encode()
            if "data" in event
            else base64.b64decode(event["data_base64"])
        )
    else:
        body = data if isinstance(data, bytes) else b""
    if not body:  # binary mode has no empty data
        event.pop("data", None)
        event.pop("data_base64", None)
    return site.post("/events/t", body, event.get("datacontenttype", ""), headers=headers)


def test_message_is_stored_as_the_binding_of_kafka_has_it(site: Site) -> None:
    event = REQUIRED | {
        "time": "1970-01-01T01:00:01+01:00",
        "subject": "é x",
        "partitionkey": "k",
        "count": 42,
        "flag": True,
        "none": None,
        "datacontenttype": "application/json; charset=utf-8",
        "data": {"a": [1.0, 2]},
    }
    assert published(site, event).get_json()["count"] == 1
    [message] = stored(site)
    assert message == Message(
        b'{"a": [1.0, 2]}',
        b"k",
        {f"ce_{name}": value for name, value in REQUIRED.items()}
        | {"ce_time": "1970-01-01T01:00:01+01:00", "ce_subject": "é x", "ce_partitionkey": "k"}
        | {"ce_count": "42", "ce_flag": "true", "content-type": "application/json; charset=utf-8"},
        1000,
    )


def test_binary_mode_stores_the_body_whatever_its_type(site: Site) -> None:
    body = b"two\nlines"
    headers = HEADERS | {"CE-Subject": "a%20b%c3%a9", "ce-old": '"in \\"quotes\\" %31"'}
    assert site.post("/events/t", body, "text/plain", headers=headers).get_json()["count"] == 1
    [message] = stored(site)
    assert message.value == body
    assert message.properties["ce_subject"] == "a bé"
    assert message.properties["ce_old"] == 'in "quotes" 1'
    assert message.properties["content-type"] == "text/plain"
    [event] = polled(site)
    assert event == REQUIRED | {
        "subject": "a bé",
        "old": 'in "quotes" 1',
        "datacontenttype": "text/plain",
        "data": "two\nlines",
    }


def test_key_of_the_request_comes_before_that_of_the_event(site: Site) -> None:
    event = REQUIRED | {"partitionkey": "own"}
    published(site, event)
    published(site, event, query="?partitionKey=asked")
    published(site, REQUIRED, query="?partitionKey=asked")
    assert [message.key for message in stored(site)] == [b"own", b"asked", b"asked"]


def test_event_without_data_is_a_message_without_a_value(site: Site) -> None:
    published(site, REQUIRED)
    site.post("/events/t", b"", "", headers=HEADERS)
    published(site, REQUIRED | {"data_base64": "", "datacontenttype": "image/png"})
    assert [message.null for message in stored(site)] == [True, True, False]
    assert polled(site) == [
        REQUIRED,
        REQUIRED,
        REQUIRED | {"data_base64": "", "datacontenttype": "image/png"},
    ]


def test_null_that_is_data_is_not_taken_for_no_data(site: Site) -> None:
    kind = "application/json"
    site.post("/events/t", b" null\n", kind, headers=HEADERS)
    published(site, REQUIRED | {"data": None, "datacontenttype": kind})
    first, second = polled(site)
    assert first == REQUIRED | {"datacontenttype": kind, "data_base64": "IG51bGwK"}
    assert second == REQUIRED | {"datacontenttype": kind}


def test_batch_may_be_empty(site: Site) -> None:
    assert published(site, [], EVENT_BATCH).get_json()["count"] == 0


def test_text_of_json_data_is_kept_as_sent(site: Site) -> None:
    big = '{"n": 12345678901234567890123,\n "n2":1.10}'
    site.post("/events/t", json.dumps(REQUIRED)[:-1] + f', "data" : {big} }}', EVENT)
    assert stored(site)[0].value == big.encode()
    assert big in site.poll(Accept=EVENT_BATCH).text


def test_document_counts_and_not_the_headers_beside_it(site: Site) -> None:
    site.post("/events/t", json.dumps(REQUIRED), EVENT, headers={"ce-id": "other"})
    assert polled(site) == [REQUIRED]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        *(({name: None}, f"{name} is missing") for name in REQUIRED),
        ({"id": ""}, "id is missing or empty"),
        ({"specversion": "0.3"}, 'specversion: "0.3" is not known, only 1.0.'),
        ({"Upper": "x"}, '"Upper" is no name of an attribute'),
        ({"a_b": "x"}, '"a_b" is no name of an attribute'),
        ({"source": "a b"}, 'source: "a b" is no URI reference'),
        ({"source": "%zz"}, "is no URI reference"),
        ({"dataschema": "/relative"}, "dataschema: "),
        ({"dataschema": ""}, "dataschema: "),
        ({"subject": ""}, "subject: an empty text"),
        ({"time": "yesterday"}, 'time: "yesterday" is no time'),
        ({"time": "2026-13-01T00:00:00Z"}, "is no time"),
        ({"time": "2026-01-01T00:00:00"}, "is no time"),
        ({"datacontenttype": "json"}, 'datacontenttype: "json" is no media type'),
        ({"count": 1.5}, "count: expected a text, true, false, or a whole number"),
        ({"count": 2**31}, "count: expected"),
        ({"count": {"a": 1}}, "count: expected"),
        ({"id": 7.5}, "id: expected"),
        ({"bell": "a\x07"}, 'bell: "\\u0007" is no character'),
        ({"half": "\ud800"}, "half: "),
        ({"data": 1, "data_base64": "QQ=="}, "both data and data_base64"),
        ({"data_base64": "Q"}, "data_base64: it is no base64"),
        ({"data_base64": "QQ==\n"}, "data_base64: it is no base64"),
        ({"data_base64": "é"}, "data_base64: it is no base64"),
        ({"data_base64": 7}, "data_base64: expected a text"),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, "data: expected a text"),
        ({"data": "\ud800", "datacontenttype": "text/plain"}, "data: it holds half"),
        ({"data": "é", "datacontenttype": "text/plain; charset=latin1"}, "data: a text is UTF-8"),
        ({f"a{number}": "x" for number in range(MAX_ATTRIBUTES)}, "over 100 attributes"),
    ],
)
def test_event_that_is_not_valid_is_refused_with_its_reason(
    refusing: Site, changes: Event, sentence: str
) -> None:
    event = {name: value for name, value in {**REQUIRED, **changes}.items() if value is not None}
    refused(published(refusing, event), sentence)
    answer = published(refusing, [REQUIRED, event], EVENT_BATCH)
    refused(answer, sentence)
    assert "Event 2 of the batch: " in answer.get_json()["message"]
    assert stored(refusing) == []


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        *(({f"ce-{name}": None}, f"{name} is missing") for name in REQUIRED),
        ({"ce-specversion": "0.3"}, "specversion"),
        ({"ce-x-y": "v"}, '"x-y" is no name'),
        ({"ce-data": "v"}, "data is no attribute that can be sent by this name"),
        ({"ce-datacontenttype": "text/plain"}, "datacontenttype is no attribute that can be sent"),
        ({"ce-x": "%c3%28"}, "ce-x: what is percent-encoded is no UTF-8"),
        ({"ce-x": "100%"}, "ce-x: "),
        ({"ce-x": "%4"}, "ce-x: "),
        ({"ce-x": "\xff"}, "is to be percent-encoded"),
        ({"ce-x": '"open'}, "is no quoted text"),
        ({"ce-x": "%00"}, "is no character"),
        ({"Content-Type": "nothing"}, "datacontenttype"),
    ],
)
def test_headers_that_are_no_event_are_refused_with_their_reason(
    refusing: Site, headers: dict[str, str | None], sentence: str
) -> None:
    sent = {name: value for name, value in {**HEADERS, **headers}.items() if value is not None}
    refused(refusing.client.post("/events/t", data=b"x", headers=sent), sentence)
    assert stored(refusing) == []


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (b"[]", EVENT, "Expected an object at character 0"),
        (b"{}", EVENT_BATCH, "Expected an array at character 0"),
        (b"[{}] x", EVENT_BATCH, "Event 1 of the batch: The attribute specversion"),
        (json.dumps(REQUIRED).encode() * 2, EVENT, "More follows at character"),
        (b"\xff", EVENT, "not UTF-8"),
        (b'{"data":' + b"[" * 600 + b"]" * 600 + b"}", EVENT, "nested more than 500 deep"),
        (b'{"id":"1","id":"2"}', EVENT, '"id" is there twice'),
        (b'{"specversion":NaN}', EVENT, "NaN is no JSON"),
    ],
)
def test_body_that_is_no_event_is_refused(
    refusing: Site, body: bytes, kind: str, sentence: str
) -> None:
    refused(refusing.post("/events/t", body, kind), sentence)


def test_event_in_a_format_that_the_router_does_not_read_is_415(site: Site) -> None:
    answer = site.post("/events/t", b"\0", "application/cloudevents+avro")
    assert answer.status_code == 415
    assert EVENT_BATCH in answer.get_json()["message"]


def test_bounds_of_publishing_hold_for_events(sites: Sites) -> None:
    site = sites(publish_max_messages="2", publish_max_message="70000")
    assert published(site, [REQUIRED] * 3, EVENT_BATCH).status_code == 413
    assert published(site, [REQUIRED] * 2, EVENT_BATCH).status_code == 200
    # Every intermediary forwards 64 KB; attributes count as properties do.
    assert published(site, REQUIRED | {"large": "x" * 65_536}).status_code == 200
    assert published(site, REQUIRED | {"large": "x" * 70_000}).status_code == 413
    assert polled(site)[2]["large"] == "x" * 65_536


def test_compressed_events_are_bounded_as_other_bodies_are(sites: Sites) -> None:
    site = sites(publish_max_batch="1M", publish_max_ratio="10")
    packed = {"Content-Encoding": "gzip"}
    bomb = gzip.compress(json.dumps([REQUIRED] * 10_000).encode())
    assert site.post("/events/t", bomb, EVENT_BATCH, headers=packed).status_code == 413
    few = gzip.compress(json.dumps([REQUIRED] * 3).encode())
    assert site.post("/events/t", few, EVENT_BATCH, headers=packed).get_json()["count"] == 3
    data = gzip.compress(b"a\nb")
    answer = site.post("/events/t", data, "text/plain", headers=packed | HEADERS)
    assert answer.get_json()["count"] == 1
    assert stored(site)[-1].value == b"a\nb"
    refused(site.post("/events/t", few[:-9], EVENT_BATCH, headers=packed), "", (3003, 5007))


def test_large_batch_is_read_beside_the_event_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    reader = site.body_reader()
    offload = reader.offload

    def noted(*parts: Any) -> Any:
        used.append(1)
        return offload(*parts)

    monkeypatch.setattr(reader, "offload", noted)
    assert published(site, [REQUIRED] * 300, EVENT_BATCH).get_json()["count"] == 300
    assert used


@pytest.mark.parametrize(
    ("value", "key", "expected"),
    [
        (b'{"a":1}', b"k", {"datacontenttype": "application/json", "data": {"a": 1}}),
        (b"text", "é".encode(), {"datacontenttype": "text/plain", "data": "text"}),
        (b"\xff", b"\xff", {"datacontenttype": "application/octet-stream", "data_base64": "/w=="}),
        (b"{broken", None, {"datacontenttype": "text/plain", "data": "{broken"}),
    ],
)
def test_message_that_is_no_event_gets_attributes(
    site: Site, value: bytes, key: bytes | None, expected: Event
) -> None:
    site.post("/events/t", b"first", "x/y")
    batch = Batch(TopicName.parse("t"), -1, [Message(value, key)])
    site.backend.publish(batch, 1)
    _, event = polled(site)
    when = datetime.fromisoformat(event.pop("time"))
    assert abs((datetime.now(UTC) - when).total_seconds()) < 600
    if key in {b"k", "é".encode()}:
        assert event.pop("partitionkey") == (key or b"").decode()
    assert event == expected | {
        "specversion": "1.0",
        "id": "0:1:1",
        "source": "/events/t",
        "type": "dragoman.message",
    }


def test_time_that_no_calendar_has_is_left_out() -> None:
    for milliseconds, expected in (
        (2**62, None),
        (-(2**62), None),
        (0, "1970-01-01T00:00:00.000Z"),
    ):
        stored = Stored(Message(b"x"), Position(0, 1), milliseconds)
        assert json.loads(event_line(stored, "/events/t")).get("time") == expected


def test_event_of_kafkas_structured_mode_is_emitted_as_it_is(site: Site) -> None:
    site.post("/events/t", b"first", "x/y")
    event = REQUIRED | {"data": {"a": 1}}
    messages = [
        Message(json.dumps(event).encode(), None, {"content-type": f"{EVENT}; charset=UTF-8"}),
        Message(b"{}", None, {"content-type": EVENT}),
        Message(
            b"v", None, {f"ce_{name}": value for name, value in REQUIRED.items()} | {"ce_É": ""}
        ),
        Message(b"v", None, {"ce_specversion": "1.0", "ce_id": "7"}),
    ]
    site.backend.publish(Batch(TopicName.parse("t"), -1, messages), 1)
    _, first, second, third, fourth = polled(site)
    assert first == event
    assert second["type"] == fourth["type"] == "dragoman.message"
    assert third == REQUIRED | {"data_base64": "dg=="}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (EVENT, EVENT_BATCH),
        (f"text/html, {EVENT_BATCH};q=0.1", EVENT_BATCH),
        (f"application/json, {EVENT_BATCH}", "application/json"),
        (f"{EVENT_BATCH};q=0.5, */*;q=0.6", "application/json"),
        ("application/*", "application/json"),
        ("*/*", "application/json"),
        (f"{EVENT_BATCH};q=0, */*", "application/json"),
    ],
)
def test_events_are_answered_to_an_accept_that_names_them_alone(
    site: Site, accept: str, kind: str
) -> None:
    published(site, REQUIRED)
    assert site.poll(Accept=accept).content_type == kind


def test_content_type_of_a_poll_asks_for_no_events(site: Site) -> None:
    published(site, REQUIRED)
    assert site.poll(**{"Content-Type": EVENT_BATCH}).content_type == "application/json"


def test_events_are_shown_to_other_dialects_as_messages_with_properties(site: Site) -> None:
    published(site, REQUIRED | {"data": {"a": 1}})
    line = json.loads(site.poll(Accept="application/x-ndjson").data)
    assert line["properties"] == {f"ce_{name}": value for name, value in REQUIRED.items()}
    assert json.loads(site.poll("/events/t/h/c").get_json()[0]) == {"a": 1}


def test_stream_emits_events_to_an_accept_that_names_them(site: Site) -> None:
    body = json.dumps(REQUIRED)[:-1] + ', "data": {\n"a":\r\n1}}'
    site.post("/events/t", body, EVENT)
    headers = {"Accept": f"text/event-stream, {EVENT}"}
    answer = site.client.get("/events/t?from=earliest", headers=headers)
    pieces = iter(answer.iter_encoded())
    next(pieces)
    fields = dict(line.split(b": ", 1) for line in next(pieces).splitlines() if line)
    assert json.loads(fields[b"data"]) == REQUIRED | {"data": {"a": 1}}
    answer.close()


_SDK_EVENTS = st.builds(
    CloudEvent,
    st.fixed_dictionaries(
        {"id": _TEXTS, "type": _TEXTS, "source": st.just("/sdk"), "specversion": st.just("1.0")},
        optional={
            "subject": _TEXTS,
            "time": st.datetimes(timezones=st.just(UTC)),
            "ext": _TEXTS,
            "datacontenttype": st.just("application/json"),
        },
    ),
    st.dictionaries(_NAMES, st.integers(-9, 9) | _TEXTS, max_size=3),
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(event=_SDK_EVENTS, binary=st.booleans())
def test_official_sdk_reads_what_it_wrote(site: Site, event: CloudEvent, binary: bool) -> None:
    sent = to_binary_event(event) if binary else to_structured_event(event)
    answer = site.client.post("/events/t", data=sent.body, headers=sent.headers)
    assert answer.status_code == 200, answer.text
    [found] = polled(site)
    read = from_structured_event(HTTPMessage({"content-type": EVENT}, json.dumps(found).encode()))
    assert read.get_attributes() == event.get_attributes()
    assert read.get_data() == event.get_data()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(event=_SDK_EVENTS, structured=st.booleans())
def test_official_sdk_for_kafka_reads_what_is_stored_and_is_read(
    site: Site, event: CloudEvent, structured: bool
) -> None:
    site.post("/events/t", to_structured_event(event).body, EVENT)
    message = stored(site)[-1]
    headers = {name: value.encode() for name, value in message.properties.items()}
    found = kafka.from_binary_event(kafka.KafkaMessage(headers, message.key, message.value))
    assert found.get_attributes() == event.get_attributes()
    assert found.get_data() == event.get_data()
    sent = (kafka.to_structured_event if structured else kafka.to_binary_event)(event)
    properties = {name: value.decode() for name, value in sent.headers.items()}
    key = sent.key.encode() if isinstance(sent.key, str) else sent.key
    again = Message(sent.value, key, properties)
    site.backend.publish(Batch(TopicName.parse("t"), -1, [again]), 1)
    first, second = map(meaning, polled(site))
    assert first == second


_NOISE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
_WORDS = st.sampled_from([*REQUIRED, "data", "data_base64", "datacontenttype", "time", "subject"])
_DAMAGED = st.builds(
    lambda event, changes: event | changes,
    st.sampled_from([REQUIRED, REQUIRED | {"data": 1}, {}]),
    st.dictionaries(_WORDS | st.text(max_size=4), _NOISE, max_size=2),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    document=st.one_of(_NOISE, _DAMAGED, st.lists(_DAMAGED, max_size=2)),
    kind=st.sampled_from([EVENT, EVENT_BATCH]),
)
def test_no_document_is_more_than_refused(site: Site, document: object, kind: str) -> None:
    answer = site.post("/events/t", json.dumps(document), kind)
    assert answer.status_code in {200, 400}, answer.text
    if answer.status_code == 200 and answer.get_json()["count"]:
        assert all(REQUIRED.keys() <= event.keys() for event in polled(site))


_VALUES = st.binary(max_size=20) | st.sampled_from(
    [
        b"null",
        b" null\n",
        b"[1e999]",
        b"NaN",
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b"[" * 2000,
        b"1" * 400,
    ]
)
_PROPERTIES = st.dictionaries(
    st.sampled_from([f"ce_{name}" for name in [*REQUIRED, "data", "time", "É", ""]])
    | st.sampled_from(["content-type", "traceparent", "tracestate", "x"]),
    st.sampled_from(["1.0", "", "\x00", EVENT, "application/json", "text/plain", "a/b;charset=x"])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    max_size=7,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    value=_VALUES,
    key=st.none() | st.binary(max_size=4),
    properties=_PROPERTIES,
    null=st.booleans(),
    when=st.integers(-(2**63), 2**63 - 1),
)
def test_every_message_is_shown_as_a_valid_event(
    value: bytes, key: bytes | None, properties: dict[str, str], null: bool, when: int
) -> None:
    message = Message(b"" if null else value, key, properties, null=null)
    line = event_line(Stored(message, Position(3, 4, 5, 6), when), "/events/t")
    assert b"\n" not in line
    assert b"\r" not in line
    [again] = events(EVENT, line, None, 1 << 20)
    assert again.null == null
    assert again.value == message.value
    shown = json.loads(line)
    assert shown["specversion"] == "1.0"
