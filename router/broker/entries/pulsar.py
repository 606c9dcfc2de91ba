"""Owns the format `pulsar`: payloads as Pulsar producers send them, a batch or one message each.

To parse every entry would cost more than all else that delivery does with it. But a field of the
metadata begins with two bytes that are known, so an entry without these bytes does not have it; one
in which they stand by chance is parsed for nothing (`describe_special`).
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
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
from router.broker.entries.kafka import GONE
from router.broker.storage import PULSAR_FORMAT
from router.model import NO_PROPERTIES, Message
from router.wire import pulsar
from router.wire.pulsar import (
    MAX_MESSAGE_SIZE,
    ProtocolError,
    latest_event_time,
    pack,
    read_metadata,
    unpack,
)
from router.wire.pulsar import pulsar_pb2 as pb

TAG: Final = PULSAR_FORMAT
TRANSCODED_PRODUCER: Final = "router-transcoded"
"""The producer that entries of other formats are sent with."""

# deliver_at_time and num_chunks_from_msg, fields 19 and 27, are numbers, and written by protobuf as
# their own number shifted by three, in groups of seven bits.
_DELIVER_AT_TAG: Final = b"\x98\x01"
_CHUNKS_TAG: Final = b"\xd8\x01"
# event_time is field 12, in a batch (num_messages_in_batch, 11) it is field 5 of the messages. What
# is compressed (8) is opened to look for it.
_TIME_TAG: Final = b"\x60"
_BATCH_TAG: Final = b"\x58"
_BATCHED_TIME_TAG: Final = b"\x28"
_COMPRESSED: Final = re.compile(rb"\x40[\x01-\x7f]")
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_HEAD_BYTES: Final = 10
_MAX_UNPACKED_BYTES: Final = 64 << 20


class PulsarEntry:
    """The description of an entry, by its metadata; see EntryInfo."""

    __slots__ = ("_metadata", "_payload")

    def __init__(self, metadata: pb.MessageMetadata, payload: bytes) -> None:
        self._metadata = metadata
        self._payload = payload

    @property
    def messages(self) -> int:
        """Return how many messages the entry holds."""
        return max(1, self._metadata.num_messages_in_batch)

    @property
    def deliver_at_ms(self) -> int:
        """Return when the entry may be delivered; 0: at once."""
        return self._metadata.deliver_at_time

    @property
    def chunk(self) -> MessageChunk | None:
        """Return which part of a message the entry is."""
        metadata = self._metadata
        total = metadata.num_chunks_from_msg
        # The uuid may be as long as its sender likes.
        return MessageChunk(hash(metadata.uuid), metadata.chunk_id, total) if total > 1 else None

    @property
    def producer(self) -> tuple[str, int]:
        """Return the producer's name and the sequence id."""
        return self._metadata.producer_name, self._metadata.sequence_id

    def key_hash(self) -> int:
        """Return the hash of the entry's key: a batch has the key of its first message."""
        return key_hash(sticky_key(self._metadata))

    def properties(self) -> Sequence[Mapping[str, str]]:
        """Return the properties of each message; raise UnreadableEntryError."""
        metadata = self._metadata
        if not metadata.HasField("num_messages_in_batch"):
            found = {item.key: item.value for item in metadata.properties}
            return (found or NO_PROPERTIES,)
        messages = to_messages(self._payload)
        return [message.properties for message in messages]


def describe(payload: bytes) -> EntryInfo:
    """Return the description of an entry; one that is no Pulsar payload is opaque."""
    try:
        return PulsarEntry(read_metadata(payload), payload)
    except ProtocolError:
        return OPAQUE_ENTRY


def describe_special(payload: bytes) -> EntryInfo | None:
    """Return the description of an entry that may have a time of delivery, or be a chunk."""
    # Checksum and the metadata's size come first; where there is no checksum, it is not worth it.
    end = _HEAD_BYTES + int.from_bytes(payload[6:_HEAD_BYTES], "big")
    if (
        payload.find(_DELIVER_AT_TAG, _HEAD_BYTES, end) < 0
        and payload.find(_CHUNKS_TAG, _HEAD_BYTES, end) < 0
        and payload.startswith(_CHECKSUM_MAGIC)
    ):
        return None
    return describe(payload)


def to_messages(payload: bytes) -> Sequence[Message]:
    """Return all messages of an entry, GONE for each that was compacted out of its batch.

    Raises UnreadableEntryError, also if they are larger together than _MAX_UNPACKED_BYTES, and if
    the entry is encrypted or a chunk of a message, which its consumer alone can undo.
    """
    try:
        unpacked = unpack(payload, _MAX_UNPACKED_BYTES)
    except ProtocolError as error:
        raise UnreadableEntryError(f"no Pulsar entry: {error}") from error
    if any(one.opaque for one in unpacked):
        raise UnreadableEntryError("the entry is encrypted, or a part of a message")
    if unpacked and unpacked[0].batch_index < 0:
        return [unpacked[0].message]
    count = read_metadata(payload).num_messages_in_batch
    if len(unpacked) == count:
        return [one.message for one in unpacked]
    messages = [GONE] * count
    for one in unpacked:
        messages[one.batch_index] = one.message
    return messages


def keep_messages(payload: bytes, live: int) -> bytes:
    """Return a batch with some of its messages, the others compacted out; see Codec."""
    try:
        return pulsar.keep_messages(payload, live, _MAX_UNPACKED_BYTES)
    except ProtocolError as error:
        raise UnreadableEntryError(f"no Pulsar batch: {error}") from error


def keys(payload: bytes) -> Sequence[MessageKey]:
    """Return the key of each message; one without a value, or an empty one, is a tombstone.

    So Apache Pulsar compacts topics. See Codec.
    """
    return [
        MessageKey(message.key, message.null or not message.value)
        for message in to_messages(payload)
    ]


def from_messages(messages: Sequence[Message], timestamp_ms: int) -> bytes:
    """Return one entry of these messages, as if it were published at a time (ms since 1970).

    Raises UnreadableEntryError if it is larger than clients take.
    """
    payload = pack(messages, TRANSCODED_PRODUCER, 0, timestamp_ms)
    if len(payload) > MAX_MESSAGE_SIZE:
        raise UnreadableEntryError(
            f"as a Pulsar entry it has {len(payload)} bytes, allowed are {MAX_MESSAGE_SIZE}"
        )
    return payload


def sticky_key(metadata: pb.MessageMetadata) -> bytes:
    """Return what decides which consumer gets an entry; without any key, each entry has its own."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = metadata.partition_key.encode()
        return _decoded(key) if metadata.partition_key_b64_encoded else key
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode()


def _decoded(key: bytes) -> bytes:
    try:
        return b64decode(key, validate=True)
    except Error:
        # Said to be base64 and is not. Any key serves, so long as it is always the same.
        return key


def latest_time(payload: bytes, stored_ms: int) -> int:
    """Return the latest time that Kafka readers get; see Codec."""
    end = _HEAD_BYTES + int.from_bytes(payload[6:_HEAD_BYTES], "big")
    head = payload[_HEAD_BYTES:end]
    in_batch = _BATCH_TAG in head and (
        payload.find(_BATCHED_TIME_TAG, end) >= 0 or _COMPRESSED.search(head)
    )
    if payload.startswith(_CHECKSUM_MAGIC) and not (in_batch or _TIME_TAG in head):
        return stored_ms
    try:
        return latest_event_time(payload, stored_ms, _MAX_UNPACKED_BYTES)
    except ProtocolError:
        return stored_ms
