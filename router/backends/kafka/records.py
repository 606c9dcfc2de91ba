"""Kafka's record batches (format 2): from messages to bytes and back.

Theory of operation. A batch is a header of 61 bytes and the records behind it, lengths and deltas
as zigzag varints; CRC-32C covers everything behind the CRC. Both directions are written for speed
in plain Python: kafka-python's own builder and reader cost several times as much, and a batch of a
hundred messages is made and read in one go here.

A record's timestamp is the time of publishing, never the event's: Kafka refuses timestamps more
than an hour ahead, deletes by them what is old, and finds by them where to start from a time. The
event's time travels in the header `router-event-time` instead, and so do the number that its sender
gave a message, the version of its schema and the clusters that it is meant for. A null value is a
tombstone. Headers of other people's producers become properties; values that are no UTF-8 are read
leniently.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import crc32c

from router.backends.kafka.inflate import MAX_INFLATED_BYTES, OversizedError, inflate
from router.errors import ReadFailedError
from router.model import NO_PROPERTIES, OVERSIZED, UNDECODED, Message, Position, Stored
from router.quoting import said

EVENT_TIME: Final = "router-event-time"
SEQUENCE: Final = "router-sequence"
SCHEMA_VERSION: Final = "router-schema-version"
REPLICATE_TO: Final = "router-replicate-to"
_OURS: Final = b"router-"
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_BEFORE_LENGTH: Final = 12
_MAGIC: Final = 2
_CODEC: Final = 0x07
_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
# A record's lengths, deltas and attributes beside its key, value and headers.
OVERHEAD: Final = 24


Carried = tuple[Mapping[str, str], int | None, int | None, bytes, tuple[str, ...]]
"""Properties, the event's time, the sender's number, the schema's version, the clusters."""


@lru_cache(maxsize=32_768)
def number(value: int) -> bytes:
    """Return a number as a zigzag varint."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def weight(message: Message) -> int:
    """Return at least what a message takes in a batch."""
    size = OVERHEAD + len(message.value) + len(message.key or b"")
    if message.properties:
        # Four bytes a character at most, and two lengths of at most five bytes.
        size += sum(4 * (len(k) + len(v)) + 10 for k, v in message.properties.items())
    if message.event_time is not None:
        size += 2 * OVERHEAD
    if message.sequence is not None or message.schema_version:
        size += 4 * OVERHEAD + len(message.schema_version)
    if message.replicate_to:
        # Four bytes a character at most, and a comma.
        size += 2 * OVERHEAD + sum(4 * len(name) + 1 for name in message.replicate_to)
    return size


def encode(
    messages: Sequence[Message],
    now_ms: int,
    producer: tuple[int, int],
    sequence: int,
    *,
    transactional: bool = False,
) -> bytearray:
    """Return a batch; `producer` is the producer's id and epoch."""
    parts: list[bytes] = [b""]
    for place, message in enumerate(messages):
        value, key, properties, event_time, _, sent, version, null, clusters = message
        bare = not (properties or version or clusters) and event_time is None and sent is None
        body = b"".join(
            (
                b"\0\0",
                number(place),
                b"\1" if key is None else number(len(key)) + key,
                b"\1" if null else number(len(value)),
                b"" if null else value,
                b"\0" if bare else _headers(message),
            )
        )
        parts.append(number(len(body)))
        parts.append(body)
    count = len(messages)
    parts[0] = HEADER.pack(
        *(0, sum(map(len, parts)) + HEADER.size - _BEFORE_LENGTH, -1, _MAGIC, 0),
        *(_TRANSACTIONAL if transactional else 0, count - 1, now_ms, now_ms),
        *(*producer, sequence, count),
    )
    batch = bytearray(b"".join(parts))
    struct.pack_into(">I", batch, _CRC_AT, crc32c.crc32c(memoryview(batch)[_CRC_FROM:]))
    return batch


def _headers(message: Message) -> bytes:
    headers = {name.encode(): value.encode() for name, value in message.properties.items()}
    for name, value in ((EVENT_TIME, message.event_time), (SEQUENCE, message.sequence)):
        if value is not None:
            headers[name.encode()] = b"%d" % value
    if message.schema_version:
        headers[SCHEMA_VERSION.encode()] = message.schema_version
    if message.replicate_to:
        headers[REPLICATE_TO.encode()] = ",".join(message.replicate_to).encode()
    parts = [number(len(headers))]
    for header in headers.items():
        for data in header:
            parts += (number(len(data)), data)
    return b"".join(parts)


def decode(
    data: bytes | memoryview,
    start: int,
    partition: int,
    aborted: Sequence[tuple[int, int]] = (),
    epoch: int = 0,
    limit: int = MAX_INFLATED_BYTES,
) -> Iterator[Stored | int]:
    """Yield the messages of a fetch from an offset on, and after each batch the next offset.

    `aborted` are producer ids with the first offset of each transaction that came to nothing: its
    messages are left out. Positions have the partition and the epoch that are given. A batch that
    has more than `limit` bytes without its compression is one message, of its last offset. A batch
    that is cut short ends it. Raises ReadFailedError for damage.
    """
    view = memoryview(data)
    pending = sorted(aborted, key=lambda found: found[1])
    bad: set[int] = set()
    while len(view) >= HEADER.size:
        size = int.from_bytes(view[8:12]) + _BEFORE_LENGTH
        if not HEADER.size <= size <= len(view):
            return
        batch, view = view[:size], view[size:]
        head = HEADER.unpack_from(batch)
        base, attributes, producer, last = head[0], head[5], head[9], head[0] + head[6]
        _check(batch, head)
        while pending and pending[0][1] <= last:
            bad.add(pending.pop(0)[0])
        if attributes & _CONTROL:
            bad.discard(producer)  # the end of its transaction, if it had one that was aborted
        elif not (attributes & _TRANSACTIONAL and producer in bad):
            try:
                for stored in _records(batch, head, partition, epoch, limit):
                    if stored.position.entry >= start:
                        yield stored
            except OversizedError:
                yield _oversized(batch, Position(0, last, partition, -1, 0, epoch), head[8])
            except (IndexError, ValueError, UnicodeDecodeError) as error:
                raise ReadFailedError(
                    f"The batch at offset {base} is damaged: {said(error)}"
                ) from error
        yield last + 1


def following_offset(data: bytes | memoryview, offset: int) -> int:
    """Return the offset behind the last whole batch of a fetch that began at an offset."""
    view = memoryview(data)
    while len(view) >= HEADER.size:
        size = int.from_bytes(view[8:12]) + _BEFORE_LENGTH
        if not HEADER.size <= size <= len(view):
            break
        head = HEADER.unpack_from(view)
        offset, view = head[0] + head[6] + 1, view[size:]
    return offset


def _check(batch: memoryview, head: tuple[int, ...]) -> None:
    if head[3] != _MAGIC:
        raise ReadFailedError(
            f"The batch at offset {head[0]} has Kafka's old format {head[3]}, older than 0.11."
        )
    if crc32c.crc32c(batch[_CRC_FROM:]) != head[4]:
        raise ReadFailedError(f"The batch at offset {head[0]} is damaged: its CRC is wrong.")


def _records(
    batch: memoryview, head: tuple[int, ...], partition: int, epoch: int, limit: int
) -> Iterator[Stored]:
    attributes, base, first, latest, at = head[5], head[0], head[7], head[8], 0
    data = bytes(batch[HEADER.size :])
    if attributes & _CODEC:
        data = inflate(attributes & _CODEC, data, limit)
    for _ in range(head[12]):
        length, at = _number(data, at)
        end = at + length
        later, at = _number(data, at + 1)
        place, at = _number(data, at)
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        count, at = _number(data, at)
        carried: Carried = (NO_PROPERTIES, None, None, b"", ())
        if count:
            carried, at = _headers_in(data, at, count)
        if at != end or not 0 <= place <= head[6]:
            raise ValueError("a record's length or place is wrong")
        time_ms = latest if attributes & _APPEND_TIME else first + later
        properties, event, sent, version, clusters = carried
        message = Message(
            value or b"", key, properties, event, None, sent, version, value is None, clusters
        )
        yield Stored(message, Position(0, base + place, partition, -1, 0, epoch), time_ms)


def _oversized(batch: memoryview, last: Position, time_ms: int) -> Stored:
    message = Message(bytes(batch[HEADER.size :]), None, {UNDECODED: OVERSIZED})
    return Stored(message, last, time_ms, oversized=True)


def _headers_in(data: bytes, at: int, count: int) -> tuple[Carried, int]:
    """Return what headers say, ours and others', and where they end."""
    found: dict[str, str] = {}
    ours: dict[str, bytes] = {}
    for _ in range(count):
        name, at = _bytes(data, at)
        value, at = _bytes(data, at)
        text = (name or b"").decode(errors="replace")
        found[text] = (value or b"").decode(errors="replace")
        if name and name.startswith(_OURS):
            ours[text] = value or b""
    if not ours:
        return (found, None, None, b"", ()), at
    event, sent = (_told(found, ours.get(name, b""), name) for name in (EVENT_TIME, SEQUENCE))
    if version := ours.get(SCHEMA_VERSION, b""):
        del found[SCHEMA_VERSION]
    clusters = tuple(found.pop(REPLICATE_TO).split(",")) if REPLICATE_TO in found else ()
    return (found, event, sent, version, clusters), at


def _told(found: dict[str, str], value: bytes, name: str) -> int | None:
    """Take a number out of the properties, if it is one."""
    if not (0 < len(value) < 20 and value.isdigit()):
        return None
    del found[name]
    return int(value)


def _number(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than ten bytes")


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _number(data, at)
    if length < 0:
        return None, at
    end = at + length
    if end > len(data):
        raise ValueError("a field is longer than its batch")
    return data[at:end], end
