"""Owns the bytes of entries: the record that segments hold and journals carry, and reading it.

A record is length, CRC32-C, entry id, index, timestamp, payload; the length counts what follows the
checksum, and the checksum covers just that. The same bytes stand in the journal and in the segment,
so an entry carries one checksum from the moment it came in until it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import crc32c as _crc32c

crc32c = cast("Callable[[bytes, int], int]", _crc32c.crc32c)
"""CRC32-C of the bytes, carried on from another one (0: none)."""

HEAD: Final = struct.Struct(">IIQQQ")
SUM: Final = struct.Struct(">II")
IDS: Final = struct.Struct(">QQQ")
MAX_PAYLOAD: Final = 64 << 20
"""No entry is larger; a length beyond it is damage, and is never allocated."""


class Entry(NamedTuple):
    """A stored entry: `index` is the number of its last message; the payload as received."""

    entry_id: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no entry needs
    timestamp_ms: int
    payload: bytes


class Record(NamedTuple):
    """An entry with the bytes that stand before its payload, and how many messages it has."""

    head: bytes
    entry: Entry
    messages: int


def make_head(entry_id: int, index: int, timestamp_ms: int, payload: bytes) -> bytes:
    """Return what stands before the payload."""
    ids = IDS.pack(entry_id, index, timestamp_ms)
    return SUM.pack(IDS.size + len(payload), crc32c(payload, crc32c(ids, 0))) + ids


def record_size(data: bytes, at: int) -> int | None:
    """Return the size that the record at `at` claims; None if no record can begin so."""
    if at + HEAD.size > len(data):
        return None
    length = int.from_bytes(data[at : at + 4], "big")
    if not IDS.size <= length <= MAX_PAYLOAD + IDS.size:
        return None
    return SUM.size + length


def read_record(data: bytes, at: int) -> Entry | None:
    """Return the entry whose record begins at `at`; None unless it is there whole and sound."""
    size = record_size(data, at)
    if size is None or at + size > len(data):
        return None
    _length, checksum, entry_id, index, timestamp_ms = HEAD.unpack_from(data, at)
    body = data[at + SUM.size : at + size]
    if crc32c(body, 0) != checksum:
        return None
    return Entry(entry_id, index, timestamp_ms, body[IDS.size :])
