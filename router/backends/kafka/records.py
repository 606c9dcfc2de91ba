"""What a fetch holds: messages with the positions that the router gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from router.errors import ReadFailedError
from router.model import OVERSIZED, UNDECODED, Message, Position, Stored
from router.wire.kafka.errors import InvalidRecordsError, OversizedRecordsError, RecordsError
from router.wire.kafka.message_sets import read_message_set
from router.wire.kafka.record_batches import (
    HEADER_BYTES,
    AbortedTransactions,
    BatchHeader,
    check_crc,
    is_old,
    open_batch,
    read_header,
    whole_batch_end,
)
from router.wire.kafka.record_messages import read_message
from router.wire.kafka.records import read_records

MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024


def decode(
    data: bytes | memoryview,
    start: int,
    partition: int,
    aborted: Sequence[tuple[int, int]] = (),
    epoch: int = 0,
    limit: int = MAX_INFLATED_BYTES,
) -> Iterator[Stored]:
    """Yield the messages of a fetch from an offset on.

    `aborted` are producer ids with the first offset of each transaction that came to nothing: its
    messages are left out. Positions have the partition and the epoch that are given. A batch that
    has more than `limit` bytes without its compression is one message, of its last offset. A batch
    that is cut short ends it. Raises ReadFailedError for damage.
    """
    transactions = AbortedTransactions(aborted)
    offset, at, view = start, 0, memoryview(data)
    try:
        while (end := whole_batch_end(view, at)) > 0:
            batch, at = view[at:end], end
            if is_old(batch):
                yield from _old_messages(bytes(batch), start, partition, epoch, limit)
                continue
            header = read_header(batch)
            offset = header.base_offset
            check_crc(header, batch)
            if not transactions.hides(header):
                try:
                    yield from _messages(header, batch, start, partition, epoch, limit)
                except OversizedRecordsError:
                    place = Position(0, header.last_offset, partition, -1, 0, epoch)
                    yield _oversized(header, batch, place)
    except RecordsError as error:
        raise ReadFailedError(f"The batch at offset {offset} is damaged: {error}.") from error


def _messages(
    header: BatchHeader, batch: memoryview, start: int, partition: int, epoch: int, limit: int
) -> Iterator[Stored]:
    base, last = header.base_offset, header.last_offset_delta
    first, time_ms = header.base_timestamp, header.max_timestamp
    append_time = header.has_append_time
    for record in read_records(open_batch(header, batch, limit), header.records):
        place = record[0]
        if not 0 <= place <= last:
            raise InvalidRecordsError(f"a record says that it has the number {place}")
        if base + place >= start:
            position = Position(0, base + place, partition, -1, 0, epoch)
            published = time_ms if append_time else first + record[1]
            yield Stored(read_message(record), position, published)


def _old_messages(
    data: bytes, start: int, partition: int, epoch: int, limit: int
) -> Iterator[Stored]:
    try:
        for offset, time_ms, key, value in read_message_set(data, limit):
            if offset >= start:
                message = Message(value or b"", key, null=value is None)
                place = Position(0, offset, partition, -1, 0, epoch)
                yield Stored(message, place, max(0, time_ms))
    except OversizedRecordsError:
        message = Message(data, None, {UNDECODED: OVERSIZED})
        last = Position(0, int.from_bytes(data[:8], signed=True), partition, -1, 0, epoch)
        yield Stored(message, last, 0, oversized=True)


def _oversized(header: BatchHeader, batch: memoryview, last: Position) -> Stored:
    message = Message(bytes(batch[HEADER_BYTES:]), None, {UNDECODED: OVERSIZED})
    return Stored(message, last, header.max_timestamp, oversized=True)
