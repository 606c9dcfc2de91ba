"""Owns the bytes of entries: the record that segments hold and journals carry, and reading it.

A record is length, CRC32-C, entry id, index, timestamp, format, message count, payload; the length
counts what follows the checksum, and the checksum covers just that. The same bytes stand in the
journal and in the segment, so an entry carries one checksum from its arrival until it is read.

A segment from which deleted messages were reclaimed has a gap record in the place of entries of
which nothing is left: it has their ids, the numbers of their messages, and a checksum like an
entry. So one record still leads to the next, and a record that is lost is never taken for a gap.

The payload is opaque here: its format is a number, which readers know. An entry's timestamp is when
it was stored. The times that its messages have of their own are in the payload: a function that
reads them is an argument of the store (`LatestTime`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from router.broker.disk.files import crc32c

HEAD: Final = struct.Struct(">IIQQQBI")
SUM: Final = struct.Struct(">II")
FIELDS: Final = struct.Struct(">QQQBI")
_new: Final = tuple.__new__
"""What makes an entry without the classes' own `__new__`, which is written in Python."""
MAX_PAYLOAD: Final = 64 << 20
"""No entry is larger; a length beyond it is damage, and is never allocated."""
MAX_RECORD: Final = MAX_PAYLOAD + FIELDS.size
MAX_FORMAT: Final = 255
UNKNOWN_TIME: Final = (1 << 63) - 1
"""In place of a latest time that is not known: no message has a later one."""
MAX_MESSAGES: Final = 1 << 31
"""No entry has more."""
PULSAR_FORMAT: Final = 1
KAFKA_FORMAT: Final = 2
NATS_FORMAT: Final = 3
"""The numbers of formats; what can be read is in `router.broker.entries`."""
GAP_FORMAT: Final = 0
"""Of a gap record, which is no entry: its payload is the id of the last entry of the gap."""
MAX_GAP_MESSAGES: Final = (1 << 32) - 1
_LAST_ENTRY: Final = struct.Struct(">Q")


class Entry(NamedTuple):
    """A stored entry: so many messages, the last one with the number `index`.

    The payload is as received, in the format of the number `format`.
    """

    entry_id: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no entry needs
    timestamp_ms: int
    format: int
    messages: int
    payload: bytes


KeepMessages = Callable[[Entry, int], bytes | None]
"""Returns the payload of an entry with some of its messages only, each at its place in it.

There is a bit for each message, the first in the lowest. None: the entry stays as it is.
"""
LatestTime = Callable[[Entry], int]
"""Returns the latest time of the messages of an entry, by its payload (ms since 1970)."""


def unknown_time(entry: Entry) -> int:
    """Return UNKNOWN_TIME: a LatestTime that does not read the payload."""
    del entry
    return UNKNOWN_TIME


def keep_all(entry: Entry, live: int) -> None:
    """Return None: a KeepMessages that knows no format."""
    del entry, live


class StoredRecord(NamedTuple):
    """An entry with the bytes that stand before its payload."""

    head: bytes
    entry: Entry


def make_head(entry: Entry) -> bytes:
    """Return what stands before the payload of an entry."""
    entry_id, index, timestamp_ms, format_tag, messages, payload = entry
    fields = FIELDS.pack(entry_id, index, timestamp_ms, format_tag, messages)
    return SUM.pack(FIELDS.size + len(payload), crc32c(payload, crc32c(fields, 0))) + fields


def make_gap(first: Entry, last_entry: int, index: int, timestamp_ms: int) -> Entry:
    """Return the gap from an entry, or gap, to another entry, which ends with the message `index`.

    `timestamp_ms` is the latest time at which one of the entries was stored.
    """
    messages = index - first.index + first.messages
    return Entry(
        first.entry_id, index, timestamp_ms, GAP_FORMAT, messages, _LAST_ENTRY.pack(last_entry)
    )


def entry_after(entry: Entry) -> int:
    """Return the id of the entry that follows one, or a gap."""
    if entry.format != GAP_FORMAT:
        return entry.entry_id + 1
    last: int = _LAST_ENTRY.unpack(entry.payload)[0]
    return last + 1


def record_size(data: bytes, at: int) -> int | None:
    """Return the size that the record at `at` claims; None if no record can begin so."""
    if at + HEAD.size > len(data):
        return None
    length = int.from_bytes(data[at : at + 4], "big")
    if not FIELDS.size <= length <= MAX_RECORD:
        return None
    return SUM.size + length


def read_record(data: bytes, at: int) -> Entry | None:
    """Return the entry whose record begins at `at`; None unless it is there whole and sound."""
    start = at + HEAD.size
    if start > len(data):
        return None
    length, checksum, entry_id, index, timestamp_ms, format_tag, messages = HEAD.unpack_from(
        data, at
    )
    end = at + SUM.size + length
    if end > len(data) or not FIELDS.size <= length <= MAX_RECORD:
        return None
    # Two runs of the checksum cost less than to copy a large payload once more for a single one.
    payload = data[start:end]
    if crc32c(payload, crc32c(data[at + SUM.size : start], 0)) != checksum:
        return None
    return _new(Entry, (entry_id, index, timestamp_ms, format_tag, messages, payload))
