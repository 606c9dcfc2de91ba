"""Kafka's records (format 2) as bytes: what a batch holds behind its header.

Theory of operation. A record is its length, attributes (unused), the difference of its timestamp to
the batch's first, its place in the batch, key, value and headers; numbers are zigzag varints. The
loops are written for speed in plain Python: numbers of one and two bytes, which are nearly all, are
read in place.

Every record that is read is checked: lengths stay within the record, and a record ends where its
length says. Whether places are dense is the caller's matter: compacted topics have gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from router.wire.kafka.errors import InvalidRecordsError

Header = tuple[bytes, bytes | None]
"""A header's name, which should be UTF-8, and its value, which may be null."""

NO_HEADERS: Final[Sequence[Header]] = ()
NO_HEADER_BYTES: Final = b"\0"
MIN_RECORD_BYTES: Final = 7
MAX_RECORD_OVERHEAD_BYTES: Final = 24
"""What a record takes at most beside its key, value and headers; a batch has less than 4 GiB."""
MAX_VARINT_BYTES: Final = 10
_EARLIEST: Final = -1 << 64
MAX_LENGTH_BYTES: Final = 5
"""Java's readers take no longer varint for a number of 32 bits."""


class KafkaRecord(NamedTuple):
    """A record; `offset` and `timestamp` are differences to the batch's base."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


# The class's own constructor is written in Python.
_new: Final = tuple.__new__


@lru_cache(maxsize=32_768)
def varint(value: int) -> bytes:
    """Return a number as a zigzag varint."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of at most 64 bits and where it ends; raise IndexError, ValueError."""
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
            if value >> 64:
                raise ValueError("a number has more than 64 bits")
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift >= 7 * MAX_VARINT_BYTES:
            raise ValueError("a number has more than ten bytes")


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of at most 32 bits and where it ends; raise IndexError, ValueError."""
    length, end = read_varint(data, at)
    if end - at > MAX_LENGTH_BYTES:
        raise ValueError("a length has more than five bytes")
    return length, end


def read_offset(data: bytes, at: int) -> int:
    """Return the offset of a record, behind whose length `at` is; raise IndexError, ValueError."""
    _, at = read_varint(data, at + 1)
    return read_varint(data, at)[0]


def write_record(
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: bytes = NO_HEADER_BYTES,
) -> bytes:
    """Return a record; `headers` as `write_headers` returns them."""
    body = b"".join(
        (
            b"\0" + varint(timestamp) if timestamp else b"\0\0",
            varint(offset),
            b"\1" if key is None else varint(len(key)) + key,
            b"\1" if value is None else varint(len(value)),
            value or b"",
            headers,
        )
    )
    return varint(len(body)) + body


def write_headers(headers: Sequence[Header]) -> bytes:
    """Return headers with their count."""
    parts = [varint(len(headers))]
    for name, value in headers:
        parts += (varint(len(name)), name)
        if value is None:
            parts.append(b"\1")
        else:
            parts += (varint(len(value)), value)
    return b"".join(parts)


def read_headers(data: bytes, at: int, end: int) -> Sequence[Header]:
    """Return headers, which stand before `end`; raise IndexError, ValueError."""
    count, at = read_length(data, at)
    # A header has two bytes at least, so the count bounds the loop by what is there.
    if end > len(data) or not 0 <= count <= (end - at) // 2:
        raise ValueError("a record has more headers than bytes for them")
    headers = []
    for _ in range(count):
        name, at = _bytes(data, at, end)
        if name is None:
            raise ValueError("a header has no name")
        value, at = _bytes(data, at, end)
        headers.append((name, value))
    if at != end:
        raise ValueError("its length is wrong")
    return headers


def read_records(data: bytes, count: int, at: int = 0) -> Iterator[KafkaRecord]:
    """Yield the `count` records that `data` holds from a place on, and nothing else.

    Raises InvalidRecordsError, after the records that stand before the fault.
    """
    try:
        for _ in range(count):
            length = data[at]
            at += 1
            if length < 0x80 and not length & 1:
                end = at + (length >> 1)
            else:
                length, at = read_varint(data, at - 1)
                end = at + length
            at += 1
            timestamp = data[at]
            if timestamp < 0x80:
                timestamp, at = (timestamp >> 1) ^ -(timestamp & 1), at + 1
            else:
                timestamp, at = read_varint(data, at)
            offset, at = read_varint(data, at)
            key, at = _bytes(data, at, end)
            value, at = _bytes(data, at, end)
            headers = NO_HEADERS
            if data[at] or at + 1 != end:
                headers = read_headers(data, at, end)
            at = end
            yield _new(KafkaRecord, (offset, timestamp, key, value, headers))
    except (IndexError, ValueError) as error:
        detail = "it is cut short" if isinstance(error, IndexError) else str(error)
        raise InvalidRecordsError(f"the record that ends behind byte {at}: {detail}") from error
    if at != len(data):
        raise InvalidRecordsError(f"bytes follow the {count} records that the batch declares")


def check_records(  # noqa: C901, PLR0912, PLR0915 - see below
    data: bytes, count: int, at: int = 0
) -> int:
    """Return the largest timestamp of `count` records, as its difference to the batch's base.

    Raises InvalidRecordsError unless from this place on are so many records, with the offsets
    0, 1, 2 …. Every record of a producer passes here, so numbers of one and two bytes are read in
    line and no value is made: it takes half the time of `read_records`.
    """
    place = 0
    latest = _EARLIEST
    try:
        for place in range(count):
            length = data[at]
            at += 1
            if length > 0x7F:
                second = data[at]
                if second > 0x7F:
                    length, at = read_length(data, at - 1)
                    length <<= 1
                else:
                    length = length & 0x7F | second << 7
                    at += 1
            if length & 1:
                _refuse_length()
            end = at + (length >> 1)
            at += 2  # attributes, and the first byte of the timestamp
            time = data[at - 1]
            if time > 0x7F:
                second = data[at]
                if second > 0x7F:
                    time, at = read_varint(data, at - 1)
                    time <<= 1
                else:
                    time = time & 0x7F | second << 7
                    at += 1
            if time & 1:
                time = -time - 1
            if time > latest:  # noqa: PLR1730 - `max` takes three times as long
                latest = time
            number = varint(place)
            if not data.startswith(number, at):
                _refuse_number(data, at, place)
            at += len(number)
            size = data[at]
            at += 1
            if size > 0x7F:
                at = _field_end(data, at - 1)
            elif not size & 1:
                at += size >> 1
            size = data[at]
            at += 1
            if size > 0x7F:
                at = _field_end(data, at - 1)
            elif not size & 1:
                at += size >> 1
            if at + 1 != end or data[at]:
                read_headers(data, at, end)
            at = end
    except (IndexError, ValueError) as error:
        reason = "it is cut short" if isinstance(error, IndexError) else str(error)
        raise InvalidRecordsError(f"record {place}: {reason}") from error
    if at != len(data):
        raise InvalidRecordsError(f"bytes follow the {count} records that the batch declares")
    return latest >> 1


def _refuse_length() -> None:
    raise ValueError("its length is negative")


def _refuse_number(data: bytes, at: int, place: int) -> None:
    number, _ = read_varint(data, at)
    raise InvalidRecordsError(f"record {place} says that it has the number {number}")


def _field_end(data: bytes, at: int) -> int:
    """Return where a field with a length of more than one byte ends."""
    length, at = read_length(data, at)
    return at + length if length > 0 else at


def first_key(data: bytes) -> bytes | None:
    """Return the key of the first record; what follows the key may be cut off.

    Raises InvalidRecordsError if the key does.
    """
    try:
        _, at = read_varint(data, 0)
        _, at = read_varint(data, at + 1)
        _, at = read_varint(data, at)
        return _bytes(data, at, len(data))[0]
    except (IndexError, ValueError) as error:
        raise InvalidRecordsError("the first key is cut short") from error


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length = data[at]
    at += 1
    if length < 0x80:
        if length & 1:
            return None, at
        stop = at + (length >> 1)
    else:
        second = data[at]
        if second < 0x80:
            length, at = length & 0x7F | second << 7, at + 1
            if length & 1:
                return None, at
            stop = at + (length >> 1)
        else:
            length, at = read_length(data, at - 1)
            if length < 0:
                return None, at
            stop = at + length
    if stop > end:
        raise ValueError("a field is longer than its record")
    return data[at:stop], stop
