"""Kafka's record batches (format 2): headers, checks, and batches built of records.

Theory of operation. A batch is a header of 61 bytes and the records behind it, compressed as a
whole. The CRC-32C covers everything behind the CRC, so the base offset, the length and the leader's
epoch, which stand before it, may be written by a broker without a new CRC. A broker that takes a
batch, stores it and serves it reads the header and the CRC alone (`check_batch`); what the batch
says of its records is proved by `open_batch` and `read_records`, which decompress it.

Offsets within a partition are the base offset and a record's number. A producer's batch is dense:
`last_offset_delta + 1 == count`; a batch that a broker compacted may have gaps, and no records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, cast

import crc32c as _crc32c

from router.wire.kafka.compression import CODEC_NAMES, NONE, compress, decompress
from router.wire.kafka.errors import (
    CorruptRecordsError,
    InvalidRecordsError,
    OldRecordFormatError,
    OversizedRecordsError,
    RecordsError,
    UnknownCompressionError,
)
from router.wire.kafka.records import (
    MIN_RECORD_BYTES,
    check_records,
    read_length,
    read_offset,
)

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
MAGIC: Final = 2
PREFIX_BYTES: Final = 16
"""The part that a broker writes: base offset, length and leader's epoch."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

NO_PRODUCER: Final = (-1, -1, -1)
"""Producer id, epoch and sequence of a batch whose producer is not idempotent."""
NO_EPOCH: Final = -1

_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_CRC_END: Final = 21
_LAST_DELTA_AT: Final = _CRC_END + 2
MAX_TIMESTAMP_AT: Final = _CRC_END + 14
_TIME: Final = struct.Struct(">q")
_TIMES: Final = 1 << 63
_LAST_DELTA: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")

Bytes = bytes | bytearray | memoryview

crc32c = cast("Callable[[Bytes], int]", _crc32c.crc32c)


class BatchHeader(NamedTuple):
    """The header of a batch; times in ms since 1970."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int
    """How many records the batch has, as its writer says."""

    @property
    def size(self) -> int:
        """Return the bytes of the whole batch."""
        return self.length + _LENGTH_END

    @property
    def codec(self) -> int:
        """Return the number of the compression."""
        return self.attributes & CODEC_MASK

    @property
    def last_offset(self) -> int:
        """Return the offset of the last record, which compaction may have removed."""
        return self.base_offset + self.last_offset_delta

    @property
    def is_transactional(self) -> bool:
        """Return whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Return whether the batch is the end of a transaction, which no reader is handed."""
        return bool(self.attributes & CONTROL)

    @property
    def has_append_time(self) -> bool:
        """Return whether every record has the time `max_timestamp`, at which it was stored."""
        return bool(self.attributes & LOG_APPEND_TIME)


_header = cast("Callable[[type[BatchHeader], tuple[int, ...]], BatchHeader]", tuple.__new__)


def read_header(data: Bytes, at: int = 0) -> BatchHeader:
    """Return the header of the batch that begins at an offset; only its size is checked.

    Raises CorruptRecordsError if the batch is not whole, OldRecordFormatError.
    """
    if len(data) - at < HEADER_BYTES:
        if len(data) - at > _MAGIC_AT and data[at + _MAGIC_AT] < MAGIC:
            raise _old_format(data[at + _MAGIC_AT])
        raise CorruptRecordsError(f"a batch of {len(data) - at} bytes is shorter than its header")
    header = _header(BatchHeader, HEADER.unpack_from(data, at))
    if header.magic != MAGIC:
        if 0 <= header.magic < MAGIC:
            raise _old_format(header.magic)
        raise CorruptRecordsError(f"a batch has the unknown format {header.magic}")
    if not HEADER_BYTES - _LENGTH_END <= header.length <= len(data) - at - _LENGTH_END:
        raise CorruptRecordsError(
            f"a batch says that it has {header.size} bytes, there are {len(data) - at}"
        )
    return header


def check_batch(data: Bytes, at: int = 0) -> BatchHeader:
    """Return the header of a producer's batch, with CRC, codec and counts checked.

    The batch is not opened: that it holds as many records as it says is `read_records`' matter.
    Raises CorruptRecordsError, OldRecordFormatError, UnknownCompressionError, InvalidRecordsError.
    """
    header = read_header(data, at)
    check_crc(header, data, at)
    if header.codec >= len(CODEC_NAMES):
        raise UnknownCompressionError(f"a batch has the unknown compression {header.codec}")
    if header.records <= 0 or header.last_offset_delta + 1 != header.records:
        raise InvalidRecordsError(
            f"a batch of {header.records} records says that its last one has the number"
            f" {header.last_offset_delta}"
        )
    return header


def check_crc(header: BatchHeader, data: Bytes, at: int = 0) -> None:
    """Raise CorruptRecordsError if the batch at an offset was changed behind its CRC."""
    with memoryview(data) as view, view[at + _CRC_END : at + header.size] as covered:
        if crc32c(covered) != header.crc:
            raise CorruptRecordsError(
                f"the CRC of the batch at offset {header.base_offset} is wrong"
            )


def whole_batch_end(data: Bytes, at: int) -> int:
    """Return where the batch of any format at an offset ends; 0: it is cut short."""
    if len(data) - at <= _MAGIC_AT:
        return 0
    length = int.from_bytes(data[at + _LENGTH_AT : at + _LENGTH_END], signed=True)
    end = at + _LENGTH_END + length
    if length <= _MAGIC_AT - _LENGTH_END:
        raise CorruptRecordsError(f"a batch says that it has {length} bytes")
    return end if end <= len(data) else 0


def next_offset(data: Bytes, offset: int) -> int:
    """Return the offset behind the last sound batch of a fetch that began at an offset."""
    at = 0
    with suppress(RecordsError):
        while (end := whole_batch_end(data, at)) > 0:
            if is_old(data, at):
                offset = int.from_bytes(data[at : at + _LENGTH_AT], signed=True) + 1
            else:
                offset = read_header(data, at).last_offset + 1
            at = end
    return offset


def is_old(data: Bytes, at: int = 0) -> bool:
    """Return whether a whole batch is a message of format 0 or 1 (see `message_sets`)."""
    return 0 <= data[at + _MAGIC_AT] < MAGIC


def open_batch(header: BatchHeader, batch: Bytes, limit: int) -> bytes:
    """Return the records of a batch, decompressed, for `read_records`.

    Raises CorruptRecordsError; OversizedRecordsError if they have more than `limit` bytes;
    InvalidRecordsError if they cannot be as many as the header says.
    """
    data = bytes(batch[HEADER_BYTES : header.size])
    codec = header.attributes & CODEC_MASK
    if codec != NONE:
        data = decompress(codec, data, limit)
    _check_size(header, len(data), limit)
    return data


def verify_records(header: BatchHeader, batch: Bytes, limit: int) -> tuple[bytes, int, int]:
    """Prove what a producer's batch says of its records: their number, and dense offsets.

    Returns bytes with the records, decompressed, and where these begin, which is in the batch
    itself if it is not compressed, and their largest timestamp. It takes about as long as reading
    them, so it belongs beside an event loop.
    Raises CorruptRecordsError, OversizedRecordsError and InvalidRecordsError.
    """
    plain = header.codec == NONE and len(batch) == header.size
    if plain and isinstance(batch, bytes):
        data, at = batch, HEADER_BYTES
        _check_size(header, len(batch) - HEADER_BYTES, limit)
    else:
        data, at = open_batch(header, batch, limit), 0
    latest = header.base_timestamp + check_records(data, header.records, at)
    return data, at, max(-_TIMES, min(latest, _TIMES - 1))


def _check_size(header: BatchHeader, size: int, limit: int) -> None:
    if size > limit:
        raise OversizedRecordsError(f"the records have {size} bytes, allowed are {limit}")
    if not 0 <= header.records <= size // MIN_RECORD_BYTES:
        raise InvalidRecordsError(
            f"a batch says that it has {header.records} records in {size} bytes"
        )


def with_max_timestamp(batch: Bytes, timestamp: int) -> bytes:
    """Return a batch whose header names another largest timestamp."""
    changed = bytearray(batch)
    _TIME.pack_into(changed, MAX_TIMESTAMP_AT, timestamp)
    sign_batch(changed)
    return bytes(changed)


def build_batch(
    records: Sequence[bytes],
    base_timestamp: int,
    max_timestamp: int,
    *,
    codec: int = NONE,
    producer: tuple[int, int, int] = NO_PRODUCER,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """Return a batch of records as `write_record` returns them, dense from the offset 0 on.

    `producer` is the producer's id, its epoch and the sequence of the first record; `attributes`
    are those besides the compression.
    """
    count = len(records)
    body = b"".join(records)
    if codec != NONE:
        body = compress(codec, body)
    batch = bytearray(HEADER_BYTES + len(body))
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - _LENGTH_END,
        leader_epoch,
        MAGIC,
        0,
        attributes | codec,
        count - 1,
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )
    batch[HEADER_BYTES:] = body
    sign_batch(batch)
    return batch


def sign_batch(batch: bytearray) -> None:
    """Write the CRC of a batch that was changed."""
    with memoryview(batch) as view, view[_CRC_END:] as covered:
        _CRC.pack_into(batch, _CRC_AT, crc32c(covered))


def empty_batch(offsets: int, timestamp_ms: int) -> bytes:
    """Return a batch without records that takes as many offsets, as compaction leaves it.

    Readers go on behind it.
    """
    batch = build_batch((), timestamp_ms, timestamp_ms)
    _LAST_DELTA.pack_into(batch, _LAST_DELTA_AT, offsets - 1)
    sign_batch(batch)
    return bytes(batch)


def keep_records(
    header: BatchHeader, batch: Bytes, kept: int, limit: int, codec: int = NONE
) -> bytes:
    """Return a batch with some of its records, which keep their offsets.

    `kept` has a bit for each offset of the batch, the first in the lowest. Readers go on behind the
    whole batch. `codec` is the compression of the result.
    Raises CorruptRecordsError, OversizedRecordsError, InvalidRecordsError.
    """
    data, at, records = open_batch(header, batch, limit), 0, []
    offsets = header.last_offset_delta + 1
    dense = header.records == offsets
    # A digit is found at once, a bit of a number with 65,000 bits is not.
    marks = f"{kept:0{offsets}b}"[::-1]
    try:
        for place in range(header.records):
            length, start = read_length(data, at)
            if marks[place if dense else read_offset(data, start)] == "1":
                records.append(data[at : start + length])
            at = start + length
    except (IndexError, ValueError) as error:
        raise InvalidRecordsError(f"a record of a batch cannot be read: {error}") from error
    rest = build_batch(
        records,
        header.base_timestamp,
        header.max_timestamp,
        codec=codec,
        producer=(header.producer_id, header.producer_epoch, header.base_sequence),
        attributes=header.attributes & ~CODEC_MASK,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )
    _LAST_DELTA.pack_into(rest, _LAST_DELTA_AT, header.last_offset_delta)
    sign_batch(rest)
    return bytes(rest)


class AbortedTransactions:
    """Which batches of a fetch belong to transactions that came to nothing.

    `aborted`: producer ids with the first offset of each such transaction, as a FETCH answers.
    """

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._pending = sorted(aborted, key=lambda found: found[1], reverse=True)
        self._producers: set[int] = set()

    def hides(self, header: BatchHeader) -> bool:
        """Tell whether readers are handed nothing of a batch; called for each, in their order."""
        while self._pending and self._pending[-1][1] <= header.last_offset:
            self._producers.add(self._pending.pop()[0])
        if header.is_control:
            # The end of its producer's transaction, if it had one that was aborted.
            self._producers.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._producers


def _old_format(magic: int) -> OldRecordFormatError:
    return OldRecordFormatError(
        f"the records have Kafka's old format {magic}, of servers before 0.11"
    )
