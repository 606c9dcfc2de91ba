"""No value, an empty value and any other stay three things, whatever dialects a message crosses."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Batch
from router.backends.kafka.records import decode as read_kafka
from router.cli import formats
from router.model import Message, Position, Schema, SchemaType, Stored, TopicName
from router.services.topic_schemas import TopicSchemas
from router.web import bodies
from router.web.bodies.cloudevents import EVENT_BATCH
from router.web.bodies.inflate import PublishBounds
from router.web.media import Format
from router.web.pulsar_rest.dialects import RestDialect, read
from router.web.pulsar_rest.schemas import PublishSchema
from router.web.pulsar_rest.values import MessageFormatter, outgoing
from router.wire import ndjson
from router.wire.kafka.record_messages import write_messages
from router.wire.nats.router_messages import read_message, write_message
from router.wire.pulsar import pack, unpack, unpack_columns
from tests.unit.web.applications import Site

Cross = Callable[[Message], Message]

LIMIT = 1 << 20
BOUNDS = PublishBounds(LIMIT, 100, 100, LIMIT)
T = TopicName.parse("t")
BYTES = Schema(SchemaType.NONE, b"")

values = st.just(b"") | st.sampled_from([b"null", b'""', b"{}", b" "]) | st.binary(max_size=9)
keys = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).map(str.encode)
messages = st.tuples(st.none() | values, keys).map(
    lambda parts: Message(parts[0] or b"", parts[1], null=parts[0] is None)
)


def stored(message: Message) -> Stored:
    return Stored(message, Position(1, 2, -1, 0), 1_700_000_000_000)


def answered(message: Message, answer: Format, kind: str) -> Message:
    """Have a message answered to a poll and published again."""
    (found,) = bodies.read(kind, bodies.write(answer, [stored(message)]), None, BOUNDS)
    return found


def printed(message: Message) -> Message:
    """Have a message printed by `sub --json` and published by `pub --format ndjson`."""
    source = io.BytesIO(formats.write_described(stored(message)))
    (found,) = [one for some, _ in formats.READERS["ndjson"](source, None) for one in some]
    return found


def shown_to_commands(message: Message) -> Message:
    """Have a message streamed to a command over HTTP."""
    return formats.stored(orjson.dumps(ndjson.line(stored(message)))).message


def pip64(message: Message) -> Message:
    """Have a message read and produced by PIP 64, as bytes."""
    shown = MessageFormatter(T, cast("Any", None), BYTES).message(stored(message))
    body = {"messages": [{"key": shown["key"], "value": shown["value"]}]}
    (found,) = outgoing(read(body, RestDialect.PIP, 1), PublishSchema(BYTES), None, lambda: 0)
    return found.message


def pulsar(message: Message) -> Message:
    """Have a message stored in a batch of Pulsar's, read both ways."""
    payload = pack([message, message], "producer", 1, 2)
    columns = unpack_columns(payload, LIMIT)
    assert columns is not None
    (found, _) = unpack(payload, LIMIT)
    assert columns.values[0] == (None if message.null else message.value)
    return found.message


def kafka(message: Message) -> Message:
    """Have a message stored as a record of Kafka's."""
    (found,) = read_kafka(bytes(write_messages([message], 1, (1, 0), 0)), 0, 0)
    return found.message


CROSSINGS: dict[str, Cross] = {
    "ndjson": lambda message: answered(message, Format.NDJSON, ndjson.KIND),
    "CloudEvents": lambda message: answered(message, Format.EVENTS, EVENT_BATCH),
    "router pub and sub": printed,
    "remote commands": shown_to_commands,
    "PIP 64": pip64,
    "Pulsar": pulsar,
    "Kafka": kafka,
    "NATS": lambda message: read_message(write_message(message)),
}


@given(message=messages, way=st.lists(st.sampled_from(sorted(CROSSINGS)), min_size=2, max_size=3))
def test_no_value_and_an_empty_one_differ_through_any_dialects(
    message: Message, way: list[str]
) -> None:
    crossed = message
    for dialect in way:
        crossed = CROSSINGS[dialect](crossed)
    assert (crossed.null, crossed.value) == (message.null, message.value)
    assert crossed.key == message.key or "CloudEvents" in way


@pytest.mark.parametrize("choice", [Format.JSON, Format.CAMBRIA, Format.TEXT])
def test_dialects_without_null_show_an_empty_message(choice: Format) -> None:
    empty, none = stored(Message(b"")), stored(Message(b"", null=True))
    assert bodies.write(choice, [none]) == bodies.write(choice, [empty])


def test_values_as_json_show_null() -> None:
    assert formats.write_document(stored(Message(b"", null=True))) == b"null\n"
    assert formats.write_document(stored(Message(b""))) == b'""\n'


def test_console_tells_no_value_from_an_empty_one(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    sent = [Message(b"", b"k", null=True), Message(b"", b""), Message(b"text")]
    site.backend.publish(Batch(T, -1, sent), 5)
    shown = site.client.get("/console/topics/t?tab=messages&format=json").get_json()["messages"]
    assert [one["value"] for one in shown] == [None, "", "text"]
    page = site.client.get("/console/topics/t?tab=messages&format=html").text
    assert page.count("No value") == 1
    rows = site.client.get("/console/topics/t/export?as=csv").text.split("\r\n")[1:-1]
    assert [row.split(",")[3:5] for row in rows] == [["k", ""], ['""', '""'], ["", "text"]]
    lines = site.client.get("/console/topics/t/export?as=ndjson").data.splitlines()
    assert [(*ndjson.decode(line)[:2], ndjson.decode(line).null) for line in lines] == [
        (b"", b"k", True),
        (b"", b"", False),
        (b"text", None, False),
    ]


def test_value_of_an_unknown_schema_that_is_null_is_null(site: Site) -> None:
    formatter = MessageFormatter(T, TopicSchemas(site.backend, 5, time.monotonic))
    none = formatter.message(stored(Message(b"", null=True, schema_version=b"\0" * 8)))
    empty = formatter.message(stored(Message(b"", schema_version=b"\0" * 8)))
    assert (none["value"], empty["value"]) == (None, "")
    assert "valueError" in empty
