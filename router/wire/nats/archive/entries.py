"""Owns the archive of nats-server 2.15: entries behind a magic, of numbers, a name and a payload.

An entry is the size of its name, a time, a sequence, the sizes of headers and payload (numbers of
7 bits in each byte, the time with its sign in the lowest bit), then name, headers and payload. The
first is `state.json`, then come the consumers (`consumers/<name>`), then the messages, whose names
are their subjects; an entry of zeros ends the archive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from router.wire.nats.archive.parts import (
    ArchivedBounds,
    ArchivedConsumer,
    ArchivedMessage,
    ConsumerPosition,
    damaged,
)
from router.wire.nats.archive.source import ArchiveSource, Steps, signed
from router.wire.nats.jetstream.reading import ObjectReader, uint64

MAGIC: Final = b"NATSARC1"
MAX_NAME_BYTES: Final = 16 << 10
MAX_JSON_BYTES: Final = 16 << 20
"""Of a consumer: one with 100,000 pending messages takes about half of it."""
STATE: Final = "state.json"
CONSUMERS: Final = "consumers/"
_END: Final = bytes(5)

_STATE: Final = ObjectReader(
    {"first_seq": uint64, "last_seq": uint64, "consumer_count": uint64}, ignore_unknown=True
)
_CONSUMER: Final = ObjectReader(
    {"config": lambda value: value, "state": ConsumerPosition.from_json}, ignore_unknown=True
)


class _Head(NamedTuple):
    name: str
    time_ns: int
    sequence: int
    headers: int
    payload: int

    @property
    def is_end(self) -> bool:
        return not any(self)


def read_entries(source: ArchiveSource, max_message: int) -> Steps[None]:
    """Yield what follows the magic; raise ProtocolError."""
    head = yield from _head(source)
    if head.name != STATE:
        raise damaged("its first entry is not the state of the stream")
    state = yield from _json(source, head, _STATE)
    first, last = state.get("first_seq", 0), state.get("last_seq", 0)
    yield ArchivedBounds(first, last)
    for _ in range(state.get("consumer_count", 0)):
        head = yield from _head(source)
        if not head.name.startswith(CONSUMERS):
            raise damaged("it has fewer consumers than it says")
        members = yield from _json(source, head, _CONSUMER)
        position = members.get("state", ConsumerPosition())
        yield ArchivedConsumer(head.name[len(CONSUMERS) :], members.get("config"), position)
    while True:
        head = yield from _head(source)
        if head.is_end:
            return
        if not head.sequence:
            raise damaged("an entry is no message")
        if head.headers + head.payload > max_message:
            raise damaged(f"message {head.sequence} has more than {max_message} bytes")
        headers = yield from source.take(head.headers)
        payload = yield from source.take(head.payload)
        yield ArchivedMessage(head.sequence, head.name, headers, payload, head.time_ns)


def write_start(state: dict[str, Any], now_ns: int) -> bytes:
    """Return the magic and the first entry."""
    return MAGIC + _written(STATE, json.dumps(state).encode(), now_ns)


def write_consumer(name: str, config: object, position: ConsumerPosition, now_ns: int) -> bytes:
    """Return the entry of a consumer."""
    value = {"config": config, "state": position.to_json()}
    return _written(CONSUMERS + name, json.dumps(value).encode(), now_ns)


def write_messages(messages: Iterable[ArchivedMessage]) -> bytes:
    """Return the entries of messages."""
    parts: list[bytes] = []
    for sequence, subject, headers, payload, time_ns in messages:
        name = subject.encode()
        head = (len(name), time_ns << 1, sequence, len(headers), len(payload))
        parts += (*map(_number, head), name, headers, payload)
    return b"".join(parts)


def write_end() -> bytes:
    """Return the entry of zeros that ends an archive."""
    return _END


def _written(name: str, payload: bytes, time_ns: int) -> bytes:
    head = (len(name.encode()), time_ns << 1, 0, 0, len(payload))
    return b"".join((*map(_number, head), name.encode(), payload))


def _head(source: ArchiveSource) -> Steps[_Head]:
    size = yield from source.number()
    time = yield from source.number()
    sequence = yield from source.number()
    headers = yield from source.number()
    payload = yield from source.number()
    if size > MAX_NAME_BYTES:
        raise damaged("a name is too long")
    name = yield from source.take(size)
    try:
        return _Head(name.decode(), signed(time), sequence, headers, payload)
    except UnicodeDecodeError:
        raise damaged("a subject is no UTF-8") from None


def _json(source: ArchiveSource, head: _Head, reader: ObjectReader) -> Steps[dict[str, Any]]:
    if head.headers + head.payload > MAX_JSON_BYTES:
        raise damaged(f"{head.name} has more than {MAX_JSON_BYTES} bytes")
    text = yield from source.take(head.headers + head.payload)
    return read_json(text, head.name, reader)


def read_json(text: bytes, name: str, reader: ObjectReader) -> dict[str, Any]:
    """Return the members of an object; raise ProtocolError that names it."""
    try:
        return reader(json.loads(text))
    except (ValueError, RecursionError) as reason:
        raise damaged(f"{name}: {reason}") from None


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
