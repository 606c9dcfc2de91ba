"""Values of messages for readers that name a schema: it decides how they are written."""

from __future__ import annotations

from base64 import b64encode
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.backends import Batch, NullMailbox, Start
from router.model import Message, TopicName
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.conftest import make_topic
from tests.unit.web.pulsar_rest.events import parse, take
from tests.unit.web.pulsar_rest.rest import Rest, told

_numbers = count()


def streamed(rest: Rest, path: str, events: int) -> list[Any]:
    """Return the messages of a stream's first events."""
    answer = rest.client.get(f"{rest.at}{path}", buffered=False)
    return [event.data for event in parse(take(answer, events))[0]]


@pytest.mark.parametrize("value", ["AAA0", "aGVsbG8=", "", "/w=="])
def test_bytes_are_base64_wherever_they_are_named(rest: Rest, value: str) -> None:
    rest.produce({"key": "aw==", "value": value}, {"value": None}, schema_type="bytes")
    consumer = rest.consumer(schema_type="bytes")
    streaming = rest.consumer("streaming", schema_type="bytes")
    path = streaming.at.removeprefix(rest.at)
    for messages in (
        consumer.fetch(),
        rest.consumer("queried").fetch("schema_type=bytes"),
        rest.read("schema_type=BYTES"),
        streamed(rest, "/partitions/0/messages?stream&schema_type=bytes", 2),
        streamed(rest, "/messages?stream&schema_type=bytes", 2),
        streamed(rest, f"{path}/messages?stream", 2),
    ):
        assert [(found["key"], found["value"]) for found in messages] == [
            ("aw==", value),
            (None, None),
        ]
        assert messages[0]["valueEncoding"] == messages[0]["keyEncoding"] == "base64"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.none() | st.binary(), st.none() | st.binary()), min_size=1, max_size=9)
)
def test_what_bytes_read_can_be_produced_again(
    site: Site, pairs: list[tuple[bytes | None, bytes | None]]
) -> None:
    rest = make_topic(site, f"again-{next(_numbers)}")
    sent = [{"key": _base64(key), "value": _base64(value)} for key, value in pairs]
    assert rest.produce(*sent, schema_type="bytes").status_code == 200
    read = rest.read("schema_type=bytes")
    assert [{name: one[name] for name in ("key", "value")} for one in read] == sent
    rest.produce(*read, schema_type="bytes")
    found = site.backend.read(TopicName.parse(rest.topic), -1, Start.EARLIEST, NullMailbox(), 1)
    messages = [stored.message for stored in found.receive(100, 1 << 20, 1)]
    assert [(m.key, None if m.null else m.value) for m in messages] == pairs * 2


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


@pytest.mark.parametrize("key", ["a", "é", 7, {"a": 1}])
def test_key_that_is_no_base64_is_refused_by_its_name(rest: Rest, key: object) -> None:
    answer = rest.produce({"key": key, "value": ""}, schema_type="bytes")
    assert (answer.status_code, answer.get_json()["error_code"]) == (422, 42205)
    assert "messages[0]: its key: " in answer.text


@pytest.mark.parametrize(
    ("value", "text", "encoding"), [("aGVsbG8=", "hello", None), ("/w==", "/w==", "base64")]
)
def test_value_without_any_schema_is_text_where_it_can_be(
    rest: Rest, value: str, text: str, encoding: str | None
) -> None:
    rest.produce({"key": "aw==", "value": value}, schema_type="bytes")
    for [found] in (rest.read(), rest.consumer().fetch(), rest.read("schema_type=none")):
        assert (found["key"], found["value"], found.get("valueEncoding")) == ("k", text, encoding)


def test_bytes_that_are_named_show_what_is_stored_whatever_wrote_it(rest: Rest) -> None:
    rest.produce({"value": 7}, schema_type="INT32")
    [found] = rest.read("schema_type=bytes&include_schema")
    assert (found["value"], found["schemaVersion"]) == ("AAAABw==", 0)
    assert rest.consumer(schema_type="bytes").values() == ["AAAABw=="]


def test_schema_that_is_named_reads_messages_without_one(site: Site, rest: Rest) -> None:
    messages = [Message((7).to_bytes(4)), Message(b"abc")]
    site.backend.publish(Batch(TopicName.parse(rest.topic), -1, messages), 1)
    for first, second in (
        rest.read("schema_type=int32"),
        rest.consumer(schema_type="INT32").fetch(),
    ):
        assert (first["value"], first.get("valueEncoding")) == (7, None)
        assert (second["value"], second["valueEncoding"]) == ("YWJj", "base64")
        assert second["valueError"]


def test_messages_with_a_schema_are_read_by_their_own(rest: Rest) -> None:
    rest.produce({"value": 7}, schema_type="INT32")
    assert rest.consumer(schema_type="INT32").values("schema_type=STRING") == [7]


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "KEY_VALUE", "text", "AUTO_CONSUME", "%ff"])
def test_type_that_a_query_cannot_name_is_40001(rest: Rest, kind: str) -> None:
    consumer = rest.consumer()
    for path in (f"{rest.at}/partitions/0", f"{rest.at}", consumer.at):
        answer = rest.client.get(f"{path}/messages?stream&schema_type={kind}")
        assert told(answer) == (400, 40001)


def test_schema_version_is_the_same_in_each_answer_of_a_creation(rest: Rest) -> None:
    first = rest.consumer(schema_type="INT32")
    assert first.created["schema_version"] == 0
    for again in ({}, {"schema_version": 0}, {"schema_type": "INT32"}):
        assert rest.consumer(id=first.id, **again).created == first.created


def test_consumer_reads_by_the_schema_that_it_named_last(rest: Rest) -> None:
    rest.produce({"value": "AAA0"}, schema_type="bytes")
    consumer = rest.consumer(schema_type="INT32")
    assert rest.consumer(id=consumer.id, schema_type="bytes").created["schema_version"] is None
    assert rest.consumer(id=consumer.id).values() == ["AAA0"]
    assert rest.consumer(id=consumer.id, schema_type="none").fetch() == []
