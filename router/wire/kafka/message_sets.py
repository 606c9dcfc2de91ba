"""Kafka's message sets (formats 0 and 1), as servers before 0.11 stored them; they are only read.

Theory of operation. A message is offset, size, CRC-32 of what follows, format, attributes, the time
(format 1), key and value. A compressed set is the value of one message that wraps it: its offset is
that of the last one inside. In format 1 the messages inside count from 0, in format 0 they have
their own offsets. The LZ4 frames of format 0 have a wrong header checksum, which standard readers
refuse: such a set is an error. Nothing is wrapped twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception
from typing import Final, NamedTuple

from router.wire.kafka.compression import NONE, decompress
from router.wire.kafka.errors import CorruptRecordsError

_HEAD: Final = Struct(">qiIbb")
_TIME: Final = Struct(">q")
_SIZE: Final = Struct(">i")
_SIZED_FROM: Final = 12
_CRC_FROM: Final = 16
_CODEC: Final = 0x07
_APPEND_TIME: Final = 0x08
NO_TIMESTAMP: Final = -1


class OldMessage(NamedTuple):
    """A message of a set; `timestamp` in ms since 1970, NO_TIMESTAMP in format 0."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def read_message_set(data: bytes, limit: int) -> list[OldMessage]:
    """Return what one message holds: itself, or the set that it wraps.

    Raises CorruptRecordsError, and OversizedRecordsError for a set of more than `limit` bytes.
    """
    message, attributes, magic = _read(data)
    codec = attributes & _CODEC
    if codec == NONE:
        return [message]
    inner = []
    for found, own, _ in _each(decompress(codec, message.value or b"", limit)):
        if own & _CODEC:
            raise CorruptRecordsError("a compressed set holds another one")
        inner.append(found)
    if magic == 0 or not inner:
        return inner
    base = message.offset - inner[-1].offset
    append_time = attributes & _APPEND_TIME
    return [
        OldMessage(base + one.offset, message.timestamp if append_time else one.timestamp, *one[2:])
        for one in inner
    ]


def _each(data: bytes) -> Iterator[tuple[OldMessage, int, int]]:
    at = 0
    while at < len(data):
        end = at + _SIZED_FROM + int.from_bytes(data[at + 8 : at + _SIZED_FROM], signed=True)
        if not at + _HEAD.size <= end <= len(data):
            raise CorruptRecordsError("a message of a set is cut short")
        yield _read(data[at:end])
        at = end


def _read(data: bytes) -> tuple[OldMessage, int, int]:
    """Return one whole message with its attributes and its format."""
    if len(data) < _HEAD.size:
        raise CorruptRecordsError("a message is cut short")
    offset, _, crc, magic, attributes = _HEAD.unpack_from(data)
    if magic not in {0, 1}:
        raise CorruptRecordsError(f"a message of a set has the format {magic}")
    if zlib.crc32(data[_CRC_FROM:]) != crc:
        raise CorruptRecordsError(f"the CRC of the message at offset {offset} is wrong")
    at, timestamp = _HEAD.size, NO_TIMESTAMP
    try:
        if magic == 1:
            (timestamp,) = _TIME.unpack_from(data, at)
            at += _TIME.size
        key, at = _sized(data, at)
        value, at = _sized(data, at)
    except (ValueError, StructError) as error:
        raise CorruptRecordsError(f"the message at offset {offset} is cut short") from error
    if at != len(data):
        raise CorruptRecordsError(f"bytes follow the message at offset {offset}")
    return OldMessage(offset, timestamp, key, value), attributes, magic


def _sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    if size < 0:
        return None, at
    end: int = at + size
    if end > len(data):
        raise ValueError("length")
    return data[at:end], end
