"""Messages of the router as Kafka's records, and back: keys, values, headers and times.

Theory of operation. A key is a key, and a null value is a message without a value (`Message.null`).
A property is a header with a UTF-8 value. What Kafka has no field for travels in headers whose
names begin with `router-`. Headers of one name are read and written as `repeated_headers` has them.
Headers that are no text (null values, bytes that are no UTF-8) become properties as well as they
can; the property `router-kafka-headers` has all of them as Kafka writes them, in base64, and a
message with that property is written with these headers again.

The router's own batches (`write_messages`) have the time of publishing as the records' timestamps:
Kafka refuses timestamps more than an hour ahead, deletes by them what is old, and finds by them
where to start from a time. The event's time travels in a header then.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.model import NO_PROPERTIES, Message
from router.wire.kafka.compression import NONE
from router.wire.kafka.record_batches import TRANSACTIONAL, build_batch
from router.wire.kafka.records import (
    MAX_RECORD_OVERHEAD_BYTES,
    NO_HEADER_BYTES,
    Header,
    KafkaRecord,
    read_headers,
    write_headers,
    write_record,
)
from router.wire.repeated_headers import KAFKA_HEADERS, as_pairs, as_properties

EVENT_TIME: Final = "router-event-time"
SEQUENCE: Final = "router-sequence"
SCHEMA_VERSION: Final = "router-schema-version"
REPLICATE_TO: Final = "router-replicate-to"
ALL_HEADERS: Final = KAFKA_HEADERS

_OWN_NAMES: Final = frozenset(
    name.encode() for name in (EVENT_TIME, SEQUENCE, SCHEMA_VERSION, REPLICATE_TO)
)
_OWN_PROPERTIES: Final = frozenset(
    (EVENT_TIME, SEQUENCE, SCHEMA_VERSION, REPLICATE_TO, ALL_HEADERS)
)
_MAX_DIGITS: Final = 19
NO_CLUSTERS: Final[tuple[str, ...]] = ()
_new: Final[Any] = tuple.__new__


def weight(message: Message) -> int:
    """Return at least what a message takes in an uncompressed batch."""
    size = MAX_RECORD_OVERHEAD_BYTES + len(message.value) + len(message.key or b"")
    if message.properties:
        # Four bytes a character at most, and two lengths of at most five bytes.
        size += sum(4 * (len(k) + len(v)) + 10 for k, v in message.properties.items())
    if message.event_time is not None:
        size += 2 * MAX_RECORD_OVERHEAD_BYTES
    if message.sequence is not None or message.schema_version:
        size += 4 * MAX_RECORD_OVERHEAD_BYTES + len(message.schema_version)
    if message.replicate_to:
        # Four bytes a character at most, and a comma.
        size += 2 * MAX_RECORD_OVERHEAD_BYTES + sum(
            4 * len(name) + 1 for name in message.replicate_to
        )
    return size


def write_messages(
    messages: Sequence[Message],
    now_ms: int,
    producer: tuple[int, int],
    sequence: int,
    *,
    transactional: bool = False,
    codec: int = NONE,
) -> bytearray:
    """Return a batch of the router's own; `producer` is the producer's id and epoch."""
    records = []
    for place, message in enumerate(messages):
        value, key, properties, event_time, _, sent, version, null, clusters = message
        bare = not (properties or version or clusters) and event_time is None and sent is None
        headers = NO_HEADER_BYTES if bare else _own_headers(message)
        records.append(write_record(place, 0, key, None if null else value, headers))
    return build_batch(
        records,
        now_ms,
        now_ms,
        codec=codec,
        producer=(*producer, sequence),
        attributes=TRANSACTIONAL if transactional else 0,
    )


def read_message(record: KafkaRecord, event_time: int | None = None) -> Message:
    """Return a record as a message; a header with the event's time takes precedence."""
    _, _, key, value, headers = record
    null = value is None
    if not headers:
        return _new(  # type: ignore[no-any-return]
            Message,
            (value or b"", key, NO_PROPERTIES, event_time, None, None, b"", null, NO_CLUSTERS),
        )
    properties, ours = _properties(headers)
    sequence: int | None = None
    version, clusters = b"", NO_CLUSTERS
    if ours:
        own_time = _take_number(properties, ours, EVENT_TIME)
        event_time = event_time if own_time is None else own_time
        sequence = _take_number(properties, ours, SEQUENCE)
        if version := ours.get(SCHEMA_VERSION, b""):
            del properties[SCHEMA_VERSION]
        if REPLICATE_TO in ours:
            clusters = tuple(properties.pop(REPLICATE_TO).split(","))
    return Message(
        value or b"", key, properties, event_time, None, sequence, version, null, clusters
    )


def as_read(message: Message) -> Message:
    """Return a message without a time of delivery as it is read once it was written.

    It is another one only if the publisher gave properties the names of the router's own headers.
    The version of the schema stays, as it is no publisher's to give.
    """
    if _OWN_PROPERTIES.isdisjoint(message.properties):
        return message
    data = _own_headers(message)
    value = None if message.null else message.value
    found = read_message(KafkaRecord(0, 0, message.key, value, read_headers(data, 0, len(data))))
    return found._replace(schema_version=message.schema_version)


def message_headers(message: Message, own: Mapping[str, bytes]) -> bytes:
    """Return the headers of a message, `own` and those of its properties, for `write_record`."""
    properties = message.properties
    if not (properties or own):
        return NO_HEADER_BYTES
    headers: list[Header] | None = None
    if ALL_HEADERS in properties:
        headers = _restored(properties)
    if headers is None:
        headers = [
            (name.encode(), value.encode())
            for name, value in as_pairs(properties)
            if name != ALL_HEADERS and name not in own
        ]
    headers += [(name.encode(), value) for name, value in own.items()]
    return write_headers(headers)


def routing_headers(message: Message) -> dict[str, bytes]:
    """Return the router's headers for the version of the schema and the clusters."""
    own = {}
    if message.schema_version:
        own[SCHEMA_VERSION] = message.schema_version
    if message.replicate_to:
        own[REPLICATE_TO] = ",".join(message.replicate_to).encode()
    return own


def _own_headers(message: Message) -> bytes:
    times = ((EVENT_TIME, message.event_time), (SEQUENCE, message.sequence))
    own = {name: b"%d" % number for name, number in times if number is not None}
    return message_headers(message, own | routing_headers(message))


def _properties(headers: Sequence[Header]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return headers as properties, and those of the router by their names."""
    found, ours, exact = _as_text(headers)
    if not exact:
        others = [header for header in headers if header[0] not in _OWN_NAMES]
        found[ALL_HEADERS] = b64encode(write_headers(others)).decode()
    return found, ours


def _as_text(headers: Sequence[Header]) -> tuple[dict[str, str], dict[str, bytes], bool]:
    """Return headers as text, those of the router, and whether the text says all."""
    pairs: list[tuple[str, str]] = []
    ours: dict[str, bytes] = {}
    ours_as_text: list[tuple[str, str]] = []
    exact = True
    for name, value in headers:
        content = value or b""
        found = ours_as_text if name in _OWN_NAMES else pairs
        try:
            found.append((name.decode(), content.decode()))
        except UnicodeDecodeError:
            exact = name in _OWN_NAMES and exact
            found.append((name.decode(errors="replace"), content.decode(errors="replace")))
        if value is None:
            exact = False
        if name in _OWN_NAMES:
            ours[name.decode()] = content
    properties, all_listed = as_properties(pairs)
    properties.update(ours_as_text)
    return properties, ours, exact and all_listed and len(ours) == len(ours_as_text)


def _restored(properties: Mapping[str, str]) -> list[Header] | None:
    """Return the headers that the property has; None: they are not those of the properties."""
    try:
        data = b64decode(properties[ALL_HEADERS], validate=True)
        headers = read_headers(data, 0, len(data))
    except (ValueError, IndexError):
        return None
    text = _as_text(headers)[0]
    others = {name: value for name, value in properties.items() if name != ALL_HEADERS}
    return list(headers) if text == others else None


def _take_number(properties: dict[str, str], ours: Mapping[str, bytes], name: str) -> int | None:
    """Take a number out of the properties, if it is one."""
    value = ours.get(name, b"")
    if not (0 < len(value) <= _MAX_DIGITS and value.isdigit()):
        return None
    del properties[name]
    return int(value)
