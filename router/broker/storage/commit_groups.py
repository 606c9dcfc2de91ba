"""Owns the bytes of the journal: file header, commit groups, and the records inside a commit group.

A commit group is what one write and one sync made durable together, for all partitions. Its header
names its number and the salt of its file, and its checksum covers both with the body: a commit
group counts only where it was written, so a journal that was published as a message is never
taken for one. Commit group n+1 is written only after commit group n was synced. Hence a bad commit
group with a good later one behind it is damage to acknowledged data, and a bad commit group with
none behind it is a write that was cut short and that was not acknowledged.

A file that was written over an older one has older bytes behind its newest commit group. Their salt
is another, so they are no commit groups of this file. So that they are no damage either, an end
mark follows the newest commit group, in the same write; the next commit group is written over it.
Anything else there than an end mark or a commit group was cut short or damaged, as it is at the end
of a file that was not reused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from router.broker.disk.files import crc32c
from router.broker.storage.cursors import Ack, CommittedPosition
from router.broker.storage.producer_state import ProducerState
from router.broker.storage.records import HEAD, Entry, read_record, record_size
from router.broker.storage.values import ValueChange, ValueOperation

FILE_MAGIC: Final = b"MRJF"
GROUP_MAGIC: Final = b"MRJR"
END_MAGIC: Final = b"MRJE"
VERSION: Final = 4
RELAXED: Final = 1
REUSED: Final = 2
"""Of a file that was written over an older one: an end mark stands behind the last commit group."""

_FILE = struct.Struct(">4sBBQQQQ")
_FILE_SUM = struct.Struct(">I")
_GROUP = struct.Struct(">4sIQQ")
FILE_SIZE: Final = _FILE.size + _FILE_SUM.size
GROUP_HEADER_SIZE: Final = _GROUP.size + _FILE_SUM.size

_KEY = struct.Struct(">BQ")
_PRODUCER = struct.Struct(">QQQII")
_ACK = struct.Struct(">QBI")
_RESET = struct.Struct(">q")
_SPAN = struct.Struct(">QQ")
_DELETED = struct.Struct(">QI")
_ONE_SPAN = struct.Struct(">BQQIQQ")
_VALUE = struct.Struct(">HHI")


class RecordKind(IntEnum):
    """What a record in a commit group is about."""

    ENTRY = 1
    PRODUCER = 2
    ACK = 3
    RESET = 4
    COMMIT = 5
    DELETED = 6
    VALUE = 7


class FileHeader(NamedTuple):
    """How a journal file begins; files below `base` are not needed once this one exists."""

    number: int
    base: int
    first_group: int
    salt: int
    relaxed: bool
    reused: bool = False


class EntryRecord(NamedTuple):
    """An entry of a ledger."""

    ledger: int
    head: bytes
    entry: Entry


class ProducerRecord(NamedTuple):
    """What a producer stored last in a ledger."""

    ledger: int
    name: str
    state: ProducerState


class AckRecord(NamedTuple):
    """An acknowledgement on a subscription."""

    subscription: int
    ack: Ack


class ResetRecord(NamedTuple):
    """A cursor that was set: exactly what is at or below `mark_delete` is acknowledged."""

    subscription: int
    mark_delete: int


class CommitRecord(NamedTuple):
    """What a client stored with the position of a subscription."""

    subscription: int
    commit: CommittedPosition


class DeletedRecord(NamedTuple):
    """Messages of a ledger that were deleted: ranges of their numbers, ends included.

    `removed_entry`: a limit deleted them, and with them all before this entry is gone; 0: a client.
    """

    ledger: int
    ranges: Sequence[tuple[int, int]]
    removed_entry: int


JournalRecord = (
    EntryRecord
    | ProducerRecord
    | AckRecord
    | ResetRecord
    | CommitRecord
    | DeletedRecord
    | ValueChange
)


@dataclass(frozen=True, slots=True)
class BadCommitGroup:
    """Bytes that are no whole commit group; `followed`: a sound one of the file is at `end`."""

    start: int
    number: int
    end: int
    followed: bool


@dataclass(frozen=True, slots=True)
class CommitGroup:
    """A sound commit group: its number, and where its body stands."""

    number: int
    start: int
    body: bytes

    @property
    def end(self) -> int:
        """Return the place after the commit group."""
        return self.start + GROUP_HEADER_SIZE + len(self.body)


def pack_file_header(header: FileHeader) -> bytes:
    """Return the header as bytes."""
    flags = RELAXED * header.relaxed | REUSED * header.reused
    data = _FILE.pack(FILE_MAGIC, VERSION, flags, *header[:4])
    return data + _FILE_SUM.pack(crc32c(data, 0))


def read_file_header(data: bytes) -> FileHeader | None:
    """Return the header that a journal file begins with; None if it is not sound."""
    if len(data) < FILE_SIZE:
        return None
    magic, version, flags, number, base, first_group, salt = _FILE.unpack_from(data)
    (checksum,) = _FILE_SUM.unpack_from(data, _FILE.size)
    if magic != FILE_MAGIC or version != VERSION or checksum != crc32c(data[: _FILE.size], 0):
        return None
    relaxed, reused = bool(flags & RELAXED), bool(flags & REUSED)
    return FileHeader(number, base, first_group, salt, relaxed, reused)


def guess_file_header(data: bytes, number: int) -> FileHeader:
    """Return the header that a journal file must have had, from its first commit group."""
    first_group = salt = 0
    if data.startswith(GROUP_MAGIC, FILE_SIZE) and len(data) >= FILE_SIZE + GROUP_HEADER_SIZE:
        _magic, _length, first_group, salt = _GROUP.unpack_from(data, FILE_SIZE)
    return FileHeader(number, 0, first_group, salt, relaxed=False)


def pack_group_header(number: int, salt: int, body: Sequence[bytes]) -> bytes:
    """Return a commit group's header; the body, given in parts, follows it."""
    head = _GROUP.pack(GROUP_MAGIC, sum(map(len, body)), number, salt)
    checksum = crc32c(head, 0)
    for part in body:
        checksum = crc32c(part, checksum)
    return head + _FILE_SUM.pack(checksum)


def pack_end(number: int, salt: int) -> bytes:
    """Return the mark behind the last commit group of a reused file; the next has this number."""
    mark = _GROUP.pack(END_MAGIC, 0, number, salt)
    return mark + _FILE_SUM.pack(crc32c(mark, 0))


def scan_commit_groups(data: bytes, header: FileHeader) -> Iterator[CommitGroup | BadCommitGroup]:
    """Yield the commit groups of a file in order, and what stands between them.

    `data` is the whole file. What stands behind the end mark of a reused one does not count.
    """
    at, number = FILE_SIZE, header.first_group
    while at < len(data) or header.reused:
        found = _group_at(data, at, header.salt)
        if found is not None and found.number == number:
            yield found
        else:
            found = _later_group(data, at, header.salt, number)
            ended = header.reused and data.startswith(pack_end(number, header.salt), at)
            if found is None and ended:
                return
            if found is None:
                yield BadCommitGroup(at, number, len(data), followed=False)
                return
            yield BadCommitGroup(at, number, found.start, followed=True)
            yield found
        at, number = found.end, found.number + 1


def _group_at(data: bytes, at: int, salt: int) -> CommitGroup | None:
    if at + GROUP_HEADER_SIZE > len(data):
        return None
    magic, length, number, own = _GROUP.unpack_from(data, at)
    if magic != GROUP_MAGIC or own != salt or at + GROUP_HEADER_SIZE + length > len(data):
        return None
    (checksum,) = _FILE_SUM.unpack_from(data, at + _GROUP.size)
    body = data[at + GROUP_HEADER_SIZE : at + GROUP_HEADER_SIZE + length]
    head = data[at : at + _GROUP.size]
    return CommitGroup(number, at, body) if crc32c(body, crc32c(head, 0)) == checksum else None


def _later_group(data: bytes, at: int, salt: int, number: int) -> CommitGroup | None:
    at = data.find(GROUP_MAGIC, at + 1)
    while at >= 0:
        found = _group_at(data, at, salt)
        if found is not None and found.number > number:
            return found
        at = data.find(GROUP_MAGIC, at + 1)
    return None


def entry_prefix(ledger: int) -> bytes:
    """Return what stands before an entry's record in a commit group."""
    return _KEY.pack(RecordKind.ENTRY, ledger)


def pack_producer_state(ledger: int, name: str, state: ProducerState) -> bytes:
    """Return what a producer stored last as a record."""
    text = name.encode("utf-8", "surrogatepass")
    fields = _PRODUCER.pack(state.sequence, state.entry, state.time_ms, state.messages, len(text))
    return _KEY.pack(RecordKind.PRODUCER, ledger) + fields + text


def pack_ack(subscription: int, ack: Ack) -> bytes:
    """Return an acknowledgement as a record."""
    count = len(ack.ack_set)
    fields = _ACK.pack(ack.entry, ack.cumulative, count)
    return (
        _KEY.pack(RecordKind.ACK, subscription) + fields + struct.pack(f">{count}q", *ack.ack_set)
    )


def pack_reset(subscription: int, mark_delete: int) -> bytes:
    """Return the setting of a cursor as a record."""
    return _KEY.pack(RecordKind.RESET, subscription) + _RESET.pack(mark_delete)


def pack_commit(subscription: int, commit: CommittedPosition) -> bytes:
    """Return what a client stored with a position as a record."""
    return _KEY.pack(RecordKind.COMMIT, subscription) + commit.dump()


def pack_deleted(ledger: int, ranges: Sequence[tuple[int, int]], removed_entry: int = 0) -> bytes:
    """Return deleted messages as a record."""
    if len(ranges) == 1:
        # As a stream writes it at each publish that deletes its oldest message.
        return _ONE_SPAN.pack(RecordKind.DELETED, ledger, removed_entry, 1, *ranges[0])
    head = _KEY.pack(RecordKind.DELETED, ledger) + _DELETED.pack(removed_entry, len(ranges))
    return head + b"".join([_SPAN.pack(first, last) for first, last in ranges])


def pack_value(change: ValueChange) -> bytes:
    """Return the change of a value as a record; the operation stands where others have an id."""
    owner, key = (text.encode("utf-8", "surrogatepass") for text in (change.owner, change.key))
    head = _KEY.pack(RecordKind.VALUE, change.operation)
    return head + _VALUE.pack(len(owner), len(key), len(change.value)) + owner + key + change.value


def read_records(body: bytes) -> Iterator[JournalRecord]:
    """Yield the records of a sound commit group; raise ValueError if one cannot be read."""
    at = 0
    try:
        while at < len(body):
            record, at = _record_at(body, at)
            yield record
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError("a record is cut short") from error


def salvage(data: bytes, start: int, end: int) -> list[EntryRecord]:
    """Return the entries of a bad commit group that are certain in spite of the damage.

    Those are the ones before the first bad record, and the ones after it if the lengths lead to
    `end` exactly: a walk that was led astray could end up inside a payload, where anything may
    stand. What is no entry carries no checksum of its own and is given up.
    """
    found: list[EntryRecord] = []
    certain: int | None = None
    at = start + GROUP_HEADER_SIZE
    while at < end:
        try:
            record, at = _record_at(data[:end], at)
        except (ValueError, struct.error):
            certain = len(found) if certain is None else certain
            size = record_size(data, at + _KEY.size) if data[at] == RecordKind.ENTRY else None
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
    if kind == RecordKind.ENTRY:
        entry = read_record(body, at)
        if entry is None:
            raise ValueError("an entry's own checksum does not hold")
        end = at + HEAD.size + len(entry.payload)
        return EntryRecord(owner, body[at : at + HEAD.size], entry), end
    if kind == RecordKind.PRODUCER:
        sequence, entry_id, time_ms, messages, size = _PRODUCER.unpack_from(body, at)
        at += _PRODUCER.size
        if at + size > len(body):
            raise ValueError("a producer's name is cut short")
        name = body[at : at + size].decode("utf-8", "surrogatepass")
        state = ProducerState(sequence, entry_id, messages, time_ms)
        return ProducerRecord(owner, name, state), at + size
    if kind == RecordKind.ACK:
        entry_id, cumulative, count = _ACK.unpack_from(body, at)
        at += _ACK.size
        words = struct.unpack_from(f">{count}q", body, at)
        return AckRecord(owner, Ack(entry_id, bool(cumulative), words)), at + 8 * count
    if kind == RecordKind.RESET:
        (mark_delete,) = _RESET.unpack_from(body, at)
        return ResetRecord(owner, mark_delete), at + _RESET.size
    if kind == RecordKind.COMMIT:
        commit, at = CommittedPosition.read(body, at)
        return CommitRecord(owner, commit), at
    return _other_at(body, at, kind, owner)


def _other_at(
    body: bytes, at: int, kind: int, owner: int
) -> tuple[DeletedRecord | ValueChange, int]:
    """Return a record of the other kinds, whose fields begin at `at`, and the place after it."""
    if kind == RecordKind.DELETED:
        removed_entry, count = _DELETED.unpack_from(body, at)
        at += _DELETED.size
        spans = struct.unpack_from(f">{2 * count}Q", body, at)
        ranges = tuple(zip(spans[::2], spans[1::2], strict=True))
        return DeletedRecord(owner, ranges, removed_entry), at + _SPAN.size * count
    if kind != RecordKind.VALUE:
        raise ValueError(f"a record of the unknown kind {kind}")
    owner_size, key_size, value_size = _VALUE.unpack_from(body, at)
    at += _VALUE.size
    key_at = at + owner_size
    value_at = key_at + key_size
    end = value_at + value_size
    if end > len(body):
        raise ValueError("a value is cut short")
    name = body[at:key_at].decode("utf-8", "surrogatepass")
    key = body[key_at:value_at].decode("utf-8", "surrogatepass")
    return ValueChange(ValueOperation(owner), name, key, body[value_at:end]), end
