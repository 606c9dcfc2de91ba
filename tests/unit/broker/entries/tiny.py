"""A second stored format, as small as can be: messages with a key, a value and properties.

An entry is, for each message, three fields that begin with their size: the key, the value, and the
properties as JSON. A key of no bytes is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct

from router.broker.consume.entry_info import MessageChunk, MessageKey, UnreadableEntryError
from router.broker.consume.membership.hashing import murmur3
from router.broker.entries import ENTRY_FORMATS, EntryFormats, pulsar
from router.model import Message

TAG = 200
_SIZE = Struct(">I")


class TinyEntry:
    """The description of an entry."""

    deliver_at_ms = 0
    chunk: MessageChunk | None = None
    producer = ("", 0)

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    @property
    def messages(self) -> int:
        return len(to_messages(self._payload))

    def key_hash(self) -> int:
        return murmur3(to_messages(self._payload)[0].key or b"")

    def properties(self) -> Sequence[Mapping[str, str]]:
        return [message.properties for message in to_messages(self._payload)]


def describe(payload: bytes) -> TinyEntry:
    return TinyEntry(payload)


def describe_special(payload: bytes) -> None:
    """Return None: no entry of this format has a time of delivery, or is a chunk."""


def to_messages(payload: bytes) -> Sequence[Message]:
    fields = list(_fields(payload))
    return [
        Message(value, key or None, json.loads(properties))
        for key, value, properties in zip(fields[::3], fields[1::3], fields[2::3], strict=True)
    ]


def from_messages(messages: Sequence[Message], timestamp_ms: int) -> bytes:
    del timestamp_ms
    return b"".join(
        _SIZE.pack(len(field)) + field
        for message in messages
        for field in (
            message.key or b"",
            message.value,
            json.dumps(dict(message.properties)).encode(),
        )
    )


def keep_messages(payload: bytes, live: int) -> bytes:
    """Raise UnreadableEntryError: there is no form with fewer messages."""
    raise UnreadableEntryError(f"{len(payload)} bytes, {live:b}")


def keys(payload: bytes) -> Sequence[MessageKey]:
    return [MessageKey(message.key, not message.value) for message in to_messages(payload)]


def latest_time(payload: bytes, stored_ms: int) -> int:
    """Return the time of storing: messages of this format have no other."""
    del payload
    return stored_ms


def _fields(payload: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        if at + _SIZE.size > len(payload):
            raise UnreadableEntryError("a field is cut short")
        end = at + _SIZE.size + _SIZE.unpack_from(payload, at)[0]
        if end > len(payload):
            raise UnreadableEntryError("a field is cut short")
        yield payload[at + _SIZE.size : end]
        at = end


class _Tiny:
    """The format as the table has it; a module in `router.broker.entries` would do as well."""

    describe = staticmethod(describe)
    describe_special = staticmethod(describe_special)
    to_messages = staticmethod(to_messages)
    from_messages = staticmethod(from_messages)
    keep_messages = staticmethod(keep_messages)
    keys = staticmethod(keys)
    latest_time = staticmethod(latest_time)


FORMATS = EntryFormats({pulsar.TAG: ENTRY_FORMATS[pulsar.TAG], TAG: _Tiny()})
"""The formats of a broker that knows this one too."""
