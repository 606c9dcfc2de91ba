"""Owns the bytes of the journal: file header, rounds, and the records inside a round.

A round is what one write and one sync made durable together, for all partitions. Its header names
its number and the salt of its file, and its checksum covers both with the body: a round counts only
where it was written, so a journal that somebody published as a message is never taken for one.
Round n+1 is written only after round n was synced. Hence a bad round with a good later one behind
it is damage to acknowledged data, and a bad round with none behind it is a write that was cut short
and that nobody was promised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from router.broker.cursors import Ack
from router.broker.dedup import Mark
from router.broker.ledger.records import HEAD, Entry, crc32c, read_record, record_size

FILE_MAGIC: Final = b"MRJF"
ROUND_MAGIC: Final = b"MRJR"
VERSION: Final = 1
VERSION_REUSED: Final = 2
"""Of a file that was written over an older one, whose bytes may stand behind the last round."""
RELAXED: Final = 1

_FILE = struct.Struct(">4sBBQQQQ")
_FILE_SUM = struct.Struct(">I")
_ROUND = struct.Struct(">4sIQQ")
FILE_SIZE: Final = _FILE.size + _FILE_SUM.size
ROUND_SIZE: Final = _ROUND.size + _FILE_SUM.size

_KEY = struct.Struct(">BQ")
_MARK = struct.Struct(">QQQII")
_ACK = struct.Struct(">QBI")
_RESET = struct.Struct(">q")


class Kind(IntEnum):
    """What a record in a round says."""

    ENTRY = 1
    MARK = 2
    ACK = 3
    RESET = 4


class FileHeader(NamedTuple):
    """How a journal file begins; files below `base` are not needed once this one exists."""

    number: int
    base: int
    first_round: int
    salt: int
    relaxed: bool
    reused: bool = False


class EntryRecord(NamedTuple):
    """An entry of a ledger."""

    ledger: int
    head: bytes
    entry: Entry


class MarkRecord(NamedTuple):
    """What a producer stored last in a ledger."""

    ledger: int
    name: str
    mark: Mark


class AckRecord(NamedTuple):
    """An acknowledgement on a subscription."""

    subscription: int
    ack: Ack


class ResetRecord(NamedTuple):
    """A cursor that was set: exactly what is at or below `mark_delete` is acknowledged."""

    subscription: int
    mark_delete: int


JournalRecord = EntryRecord | MarkRecord | AckRecord | ResetRecord


@dataclass(frozen=True, slots=True)
class BadRound:
    """Bytes that are no whole round; `later`: the place of a sound one of this file behind them."""

    start: int
    number: int
    later: int | None


@dataclass(frozen=True, slots=True)
class Round:
    """A sound round: its number, and where its body stands."""

    number: int
    start: int
    body: bytes

    @property
    def end(self) -> int:
        """Return the place after the round."""
        return self.start + ROUND_SIZE + len(self.body)


def pack_file_header(header: FileHeader) -> bytes:
    """Return the header as bytes."""
    flags = RELAXED if header.relaxed else 0
    data = _FILE.pack(
        FILE_MAGIC,
        VERSION_REUSED if header.reused else VERSION,
        flags,
        header.number,
        header.base,
        header.first_round,
        header.salt,
    )
    return data + _FILE_SUM.pack(crc32c(data, 0))


def read_file_header(data: bytes) -> FileHeader | None:
    """Return the header that a journal file begins with; None if it is not sound."""
    if len(data) < FILE_SIZE:
        return None
    magic, version, flags, number, base, first_round, salt = _FILE.unpack_from(data)
    (checksum,) = _FILE_SUM.unpack_from(data, _FILE.size)
    known = magic == FILE_MAGIC and version in {VERSION, VERSION_REUSED}
    if not known or checksum != crc32c(data[: _FILE.size], 0):
        return None
    return FileHeader(
        number, base, first_round, salt, bool(flags & RELAXED), version == VERSION_REUSED
    )


def guess_file_header(data: bytes, number: int) -> FileHeader:
    """Return what the header of a journal file must have said, from the first round in it."""
    first_round = salt = 0
    if data[FILE_SIZE : FILE_SIZE + 4] == ROUND_MAGIC and len(data) >= FILE_SIZE + ROUND_SIZE:
        _magic, _length, first_round, salt = _ROUND.unpack_from(data, FILE_SIZE)
    return FileHeader(number, 0, first_round, salt, relaxed=False)


def pack_round(number: int, salt: int, body: Sequence[bytes]) -> bytes:
    """Return a round's header; the body, given in parts, follows it."""
    head = _ROUND.pack(ROUND_MAGIC, sum(map(len, body)), number, salt)
    checksum = crc32c(head, 0)
    for part in body:
        checksum = crc32c(part, checksum)
    return head + _FILE_SUM.pack(checksum)


def scan_rounds(data: bytes, header: FileHeader) -> Iterator[Round | BadRound]:
    """Yield the rounds of a file in order, and the stretches between them that are none.

    `data` is the whole file. What a reused one goes on with is none of those stretches, unless a
    round of this file begins there, or stands behind it.
    """
    at, number = FILE_SIZE, header.first_round
    while at < len(data):
        found = _round_at(data, at, header.salt)
        if found is not None and found.number == number:
            yield found
        else:
            found = _later_round(data, at, header.salt, number)
            if found is None and _may_end(data, at, header):
                return
            yield BadRound(at, number, None if found is None else found.start)
            if found is None:
                return
            yield found
        at, number = found.end, found.number + 1


def _round_at(data: bytes, at: int, salt: int) -> Round | None:
    if at + ROUND_SIZE > len(data):
        return None
    magic, length, number, own = _ROUND.unpack_from(data, at)
    if magic != ROUND_MAGIC or own != salt or at + ROUND_SIZE + length > len(data):
        return None
    (checksum,) = _FILE_SUM.unpack_from(data, at + _ROUND.size)
    body = data[at + ROUND_SIZE : at + ROUND_SIZE + length]
    head = data[at : at + _ROUND.size]
    return Round(number, at, body) if crc32c(body, crc32c(head, 0)) == checksum else None


def _may_end(data: bytes, at: int, header: FileHeader) -> bool:
    """Tell whether a file may be as it should be without a round at this place."""
    if not header.reused or at + ROUND_SIZE > len(data):
        return header.reused
    magic, _length, _number, salt = _ROUND.unpack_from(data, at)
    return bool(magic != ROUND_MAGIC or salt != header.salt)


def _later_round(data: bytes, at: int, salt: int, number: int) -> Round | None:
    at = data.find(ROUND_MAGIC, at + 1)
    while at >= 0:
        found = _round_at(data, at, salt)
        if found is not None and found.number > number:
            return found
        at = data.find(ROUND_MAGIC, at + 1)
    return None


def entry_prefix(ledger: int) -> bytes:
    """Return what stands before an entry's record in a round."""
    return _KEY.pack(Kind.ENTRY, ledger)


def pack_mark(ledger: int, name: str, mark: Mark) -> bytes:
    """Return a producer's mark as a record."""
    text = name.encode("utf-8", "surrogatepass")
    fields = _MARK.pack(mark.sequence, mark.entry, mark.time_ms, mark.messages, len(text))
    return _KEY.pack(Kind.MARK, ledger) + fields + text


def pack_ack(subscription: int, ack: Ack) -> bytes:
    """Return an acknowledgement as a record."""
    count = len(ack.ack_set)
    fields = _ACK.pack(ack.entry, ack.cumulative, count)
    return _KEY.pack(Kind.ACK, subscription) + fields + struct.pack(f">{count}q", *ack.ack_set)


def pack_reset(subscription: int, mark_delete: int) -> bytes:
    """Return the setting of a cursor as a record."""
    return _KEY.pack(Kind.RESET, subscription) + _RESET.pack(mark_delete)


def read_records(body: bytes) -> Iterator[JournalRecord]:
    """Yield the records of a sound round; raise ValueError if it does not hold what it should."""
    at = 0
    try:
        while at < len(body):
            record, at = _record_at(body, at)
            yield record
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError("a record is cut short") from error


def salvage(data: bytes, start: int, end: int) -> list[EntryRecord]:
    """Return the entries of a bad round that are certain in spite of the damage.

    Those are the ones before the first bad record, and the ones after it if the lengths lead to
    `end` exactly: a walk that was led astray could end up inside a payload, where anything may
    stand. Marks and acknowledgements carry no checksum of their own and are given up.
    """
    found: list[EntryRecord] = []
    certain: int | None = None
    at = start + ROUND_SIZE
    while at < end:
        try:
            record, at = _record_at(data[:end], at)
        except (ValueError, struct.error):
            certain = len(found) if certain is None else certain
            size = record_size(data, at + _KEY.size) if data[at] == Kind.ENTRY else None
            if size is None:
                break
            at += _KEY.size + size
            continue
        if isinstance(record, EntryRecord):
            found.append(record)
    return found if at == end else found[:certain]


def _record_at(body: bytes, at: int) -> tuple[JournalRecord, int]:
    kind, owner = _KEY.unpack_from(body, at)
    at += _KEY.size
    if kind == Kind.ENTRY:
        entry = read_record(body, at)
        if entry is None:
            raise ValueError("an entry's own checksum does not hold")
        end = at + HEAD.size + len(entry.payload)
        return EntryRecord(owner, body[at : at + HEAD.size], entry), end
    if kind == Kind.MARK:
        sequence, entry_id, time_ms, messages, size = _MARK.unpack_from(body, at)
        at += _MARK.size
        if at + size > len(body):
            raise ValueError("a producer's name is cut short")
        name = body[at : at + size].decode("utf-8", "surrogatepass")
        return MarkRecord(owner, name, Mark(sequence, entry_id, messages, time_ms)), at + size
    if kind == Kind.ACK:
        entry_id, cumulative, count = _ACK.unpack_from(body, at)
        at += _ACK.size
        words = struct.unpack_from(f">{count}q", body, at)
        return AckRecord(owner, Ack(entry_id, bool(cumulative), words)), at + 8 * count
    if kind == Kind.RESET:
        (mark_delete,) = _RESET.unpack_from(body, at)
        return ResetRecord(owner, mark_delete), at + _RESET.size
    raise ValueError(f"a record of the unknown kind {kind}")
