"""Proves of a Kafka producer's batch, before it is stored, that readers can be sent it."""

from __future__ import annotations

from typing import Final

from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.entries.kafka import to_messages
from router.broker.entries.pulsar import from_messages
from router.wire.kafka.errors import KeylessRecordsError, OversizedRecordsError
from router.wire.kafka.record_batches import (
    BatchHeader,
    Bytes,
    verify_records,
    with_max_timestamp,
)
from router.wire.kafka.records import read_records
from router.wire.pulsar import MAX_MESSAGE_SIZE

_SURE_BYTES: Final = 1 << 20
"""Of records that make an entry of Pulsar whatever is in them."""
_MAX_MESSAGE_OVERHEAD_BYTES: Final = 32
"""What a message has more in a Pulsar entry than as a record, beside its key and headers."""


def prove_batch(header: BatchHeader, batch: Bytes, limit: int, *, keyed: bool = False) -> bytes:
    """Prove what a producer's batch says of its records, and that all readers can be sent them.

    Returns the batch as it is stored: its largest timestamp is that of its records. Bytes that are
    not UTF-8 take more in Pulsar than in Kafka: four times as much in headers. With `keyed` every
    record needs a key. Raises CorruptRecordsError, OversizedRecordsError, InvalidRecordsError and
    KeylessRecordsError.
    """
    batch = bytes(batch)
    data, at, latest = verify_records(header, batch, limit)
    if keyed:
        records = enumerate(read_records(data, header.records, at))
        if places := [place for place, record in records if record.key is None]:
            raise KeylessRecordsError(places)
    if latest != header.max_timestamp:
        batch = with_max_timestamp(batch, latest)
    if len(data) - at <= _SURE_BYTES:
        return batch
    size = len(data) - at + header.records * _MAX_MESSAGE_OVERHEAD_BYTES
    for _, _, key, _, headers in read_records(data, header.records, at):
        size += len(key or b"") // 2
        size += sum(5 * (len(name) + len(value or b"")) + 16 for name, value in headers)
    if size <= MAX_MESSAGE_SIZE:
        return batch
    try:
        from_messages(to_messages(batch), 0)
    except UnreadableEntryError as error:
        raise OversizedRecordsError(str(error)) from error
    return batch
