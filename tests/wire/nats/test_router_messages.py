"""Messages of NATS and of the router into each other: nothing is lost, whatever headers hold."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from router.model import Message
from router.wire.nats.headers import build, first, read
from router.wire.nats.message import NatsMessage
from router.wire.nats.router_messages import (
    ALL_HEADERS,
    BINARY_KEY,
    EVENT_TIME,
    KEY,
    NULL,
    OTHER_PROPERTIES,
    REPLICATE_TO,
    SCHEMA_VERSION,
    read_message,
    routing_key,
    subject_of,
    write_message,
)

OWN = [KEY, BINARY_KEY, EVENT_TIME, NULL, SCHEMA_VERSION, REPLICATE_TO, OTHER_PROPERTIES]
NAMES = st.text(max_size=4) | st.sampled_from([*OWN, ALL_HEADERS, "Nats-Subject", "a", "A", "b:c"])
TEXTS = st.text(max_size=6) | st.sampled_from(
    ["a\r\nb", " a", "a ", "\n", "a.b", "a..b", "1", "true"]
)
PROPERTIES = st.dictionaries(NAMES, TEXTS, max_size=4)
KEYS = st.none() | st.binary(max_size=6) | st.text(max_size=4).map(str.encode)
VALUES = st.tuples(st.binary(max_size=20), st.just(value=False)) | st.just((b"", True))
MESSAGES = st.builds(
    lambda value, key, properties, time, version, clusters: Message(
        value[0],
        key,
        properties,
        event_time=time,
        schema_version=version,
        null=value[1],
        replicate_to=clusters,
    ),
    VALUES,
    KEYS,
    PROPERTIES,
    st.none() | st.integers(0, 2**63 - 1),
    st.binary(max_size=9),
    st.sampled_from([(), ("east",), ("east", "west")]),
)

LINES = st.one_of(
    st.binary(max_size=12),
    st.tuples(NAMES, TEXTS).map(lambda pair: f"{pair[0]}: {pair[1]}".encode()),
    st.sampled_from(["a", *OWN, ALL_HEADERS]).map(lambda name: f"{name}: 1".encode()),
    st.sampled_from([{"a\n": "b"}, {"a": 1}, {"Nats-Subject": "x"}, [], {ALL_HEADERS: "AA=="}]).map(
        lambda found: f"{OTHER_PROPERTIES}: ".encode() + b64encode(json.dumps(found).encode())
    ),
)
BLOCKS = st.lists(LINES, max_size=4).map(
    lambda lines: b"".join([b"NATS/1.0\r\n", *(line + b"\r\n" for line in lines), b"\r\n"])
)
NATS_MESSAGES = st.builds(
    NatsMessage,
    st.sampled_from(["a", "größe.x", ""]),
    st.just(""),
    BLOCKS | st.binary(max_size=30) | st.sampled_from([b"", b"NATS/1.0 503\r\n\r\n"]),
    st.sampled_from([b"", b"x", b"\x00\xff"]),
)


@given(message=NATS_MESSAGES)
@example(NatsMessage("", "", b"NATS/1.0\r\nNats-Subject: x\r\n\r\n"))
@example(NatsMessage("x", "", b"NATS/1.0\r\nrouter-key: a\r\nrouter-key: b\r\n\r\n"))
def test_messages_of_nats_come_back_to_the_byte(message: NatsMessage) -> None:
    assert write_message(read_message(message)) == message


@given(message=MESSAGES)
@example(Message(b"", properties={ALL_HEADERS: b64encode(b"NATS/1.0\r\na: 1\r\n\r\n").decode()}))
@example(Message(b"", properties={"b:": "1", "a": "x\n"}))
@example(Message(b"", properties={"Nats-Subject": "a b"}))
def test_messages_of_the_router_come_back_whole(message: Message) -> None:
    assert read_message(write_message(message)) == message


@given(message=MESSAGES)
def test_what_is_written_is_a_sound_block(message: Message) -> None:
    written = write_message(message)
    if ALL_HEADERS in message.properties and first(written.headers, OTHER_PROPERTIES) is None:
        return  # what a client published, as it was
    block = written.headers
    assert build(read(block)) == block
    found = asyncio.run(Client()._process_headers(block)) or {}
    assert found == dict(read(block))
    for name, text in message.properties.items():
        if name.isalpha() and name.isascii() and text.isalnum():
            assert found[name] == text


@pytest.mark.parametrize(
    ("message", "headers"),
    [
        (Message(b"v"), {}),
        (Message(b"v", b"k"), {KEY: "k"}),
        (Message(b"v", "ü".encode()), {KEY: "ü"}),
        (Message(b"v", b""), {KEY: ""}),
        (Message(b"v", b"\xff"), {BINARY_KEY: "/w=="}),
        (Message(b"v", b"a\n"), {BINARY_KEY: "YQo="}),
        (Message(b"v", b" a"), {BINARY_KEY: "IGE="}),
        (Message(b"v", event_time=77), {EVENT_TIME: "77"}),
        (Message(b"", null=True), {NULL: "true"}),
        (Message(b"v", properties={"a": "1", "B": "größe"}), {"a": "1", "B": "größe"}),
        (Message(b"v", schema_version=b"\0\1"), {SCHEMA_VERSION: "AAE="}),
        (Message(b"v", replicate_to=("x", "y")), {REPLICATE_TO: "x,y"}),
        (
            Message(b"v", properties={"a": "1\r\n2"}),
            {"a": "1 2", OTHER_PROPERTIES: "eyJhIjoiMVxyXG4yIn0="},
        ),
        (Message(b"v", properties={"ü": "1"}), {OTHER_PROPERTIES: "eyLDvCI6IjEifQ=="}),
        (Message(b"v", deliver_at=5, sequence=7), {}),
    ],
)
def test_fields_of_the_router_are_headers(message: Message, headers: dict[str, str]) -> None:
    written = write_message(message)
    assert dict(read(written.headers)) == headers
    assert written._replace(headers=b"") == NatsMessage("", "", b"", message.value)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"", Message(b"v")),
        (b"NATS/1.0\r\nA: 1\r\nb: 2\r\n\r\n", Message(b"v", properties={"A": "1", "b": "2"})),
        (
            b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n",
            Message(b"v", properties={"A": "2", "router-headers": '[["A","1"],["A","2"]]'}),
        ),
        (b"NATS/1.0\r\nrouter-key: k\r\n\r\n", Message(b"v", b"k")),
        (b"NATS/1.0\r\nrouter-event-time: 5\r\n\r\n", Message(b"v", event_time=5)),
    ],
)
def test_headers_are_properties_and_fields(block: bytes, message: Message) -> None:
    properties = {**message.properties, "Nats-Subject": "s.t"}
    read_back = read_message(NatsMessage("s.t", "", block, b"v"))
    assert read_back == message._replace(properties=properties)


@pytest.mark.parametrize(
    ("line", "properties"),
    [
        (b"A:1\r\nA:2", {"A": "2", "router-headers": '[["A","1"],["A","2"]]'}),
        (b"A: \xff", {"A": "\ufffd"}),
        (b"A:1", {"A": "1"}),
        (b"no colon", {}),
        (b"router-event-time: soon", {}),
        (b"router-event-time: 9999999999999999999", {}),
        (b"router-event-time: " + b"9" * 5000, {}),
        (b"router-null: true", {}),
        (b"router-properties: eyJhIjoxfQ==", {}),
        (b"Nats-Subject: other", {}),
    ],
)
def test_a_block_that_says_more_than_properties_is_kept_beside_them(
    line: bytes, properties: dict[str, str]
) -> None:
    block = b"NATS/1.0\r\n" + line + b"\r\n\r\n"
    found = read_message(NatsMessage("s", "", block, b"v"))
    whole = {ALL_HEADERS: b64encode(block).decode(), "Nats-Subject": "s"}
    assert found == Message(b"v", properties=properties | whole)


def test_a_block_of_another_message_is_not_taken_for_its_own() -> None:
    block = b64encode(b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n").decode()
    message = Message(b"v", properties={"A": "3", ALL_HEADERS: block})
    written = write_message(message)
    assert first(written.headers, "A") == "3"
    assert read_message(written) == message


def test_a_block_is_restored_whatever_number_and_time_of_delivery_there_are() -> None:
    message = NatsMessage("s", "", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b"v")
    through_pulsar = read_message(message)._replace(sequence=7, deliver_at=9)
    assert write_message(through_pulsar) == message


def test_a_block_within_a_block_within_a_block_ends() -> None:
    message = Message(b"v", properties={ALL_HEADERS: "AAAA"})
    for _ in range(12):
        block = write_message(message).headers
        message = Message(b"v", properties={ALL_HEADERS: b64encode(block).decode()})
    assert read_message(write_message(message)) == message


@pytest.mark.parametrize(
    ("properties", "subject"),
    [
        ({"Nats-Subject": "a.b"}, "a.b"),
        ({"Nats-Subject": "a.*"}, ""),
        ({"Nats-Subject": "a b"}, ""),
        ({"Nats-Subject": ""}, ""),
        ({"nats-subject": "a"}, ""),
        ({}, ""),
    ],
)
def test_a_property_is_the_subject_if_it_is_one(properties: dict[str, str], subject: str) -> None:
    assert subject_of(properties) == subject
    assert write_message(Message(b"", properties=properties)).subject == subject


def test_text_that_has_no_bytes_is_refused() -> None:
    for properties in ({"a": "\ud800"}, {"\ud800": "a"}, {"Nats-Subject": "\ud800"}):
        with pytest.raises(ValueError, match=r"surrogate|UTF-8|utf-8"):
            write_message(Message(b"", properties=properties)).subject.encode()


def test_a_key_says_who_gets_a_message_and_without_one_its_subject() -> None:
    assert routing_key(NatsMessage("s.t")) == b"s.t"
    assert routing_key(write_message(Message(b"", b"k"))) == b"k"
    assert routing_key(write_message(Message(b"", b"\xff"))) == b"\xff"
    block = b"NATS/1.0\r\nrouter-keys: x\r\n\r\n"
    assert routing_key(NatsMessage("s", "", block)) == b"s"
