"""What a message holds beside its bytes: headers, what gzip and schemas say, and groups."""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64encode

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from router.model import CursorState, Message, Position, Schema, SchemaType, TopicName
from router.services import message_details as details
from router.services.message_groups import ACKNOWLEDGED, NOT_YET, PENDING, state_of
from router.services.topic_schemas import TopicSchemas

T = TopicName.parse("t")
AT = Position(5, 10, 0)


class _Schemas(TopicSchemas):
    """One schema, whatever is asked for."""

    def __init__(self, schema: Schema | None) -> None:
        self._schema = schema

    def find(self, topic: TopicName, version: bytes) -> Schema | None:
        return self._schema

    def newest(self, topic: TopicName) -> Schema | None:
        return self._schema


def test_headers_of_clients_are_apart_from_what_the_router_keeps() -> None:
    listed = json.dumps([["a", "1"], ["a", "2"]], separators=(",", ":"))
    message = Message(b"", None, {"a": "2", "router-headers": listed, "Nats-Subject": "t.x"})
    found = details.headers_of(message)
    assert found.pairs == (("a", "1"), ("a", "2"))
    assert found.notes == {"NATS subject": "t.x"}
    assert details.with_headers(message, {"b": "3"}) == {"b": "3", "Nats-Subject": "t.x"}


def test_what_a_dead_letter_says_of_its_origin_is_no_header_of_its_publisher() -> None:
    notes = {"router-topic": "t", "router-error": "no JSON", "router-position": "1:2"}
    message = Message(b"", None, {"a": "1", **notes, "router-undecoded": "body"})
    found = details.headers_of(message)
    assert found.pairs == (("a", "1"),)
    assert found.notes == {
        "Not decoded": "body",
        "Original topic": "t",
        "Original position": "1:2",
        "Error": "no JSON",
    }
    # What is edited and sent stays a dead letter that can be requeued.
    assert details.with_headers(message, {}) == notes | {"router-undecoded": "body"}


def test_gzip_is_unpacked_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(details, "MAX_UNPACKED_BYTES", 1_000)
    assert details.unpacked(gzip.compress(b"text")) == b"text"
    assert details.unpacked(gzip.compress(bytes(2_000))) == bytes(1_000)
    assert details.unpacked(b"\x1f\x8b\x08 and no more") is None
    assert details.unpacked(zlib.compress(b"text")) is None


def test_value_is_read_by_its_schema() -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
    avro = Schema(SchemaType.AVRO, json.dumps(record).encode())
    found = details.decoded(_Schemas(avro), T, Message(b"\x0e"))
    assert found == details.DecodedValue("AVRO", '{"n": 7}')
    wrong = details.decoded(_Schemas(avro), T, Message(b""))
    assert wrong is not None
    assert wrong.failure
    assert details.decoded(_Schemas(avro), T, Message(b"", null=True)) is None
    assert details.decoded(_Schemas(None), T, Message(b"a")) is None


def test_value_of_protocol_buffers_is_read_by_the_descriptors_of_its_schema() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(file)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    definition = {
        "fileDescriptorSet": b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": "google.protobuf.Timestamp",
    }
    schema = Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(definition).encode())
    payload = timestamp_pb2.Timestamp(seconds=1).SerializeToString()
    found = details.decoded(_Schemas(schema), T, Message(payload))
    assert found == details.DecodedValue("PROTOBUF_NATIVE", '"1970-01-01T00:00:01Z"')
    for data, value in ((schema.data, b"\xff"), (b"{}", payload), (b"[]", payload)):
        wrong = details.decoded(_Schemas(Schema(schema.type, data)), T, Message(value))
        assert wrong is not None
        assert wrong.failure


@pytest.mark.parametrize(
    ("marked", "ranges", "state"),
    [
        (Position(5, 10, 0), [], ACKNOWLEDGED),
        (Position(6, 0, 0), [], ACKNOWLEDGED),
        (Position(5, 9, 0), [], NOT_YET),
        (None, [], NOT_YET),
        (None, [(Position(5, 10, 0), Position(5, 12, 0))], ACKNOWLEDGED),
        (None, [(Position(5, 11, 0), Position(5, 12, 0))], PENDING),
        (None, [(Position(5, 1, 0), Position(5, 2, 0))], NOT_YET),
    ],
)
def test_cursor_says_where_a_group_stands(
    marked: Position | None, ranges: list[tuple[Position, Position]], state: str
) -> None:
    assert state_of(CursorState(0, marked, tuple(ranges)), AT) == state


def test_position_without_an_index_is_its_whole_batch() -> None:
    second = Position(5, 10, 0, 1)
    assert state_of(CursorState(0, Position(5, 10, 0)), second) == ACKNOWLEDGED
    assert state_of(CursorState(0, Position(5, 10, 0, 0)), second) == NOT_YET
