"""Owns the format `nats`: messages as NATS clients publish them, those of one read in one entry.

What a message of the router is in NATS, and the other way round, `router.wire.nats.router_messages`
says. Which consumer of a Key_Shared subscription gets an entry is decided by the key of its first
message, and by its subject if it has no key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from router.broker.consume.entry_info import (
    OPAQUE_ENTRY,
    EntryInfo,
    MessageChunk,
    MessageKey,
    UnreadableEntryError,
)
from router.broker.consume.membership.hashing import key_hash
from router.broker.entries.kafka import latest_of
from router.broker.storage import NATS_FORMAT
from router.model import Message
from router.wire import ProtocolError
from router.wire.nats.router_messages import (
    EVENT_TIME,
    read_message,
    routing_key,
    write_message,
)
from router.wire.nats.stored import count, first, pack, unpack

TAG: Final = NATS_FORMAT

_EVENT_TIME: Final = EVENT_TIME.encode()


class NatsEntry:
    """The description of an entry; see EntryInfo."""

    __slots__ = ("_payload", "messages")

    deliver_at_ms: Final = 0
    chunk: Final[MessageChunk | None] = None
    producer: Final = ("", 0)

    def __init__(self, payload: bytes, messages: int) -> None:
        self._payload = payload
        self.messages = messages

    def key_hash(self) -> int:
        """Return the hash of the first message's key, or of its subject."""
        return key_hash(routing_key(first(self._payload)))

    def properties(self) -> Sequence[Mapping[str, str]]:
        """Return the properties of each message; raise UnreadableEntryError."""
        return [message.properties for message in to_messages(self._payload)]


def describe(payload: bytes) -> EntryInfo:
    """Return the description of an entry; one that is no message of NATS is opaque."""
    try:
        return NatsEntry(payload, count(payload))
    except ProtocolError:
        return OPAQUE_ENTRY


def describe_special(payload: bytes) -> None:
    """Return None: no message of NATS has a time of delivery, or is a chunk."""
    del payload


def to_messages(payload: bytes) -> Sequence[Message]:
    """Return all messages of an entry; raise UnreadableEntryError."""
    try:
        return [read_message(message) for message in unpack(payload)]
    except ProtocolError as error:
        raise UnreadableEntryError(f"no NATS entry: {error}") from error


def keys(payload: bytes) -> Sequence[MessageKey]:
    """Return the key that the header of each message names; see Codec."""
    return [MessageKey(message.key, message.null) for message in to_messages(payload)]


def from_messages(messages: Sequence[Message], timestamp_ms: int) -> bytes:
    """Return one entry of these messages; when it was stored is not part of it."""
    del timestamp_ms
    return pack([write_message(message) for message in messages])


def keep_messages(payload: bytes, live: int) -> bytes:
    """Return an entry with some of its messages, of the others the subjects; see Codec.

    The subject of the first may decide which consumer gets the entry.
    """
    try:
        messages = unpack(payload)
    except ProtocolError as error:
        raise UnreadableEntryError(f"no NATS entry: {error}") from error
    return pack(
        [
            message if live >> place & 1 else message._replace(headers=b"", payload=b"")
            for place, message in enumerate(messages)
        ]
    )


def latest_time(payload: bytes, stored_ms: int) -> int:
    """Return the latest time that Kafka readers get; see Codec."""
    if _EVENT_TIME not in payload:
        return stored_ms
    try:
        return latest_of(to_messages(payload), stored_ms)
    except UnreadableEntryError:
        return stored_ms
