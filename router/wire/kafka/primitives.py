"""What generated codecs call: varints, long lengths, long arrays, tagged fields.

A length arrives here as the first byte that the generated code has read; `at` is the offset after
it. Lengths are one more than the length, 0 is null, as in Kafka's flexible versions. Functions that
read raise ValueError, IndexError or struct.error for bytes that are no message; what is wrong in
which field is found afterwards by `router.wire.kafka.diagnosis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from struct import Struct, calcsize, pack, unpack_from
from typing import Any, Final

from router.wire.kafka.definitions import ZERO_UUID
from router.wire.kafka.errors import TooManyElementsError

MAX_STRING_BYTES: Final = 0x7FFF
"""The longest string of Kafka's protocol as UTF-8, in flexible versions too."""
UNBOUNDED: Final = 1 << 62
"""As many elements as there are bytes for."""
MAX_TAG: Final = (1 << 31) - 2
MAX_CACHED_ARRAY: Final = 63
"""Longer arrays of numbers are packed without a cached Struct."""


def uvarint_rest(buffer: bytes, at: int, first: int) -> tuple[int, int]:
    """Return the 32-bit number whose first byte was read, and the offset after it."""
    byte = buffer[at]
    if byte < 128:
        return first - 128 + (byte << 7), at + 1
    number, shift = first & 0x7F, 7
    while shift < 35:
        byte = buffer[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 128:
            number &= 0xFFFFFFFF
            if number == 1 << 31:
                break  # one less, the length that it stands for, has no 32 bits
            return (number - (1 << 32) if number >> 31 else number), at
        shift += 7
    raise ValueError("a varint is longer than 5 bytes or out of range")


def read_uvarint(buffer: bytes, at: int) -> tuple[int, int]:
    """Return a 32-bit number and the offset after it."""
    first = buffer[at]
    return (first, at + 1) if first < 128 else uvarint_rest(buffer, at + 1, first)


def read_string(buffer: bytes, at: int, first: int) -> tuple[str, int]:
    """Return a string of a flexible version, which is not null."""
    found, at = read_nullable_string(buffer, at, first)
    if found is None:
        raise ValueError("null")
    return found, at


def read_nullable_string(buffer: bytes, at: int, first: int) -> tuple[str | None, int]:
    """Return a string of a flexible version or None."""
    size, at = (first, at) if first < 128 else uvarint_rest(buffer, at, first)
    if size < 1:
        return None, at
    end = at + size - 1
    if size - 1 > MAX_STRING_BYTES or end > len(buffer):
        raise ValueError("length")
    return str(buffer[at:end], "utf-8", "replace"), end


def read_numbers(buffer: bytes, at: int, first: int, code: str) -> tuple[tuple[Any, ...], int]:
    """Return a long array of numbers, of which the first byte of the count was read."""
    size, at = (first, at) if first < 128 else uvarint_rest(buffer, at, first)
    return read_counted(buffer, at, size, code)


def read_counted(buffer: bytes, at: int, size: int, code: str) -> tuple[tuple[Any, ...], int]:
    """Return an array of numbers; `size` is one more than the count."""
    count, width = size - 1, calcsize(f">{code}")
    if count < 0 or count * width > len(buffer) - at:
        raise ValueError("count")
    return unpack_from(f">{count}{code}", buffer, at), at + count * width


def read_uuids(buffer: bytes, at: int, size: int) -> tuple[list[bytes], int]:
    """Return an array of UUIDs; `size` is one more than the count."""
    end = at + 16 * (size - 1)
    if size < 1 or end > len(buffer):
        raise ValueError("count")
    return [buffer[one : one + 16] for one in range(at, end, 16)], end


def read_tag(buffer: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of a tagged field, the offset of its end, and that of its content."""
    tag, at = read_uvarint(buffer, at)
    size, at = read_uvarint(buffer, at)
    if tag < 0 or size < 0 or size > len(buffer) - at:
        raise ValueError("tagged field")
    return tag, at + size, at


def refuse_elements() -> None:
    """Raise TooManyElementsError."""
    raise TooManyElementsError


def read_unknown(
    buffer: bytes, at: int, first: int, left: int
) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """Return the tagged fields of a section in which no tag is known; raise TooManyElementsError.

    There may be `left` of them.
    """
    count, at = (first, at) if first < 128 else uvarint_rest(buffer, at, first)
    if count < 0:
        raise ValueError("tagged fields")
    if count > left:
        raise TooManyElementsError
    found = []
    for _ in range(count):
        tag, stop, at = read_tag(buffer, at)
        found.append((tag, buffer[at:stop]))
        at = stop
    return tuple(found), at


def uvarint(number: int) -> bytes:
    """Return the bytes of an unsigned number."""
    if number < 128:
        return bytes((number,))
    found = bytearray()
    while number > 127:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def string_size(size: int) -> bytes:
    """Return the length of a long string; `size` is one more than it."""
    if size - 1 > MAX_STRING_BYTES:
        raise ValueError("length")
    return uvarint(size)


def write_numbers(numbers: Sequence[Any], code: str) -> bytes:
    """Return an array of numbers of a flexible version."""
    count = len(numbers)
    return uvarint(count + 1) + pack(f">{count}{code}", *numbers)


def write_counted(numbers: Sequence[Any], code: str) -> bytes:
    """Return an array of numbers with a count of four bytes."""
    count = len(numbers)
    return pack(f">i{count}{code}", count, *numbers)


def write_uuids(uuids: Sequence[bytes]) -> bytes:
    """Return the content of an array of UUIDs."""
    if any(len(one) != len(ZERO_UUID) for one in uuids):
        raise ValueError("uuid")
    return b"".join(uuids)


def write_tags(known: Iterable[tuple[int, bytes]], unknown: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the section of tagged fields; tags that are unknown go between the known ones.

    Those that are unknown ascend up to MAX_TAG, as Kafka's own writer demands.
    """
    unknown = list(unknown)
    if any(one[0] >= other[0] for one, other in pairwise([*unknown, (MAX_TAG + 1, b"")])):
        raise ValueError("tags")
    merged = sorted([*known, *unknown], key=itemgetter(0))
    found = [uvarint(len(merged))]
    last = -1
    for tag, content in merged:
        if tag <= last:
            raise ValueError("tags")
        last = tag
        found += uvarint(tag), uvarint(len(content)), content
    return b"".join(found)


def unpackers(code: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    """Return what reads n-1 numbers at index n; index 0 raises ValueError."""
    counts = range(MAX_CACHED_ARRAY)
    return (_null, *(Struct(f">{count}{code}").unpack_from for count in counts))


def packers(code: str, prefix: str) -> tuple[Callable[..., bytes], ...]:
    """Return what writes a count of the type `prefix` and n numbers at index n."""
    return tuple(Struct(f">{prefix}{count}{code}").pack for count in range(MAX_CACHED_ARRAY))


def _null(*_: object) -> tuple[Any, ...]:
    raise ValueError("null")
