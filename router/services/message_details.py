"""One message in full: found by its position, its headers as clients sent them, and its value read.

Theory of operation. A property of a message is a header of a client's, or something that the
router keeps beside them: the subject of NATS, the list of headers whose names repeat, headers that
no text can carry. `headers_of` gives each its place again. A value is read by the schema that it
was written with, or else the newest one of its topic; gzip is unpacked within a bound, as memory is
not the sender's to choose.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import json_format, message_factory
from google.protobuf.message import DecodeError

from router import schemas
from router.errors import InvalidSchemaError, PayloadMismatchError, ValueNotFoundError
from router.model import (
    REPLAYED,
    UNDECODED,
    Message,
    Position,
    Schema,
    SchemaType,
    Stored,
    TopicName,
)
from router.schemas.protobuf import message_type
from router.services.dead_letters.dead_letter import NOTES as DEAD_LETTER_NOTES
from router.services.pages import after
from router.services.read import TopicReader
from router.services.scan import After, ScanBounds
from router.services.topic_schemas import TopicSchemas
from router.wire.nats.headers import SUBJECT
from router.wire.repeated_headers import HEADERS, KAFKA_HEADERS, NATS_HEADERS, as_pairs

FIND_BOUNDS: Final = ScanBounds(2_000, 64 * 1024 * 1024, 5.0)
"""What is read to find one message: the batch that it is in."""
MAX_UNPACKED_BYTES: Final = 16 * 1024 * 1024
_GZIP: Final = b"\x1f\x8b\x08"
_NOTES: Final[Mapping[str, str]] = {
    SUBJECT: "NATS subject",
    KAFKA_HEADERS: "Kafka headers with bytes",
    NATS_HEADERS: "NATS headers as they were sent",
    UNDECODED: "Not decoded",
    REPLAYED: "Replayed from the archive",
    **DEAD_LETTER_NOTES,
}
_REPEATING: Final = frozenset({KAFKA_HEADERS, NATS_HEADERS, HEADERS})
"""They say the headers once more."""


@dataclass(frozen=True, slots=True)
class MessageHeaders:
    """The headers of a message in their order, names may repeat; `notes` are the router's own."""

    pairs: tuple[tuple[str, str], ...]
    notes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DecodedValue:
    """What a schema reads in a value, as JSON; `failure` says why it cannot, "" if it can."""

    schema: str
    text: str
    failure: str = ""


def find_message(reading: TopicReader, topic: TopicName, position: Position) -> Stored:
    """Return the message at a position.

    Raises ValueNotFoundError where the partition has none there, and what reading raises.
    """
    bounds = {position.partition: position}, {position.partition: After(position)}
    found = after(reading, topic, bounds, 1, lambda one: one.position == position, FIND_BOUNDS)
    if not found.messages:
        raise ValueNotFoundError(
            "The topic has no message at this position: retention, compaction or a deletion has"
            " removed it, or it never was."
        )
    return found.messages[0]


def headers_of(message: Message) -> MessageHeaders:
    """Return the headers of a message apart from what the router keeps beside them."""
    pairs = as_pairs(message.properties)
    return MessageHeaders(
        tuple(pair for pair in pairs if pair[0] not in _NOTES and pair[0] != HEADERS),
        {
            note: message.properties[name]
            for name, note in _NOTES.items()
            if name in message.properties
        },
    )


def with_headers(message: Message, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a message with other headers; what the router keeps stays."""
    kept = _NOTES.keys() - _REPEATING
    return {**headers, **{name: text for name, text in message.properties.items() if name in kept}}


def unpacked(value: bytes) -> bytes | None:
    """Return what a value of gzip holds, at most MAX_UNPACKED_BYTES; None: it is none."""
    if not value.startswith(_GZIP):
        return None
    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(value, MAX_UNPACKED_BYTES)
    except zlib.error:
        return None


def decoded(topic_schemas: TopicSchemas, topic: TopicName, message: Message) -> DecodedValue | None:
    """Return a value as its schema reads it, None: its topic has none."""
    version = message.schema_version
    schema = topic_schemas.find(topic, version) if version else topic_schemas.newest(topic)
    if schema is None or message.null:
        return None
    try:
        value = _read(schema, message)
    except (PayloadMismatchError, InvalidSchemaError) as error:
        return DecodedValue(schema.type.name, "", str(error))
    return DecodedValue(schema.type.name, json.dumps(value, ensure_ascii=False, default=_as_text))


def _read(schema: Schema, message: Message) -> Any:
    if schema.type is SchemaType.PROTOBUF_NATIVE:
        return _read_protobuf(schema, message.value)
    if schema.type is SchemaType.KEY_VALUE:
        key, value = schemas.decode_pair(schema, message.key, message.value)
        return {"key": key, "value": value}
    return schemas.decode(schema, message.value)


def _read_protobuf(schema: Schema, payload: bytes) -> Any:
    """Return a message of Protocol Buffers by the descriptors that its schema holds."""
    kind = message_type(schema)
    try:
        found = message_factory.GetMessageClass(kind).FromString(payload)
    except DecodeError as error:
        raise PayloadMismatchError(f"it is no {kind.full_name}") from error
    return json_format.MessageToDict(found, preserving_proto_field_name=True)


def _as_text(value: object) -> str:
    return value.hex(" ") if isinstance(value, bytes) else str(value)
