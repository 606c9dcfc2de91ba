"""Owns the format `kafka`: record batches (format 2) as Kafka's producers send them, one an entry.

Theory of operation. A batch is stored with whatever base offset it came with: a Kafka reader is
sent it with the offset and epoch of its place (`PREFIX_BYTES`), nothing else of it changes. Its
count was proved before it was stored (`prove_batch`), so that offsets are message numbers. A batch
of which deleted records were reclaimed (`keep_messages`) has the others at their offsets; in place
of each that is gone other readers see an empty message, which is left out for them.

For other readers a batch becomes messages. A key is a key, a null value a null value, headers are
properties (`record_messages`). A record's time, unless it is the time at which a broker stored it,
is the message's event time, and the other way round; a message without an event time is shown to
Kafka readers with the time at which its entry was stored. Kafka has no time of delivery and no
number of the sender for a message: a Kafka reader is sent delayed messages at once. An entry that
only its consumer can read (encrypted, a chunk) has no records: `empty` keeps its offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from struct import Struct
from typing import Final, TypeVar

from router.broker.consume.entry_info import (
    OPAQUE_ENTRY,
    EntryInfo,
    MessageChunk,
    MessageKey,
    UnreadableEntryError,
)
from router.broker.consume.membership.hashing import key_hash
from router.broker.storage import KAFKA_FORMAT
from router.model import Message
from router.wire.kafka.compression import NONE, decompress_start
from router.wire.kafka.errors import RecordsError
from router.wire.kafka.record_batches import (
    HEADER_BYTES,
    MAX_TIMESTAMP_AT,
    BatchHeader,
    build_batch,
    empty_batch,
    keep_records,
    open_batch,
    read_header,
)
from router.wire.kafka.record_messages import message_headers, read_message, routing_headers
from router.wire.kafka.records import KafkaRecord, first_key, read_records, write_record

T = TypeVar("T")
TAG: Final = KAFKA_FORMAT
MAX_RECORDS: Final = 1 << 16
"""Of a batch that is stored; with MAX_RECORDS_BYTES it fits into one entry of Pulsar's."""
MAX_RECORDS_BYTES: Final = 4 << 20
"""Of the records of a batch that is stored, without their compression."""

GONE: Final = Message(b"")
"""In the place of a message of which no more is stored than that it was there."""

_NO_KEY: Final = MessageKey(None, tombstone=False)
_MAX_UNPACKED_BYTES: Final = 64 << 20
_FIRST_RECORD_BYTES: Final = 1 << 10
_MAX_TIMESTAMP: Final = (1 << 63) - 1
_TIME: Final = Struct(">q")
_HASH_MASK: Final = 0x7FFFFFFF


class KafkaEntry:
    """The description of an entry, by the header of its batch; see EntryInfo."""

    __slots__ = ("_header", "_payload")

    deliver_at_ms: Final = 0
    chunk: Final[MessageChunk | None] = None

    def __init__(self, header: BatchHeader, payload: bytes) -> None:
        self._header = header
        self._payload = payload

    @property
    def messages(self) -> int:
        """Return how many messages the entry held when it was stored."""
        return max(1, self._header.last_offset_delta + 1)

    @property
    def producer(self) -> tuple[str, int]:
        """Return the id and epoch of an idempotent producer, and the sequence; "" for others."""
        header = self._header
        if header.producer_id < 0:
            return "", 0
        return f"kafka-{header.producer_id}-{header.producer_epoch}", header.base_sequence

    def key_hash(self) -> int:
        """Return the hash of the first record's key; a batch without one has its CRC as its own."""
        try:
            key = self._first_key()
        except RecordsError:
            key = None
        return self._header.crc & _HASH_MASK if key is None else key_hash(key)

    def properties(self) -> Sequence[Mapping[str, str]]:
        """Return the properties of each message; raise UnreadableEntryError."""
        return [message.properties for message in to_messages(self._payload)]

    def _first_key(self) -> bytes | None:
        """Return the first key, of a compressed batch without decompressing more than its start."""
        codec = self._header.codec
        data = self._payload[HEADER_BYTES:]
        if codec == NONE:
            return first_key(data)
        start = decompress_start(codec, data, _FIRST_RECORD_BYTES)
        try:
            return first_key(start)
        except RecordsError:
            return first_key(decompress_start(codec, data, _MAX_UNPACKED_BYTES))


def describe(payload: bytes) -> EntryInfo:
    """Return the description of an entry; one that is no record batch is opaque."""
    try:
        return KafkaEntry(read_header(payload), payload)
    except RecordsError:
        return OPAQUE_ENTRY


def describe_special(payload: bytes) -> None:
    """Return None: no record batch has a time of delivery, or is a chunk."""
    del payload


def to_messages(payload: bytes) -> Sequence[Message]:
    """Return all messages of an entry, GONE for each that was reclaimed.

    Raises UnreadableEntryError.
    """
    try:
        header = read_header(payload)
        return list(_messages(header, open_batch(header, payload, _MAX_UNPACKED_BYTES)))
    except RecordsError as error:
        raise UnreadableEntryError(f"no Kafka entry: {error}") from error


def keys(payload: bytes) -> Sequence[MessageKey]:
    """Return the key of each record, of which one without a value is a tombstone; see Codec.

    One that was reclaimed has none.
    """
    return _of_each(payload, lambda _, record: MessageKey(record[2], record[3] is None), _NO_KEY)


def from_messages(messages: Sequence[Message], timestamp_ms: int) -> bytes:
    """Return one batch of these messages that was stored at a time (ms since 1970)."""
    base = _timestamp(messages[0], timestamp_ms)
    latest = base
    records = []
    for place, message in enumerate(messages):
        timestamp = _timestamp(message, timestamp_ms)
        latest = max(latest, timestamp)
        value = None if message.null else message.value
        headers = message_headers(message, routing_headers(message))
        records.append(write_record(place, timestamp - base, message.key, value, headers))
    return bytes(build_batch(records, base, latest))


def latest_time(payload: bytes, stored_ms: int) -> int:
    """Return the largest timestamp of a batch's records, which its header has (see `prove_batch`).

    It is the time of storing for what is no batch.
    """
    if len(payload) < HEADER_BYTES:
        return stored_ms
    latest: int = _TIME.unpack_from(payload, MAX_TIMESTAMP_AT)[0]
    return latest


def timestamps(payload: bytes) -> list[int]:
    """Return the timestamp of each record of a batch, 0 for each that was reclaimed.

    Raises UnreadableEntryError.
    """
    return _of_each(payload, lambda header, record: header.base_timestamp + record[1], 0)


def latest_of(messages: Sequence[Message], stored_ms: int) -> int:
    """Return the largest timestamp of the batch that these messages are for Kafka readers."""
    return max(_timestamp(message, stored_ms) for message in messages)


def empty(messages: int, timestamp_ms: int) -> bytes:
    """Return what Kafka readers are sent for an entry that cannot be read: its offsets alone."""
    return empty_batch(messages, timestamp_ms)


def without_deleted(payload: bytes, live: int) -> bytes:
    """Return a batch with those of its records that are not deleted, at their offsets.

    `live` has a bit for each, the first in the lowest. Raises UnreadableEntryError.
    """
    try:
        return keep_records(read_header(payload), payload, live, _MAX_UNPACKED_BYTES)
    except RecordsError as error:
        raise UnreadableEntryError(f"no Kafka entry: {error}") from error


def keep_messages(payload: bytes, live: int) -> bytes:
    """Return what `without_deleted` does, compressed as the batch was; for the log."""
    try:
        header = read_header(payload)
        return keep_records(header, payload, live, _MAX_UNPACKED_BYTES, header.codec)
    except RecordsError as error:
        raise UnreadableEntryError(f"no Kafka entry: {error}") from error


def _messages(header: BatchHeader, records: bytes) -> Iterator[Message]:
    first, sender_s_time = header.base_timestamp, not header.has_append_time
    expected = 0
    for offset, record in _numbered(header, read_records(records, header.records)):
        if offset > expected:
            yield from repeat(GONE, offset - expected)
        event_time = first + record[1] if sender_s_time else 0
        yield read_message(record, event_time if 0 < event_time <= _MAX_TIMESTAMP else None)
        expected = offset + 1
    yield from repeat(GONE, _offsets(header) - expected)


def _numbered(
    header: BatchHeader, records: Iterable[KafkaRecord]
) -> Iterator[tuple[int, KafkaRecord]]:
    """Yield the records with their numbers in the batch; raise UnreadableEntryError."""
    expected, end = 0, _offsets(header)
    for record in records:
        offset = record[0]
        if not expected <= offset < end:
            raise UnreadableEntryError(
                f"a record before {end} says that it has the number {offset}"
            )
        yield offset, record
        expected = offset + 1


def _of_each(payload: bytes, read: Callable[[BatchHeader, KafkaRecord], T], gone: T) -> list[T]:
    """Return what is read of each record of a batch, at its place; raise UnreadableEntryError."""
    try:
        header = read_header(payload)
        found = [gone] * _offsets(header)
        records = read_records(open_batch(header, payload, _MAX_UNPACKED_BYTES), header.records)
        for offset, record in _numbered(header, records):
            found[offset] = read(header, record)
    except RecordsError as error:
        raise UnreadableEntryError(f"no Kafka entry: {error}") from error
    return found


def _offsets(header: BatchHeader) -> int:
    """Return how many offsets a batch takes; raise UnreadableEntryError: as many as none stored."""
    count = header.last_offset_delta + 1
    if not header.records <= count <= max(header.records, MAX_RECORDS):
        raise UnreadableEntryError(f"{header.records} records cannot take {count} offsets")
    return count


def _timestamp(message: Message, stored_ms: int) -> int:
    event_time = message.event_time
    return event_time if event_time and 0 < event_time <= _MAX_TIMESTAMP else stored_ms
