"""What a store holds of a message, and the checksum by which copies are compared.

A target of Kafka's has no time of delivery: its messages are delivered at once; and properties that
have the names of the router's own headers are read as what those headers say. Everything else of a
`Message` is held by all stores. The version of a schema is the target's own number of the same
schema, so that it is no part of the checksum.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from hashlib import blake2b
from struct import Struct
from typing import Final

from router.model import UNDECODED, Message
from router.wire.kafka.record_messages import as_read

CHECKSUM_BYTES: Final = 16
_HEAD: Final = Struct(">qqqQQQBI")
_SIZES: Final = Struct(">II")
_NONE: Final = -1
_NUMBER: Final = (1 << 64) - 1
"""Times and sequence numbers have 64 bits; this one also stands for none."""
ENTRY_OVERHEAD_BYTES: Final = 64
"""What a message takes at most in an entry besides its key, value and properties."""


class StoreKind(Enum):
    """What a store is made of."""

    EMBEDDED = "embedded"
    """A broker of ours, on this machine or at the other end of its Pulsar listener."""
    PULSAR = "Apache Pulsar"
    KAFKA = "Apache Kafka"
    MEMORY = "memory"


def held(message: Message, kind: StoreKind) -> Message:
    """Return what a store of this kind holds of a message."""
    if kind is not StoreKind.KAFKA:
        return message
    return as_read(message if message.deliver_at is None else message._replace(deliver_at=None))


def loss(message: Message, there: Message) -> str | None:
    """Return what a store does not keep that holds `there` of a message; None: it keeps all."""
    if UNDECODED in message.properties:
        return "encrypted, chunked or oversized messages, copied as the router reads them"
    if there.deliver_at != message.deliver_at:
        return "messages with a time of delivery, which Kafka delivers at once"
    if there.properties != message.properties:
        return "messages with properties named as the router's own headers in Kafka"
    return None


def weight(message: Message) -> int:
    """Return at least what a message takes in an entry."""
    size = ENTRY_OVERHEAD_BYTES + len(message.value)
    if message.key is not None:
        size += len(message.key) * 4 // 3 + 3
    if message.properties:
        size += sum(len(k.encode()) + len(v.encode()) + 12 for k, v in message.properties.items())
    return size


def checksum(messages: Iterable[Message]) -> bytes:
    """Return the checksum of messages in their order."""
    pieces: list[bytes] = []
    for message in messages:
        value, key, properties, event_time, deliver_at, sequence, _, null, clusters = message
        pieces += (
            _HEAD.pack(
                len(value),
                _NONE if key is None else len(key),
                len(properties),
                _NUMBER if event_time is None else event_time & _NUMBER,
                _NUMBER if deliver_at is None else deliver_at & _NUMBER,
                _NUMBER if sequence is None else sequence & _NUMBER,
                null,
                len(clusters),
            ),
            key or b"",
            value,
        )
        if properties:
            for name, text in sorted(properties.items()):
                pieces += _texts(name, text)
        for cluster in clusters:
            pieces += _texts(cluster, "")
    return blake2b(b"".join(pieces), digest_size=CHECKSUM_BYTES).digest()


def _texts(first: str, second: str) -> tuple[bytes, bytes, bytes]:
    one, other = first.encode(), second.encode()
    return _SIZES.pack(len(one), len(other)), one, other
