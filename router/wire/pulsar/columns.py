"""Batches to columns, for who reads millions of messages: no object is made for each of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from router.model import NO_PROPERTIES
from router.wire import ProtocolError
from router.wire.pulsar.batches import (
    KEY_TAG,
    MAX_BATCH,
    described,
    inflate,
    is_set,
    plain_heads,
    read_head,
)
from router.wire.pulsar.payloads import split_payload
from router.wire.pulsar.pulsar_pb2 import (
    BrokerEntryMetadata,
    MessageMetadata,
    SingleMessageMetadata,
)

_SIZE: Final = Struct(">I")
_KEY: Final = KEY_TAG[0]


class Columns(NamedTuple):
    """The messages of an entry, column by column: null values are None.

    `places` are those in the batch, a range from 0 if it is whole, -1 outside of one; `size` counts
    all that the batch was made of. The time of publishing is one for all, in ms since 1970.
    `first_index` is the number of the first message that the batch was made of, None: the broker
    does not count them.
    `schema_version` is that of the topic's schema that all are written with, empty: none.
    """

    places: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    properties: Sequence[Mapping[str, str]]
    event_times: Sequence[int | None]
    publish_time: int
    size: int
    first_index: int | None = None
    schema_version: bytes = b""

    def rows(self, numbers: Sequence[int]) -> Columns:
        """Return these rows alone, counted from 0."""
        return self._replace(
            places=[self.places[number] for number in numbers],
            keys=[self.keys[number] for number in numbers],
            values=[self.values[number] for number in numbers],
            properties=[self.properties[number] for number in numbers],
            event_times=[self.event_times[number] for number in numbers],
        )

    def unacknowledged(self, ack_set: Sequence[int]) -> Columns:
        """Return the messages that an ack set of `unpack` does not say are acknowledged."""
        if not ack_set:
            return self
        return self.rows([n for n, place in enumerate(self.places) if is_set(ack_set, place)])


def unpack_columns(payload: bytes | memoryview, limit: int) -> Columns | None:
    """Return what `unpack` says of a sound batch; None: the entry is another kind, or damaged.

    Raises ProtocolError for a body that is no batch, as `unpack` does.
    """
    entry = split_payload(payload)
    metadata = entry.stored_metadata()
    opaque = metadata.encryption_keys or metadata.num_chunks_from_msg > 1
    if entry.checksum_ok is False or opaque or not metadata.HasField("num_messages_in_batch"):
        return None
    body = inflate(metadata, entry.body, limit)
    try:
        found = _read(body, metadata)
    except struct.error as error:
        raise ProtocolError("batch cut short") from error
    return found._replace(
        first_index=index_of_first(entry.broker_entry, found.size),
        schema_version=metadata.schema_version,
    )


def index_of_first(broker_entry: BrokerEntryMetadata | None, messages: int) -> int | None:
    """Return the number of the first message of an entry; None: the broker does not count them."""
    if broker_entry is None or not broker_entry.HasField("index"):
        return None
    return broker_entry.index + 1 - messages


def _read(body: bytes, metadata: MessageMetadata) -> Columns:
    count, end, at = metadata.num_messages_in_batch, len(body), 0
    if not 0 < count <= MAX_BATCH:
        raise ProtocolError(f"batch of {count} messages")
    keys: list[bytes | None] = []
    values: list[bytes] = []
    rare: dict[int, SingleMessageMetadata] = {}
    known, read_size = plain_heads.get, _SIZE.unpack_from
    for index in range(count):
        start = at + 4
        value_at = start + read_size(body, at)[0]
        head = body[start:value_at]
        key = None
        size = known(head)
        if size is None and len(head) > 2 and head[0] == _KEY and head[1] < 0x80:
            # A key and a value, nothing else: see batches.
            stop = 2 + head[1]
            size, key = known(head[stop:]), head[2:stop]
        if size is None or not (key is None or key.isascii()):
            size, key, single = read_head(head)
            if single is not None:
                rare[index] = single
        at = value_at + size
        if not value_at <= at <= end:
            raise ProtocolError("message larger than its batch")
        keys.append(key)
        values.append(body[value_at:at])
    if at != end:
        raise ProtocolError("bytes after the last message of a batch")
    if rare:
        return _with_rare(keys, values, rare, metadata)
    nothing, none = [NO_PROPERTIES] * count, [None] * count
    return Columns(range(count), keys, values, nothing, none, metadata.publish_time, count)


def _with_rare(
    keys: list[bytes | None],
    values: list[bytes],
    rare: Mapping[int, SingleMessageMetadata],
    metadata: MessageMetadata,
) -> Columns:
    """Return columns of which some messages have more to say than a key and a value."""
    rows: list[tuple[int, bytes | None, bytes | None, Mapping[str, str], int | None]] = []
    for index, value in enumerate(values):
        single = rare.get(index)
        if single is None:
            rows.append((index, keys[index], value, NO_PROPERTIES, None))
        elif not single.compacted_out:
            key, properties, event_time = described(single)
            given = None if single.null_value else value
            rows.append((index, key, given, properties, event_time))
    return Columns(
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
        [row[4] for row in rows],
        metadata.publish_time,
        len(values),
    )
