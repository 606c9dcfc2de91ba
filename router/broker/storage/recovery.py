"""Owns recovery: what the journal holds beyond the last checkpoint is brought back for good.

The page cache is not believed: what a sync of the last process failed to write may still be read
from it. So everything the journal holds beyond the checkpoint is copied into one new journal file,
and that is synced and renamed before anything is served; its header declares the files before it as
not needed. Until the rename the old files stand untouched, so recovery may itself be cut short at
any point and begins again. The entries go to the tails, as if just appended, and from there to
the segments; what the segments hold beyond their synced size was cut off before that.

The alternative, copying into new segments at once, would cost two syncs for each partition that was
active, which takes longer than a start may with ten thousand of them; and each crash would leave
each of them one more small file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EIO
from pathlib import Path
from typing import Final, Protocol

import structlog

from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk, opened, read_all, read_file
from router.broker.storage.commit_groups import (
    FILE_SIZE,
    AckRecord,
    BadCommitGroup,
    CommitGroup,
    CommitRecord,
    DeletedRecord,
    EntryRecord,
    FileHeader,
    JournalRecord,
    ProducerRecord,
    ResetRecord,
    read_file_header,
    read_records,
    scan_commit_groups,
)
from router.broker.storage.faults import JournalDamagedError
from router.broker.storage.journal import JournalFiles
from router.broker.storage.producer_state import ProducerState
from router.broker.storage.records import StoredRecord
from router.broker.storage.rows import SubscriptionRecord
from router.broker.storage.values import StoredValues, ValueChange

JOINED_BYTES: Final = 256 << 10
"""Small commit groups become one of about so many bytes: each costs as much as several entries."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A journal file as read: `data` is all of it."""

    path: Path
    header: FileHeader
    data: bytes


def open_journal(disk: Disk, files: JournalFiles, first: int, *, closed: bool) -> list[int]:
    """Return the numbers of the journal files that recovery needs, in order.

    `first`: below it the metadata needs none; `closed`: it needs none at all. Raises
    JournalDamagedError if a file is missing.
    """
    numbers = [number for number in files.numbers() if number >= first]
    base = max([first, *(read_header(disk, files.path(number)).base for number in numbers)])
    needed = [number for number in numbers if number >= base]
    for place, number in enumerate(needed):
        if number != base + place:
            raise JournalDamagedError(files.path(base + place), 0, 0, "the file is missing")
    if not needed and not closed:
        raise JournalDamagedError(files.path(base), 0, 0, "the file is missing")
    return needed


@contextmanager
def reading_journal() -> Iterator[None]:
    """Raise StoreError where the disk cannot read: that puts nothing in doubt which was written.

    So the folder needs no repair, and a later start may read it.
    """
    try:
        yield
    except OSError as error:
        if error.errno != EIO:
            raise
        raise StoreError(f"the journal cannot be read: {error}") from error


def read_header(disk: Disk, path: Path) -> FileHeader:
    """Return a journal file's header; raise JournalDamagedError."""
    with opened(disk, path, os.O_RDONLY) as descriptor:
        return journal_file(path, read_all(disk, descriptor, FILE_SIZE, 0)).header


def read_journal(disk: Disk, path: Path) -> JournalFile:
    """Return a journal file; raise JournalDamagedError if its header is not sound."""
    return journal_file(path, read_file(disk, path))


def journal_file(path: Path, data: bytes) -> JournalFile:
    """Return a journal file of these bytes; raise JournalDamagedError as `read_journal` does."""
    header = read_file_header(data)
    if header is None or f"{header.number:010d}" != path.stem:
        raise JournalDamagedError(path, 0, FILE_SIZE, "its header is not sound")
    return JournalFile(path, header, data)


class ReplayTarget(Protocol):
    """A ledger, as recovery and repair bring entries back into it."""

    @property
    def next_entry(self) -> int:
        """The id that follows the entries that are there."""
        ...

    def replay(self, record: StoredRecord) -> None:
        """Take an entry that is not there; raise ValueError if it cannot follow those that are."""
        ...

    def replay_producer(self, name: str, state: ProducerState) -> None:
        """Take what a producer stored last."""
        ...

    def delete(self, ranges: Sequence[tuple[int, int]], removed_entry: int) -> object:
        """Take ranges of messages that were deleted; all before `removed_entry` are gone."""
        ...


class JournalReplay:
    """Brings records of the journal back into ledgers and cursors, which are found by their ids."""

    def __init__(
        self,
        ledger: Callable[[int], ReplayTarget | None],
        subscription: Callable[[int], SubscriptionRecord | None],
        values: StoredValues,
    ) -> None:
        self._ledger = ledger
        self._subscription = subscription
        self._values = values
        self.cursors: dict[SubscriptionRecord, None] = {}
        self.count = 0

    def apply(self, record: JournalRecord) -> None:
        """Apply one; what a checkpoint or an earlier copy holds already changes nothing.

        Raises ValueError if it cannot follow what came before.
        """
        self.count += 1
        if isinstance(record, EntryRecord):
            target = self._ledger(record.ledger)
            # Others were deleted with their topic, or are in a segment.
            if target is not None and record.entry.entry_id >= target.next_entry:
                target.replay(StoredRecord(record.head, record.entry))
        elif isinstance(record, ProducerRecord):
            if (ledger := self._ledger(record.ledger)) is not None:
                ledger.replay_producer(record.name, record.state)
        elif isinstance(record, DeletedRecord):
            if (ledger := self._ledger(record.ledger)) is not None:
                ledger.delete(record.ranges, record.removed_entry)
        elif isinstance(record, ValueChange):
            self._values.apply(record)
        else:
            self._apply_to_subscription(record)

    def _apply_to_subscription(self, record: AckRecord | CommitRecord | ResetRecord) -> None:
        if (subscription := self._subscription(record.subscription)) is None:
            return
        if isinstance(record, AckRecord):
            subscription.cursor.apply(record.ack)
        elif isinstance(record, CommitRecord):
            subscription.commit = record.commit
        else:
            subscription.cursor.reset(record.mark_delete)
        self.cursors[subscription] = None


def recover(
    disk: Disk, files: JournalFiles, number: int, replay: JournalReplay, relieve: Callable[[], None]
) -> None:
    """Replay the files below this number into a new one, which takes their place.

    Those that are not needed must be gone. Small commit groups are joined. `relieve` is called
    between them, to write tails away when they are long. Raises JournalDamagedError, OSError.
    """
    numbers = [old for old in files.numbers() if old < number]
    files.start(number, number, publish=False)
    bodies: list[bytes] = []
    size = 0
    for file, group in sound_commit_groups(disk, [files.path(old) for old in numbers]):
        try:
            for record in read_records(group.body):
                replay.apply(record)
        except ValueError as error:
            raise JournalDamagedError(file.path, group.start, group.end, str(error)) from error
        bodies.append(group.body)
        size += len(group.body)
        if size >= JOINED_BYTES:
            files.write(bodies)
            bodies, size = [], 0
            relieve()
    if bodies:
        files.write(bodies)
    if replay.count:
        # An empty group behind: damage to the last one is taken for a write that was cut short.
        files.write([])
    files.parts += replay.count
    files.publish()
    files.remove(number)


def sound_commit_groups(
    disk: Disk, paths: Sequence[Path]
) -> Iterator[tuple[JournalFile, CommitGroup]]:
    """Yield the commit groups of these files, up to a bad one that was not acknowledged.

    Raises JournalDamagedError at a bad one that was.
    """
    expected = None
    for path in paths:
        with reading_journal():
            file = read_journal(disk, path)
        if expected not in {None, file.header.first_group}:
            raise JournalDamagedError(path, 0, FILE_SIZE, "commit groups before it are missing")
        expected = file.header.first_group
        for found in scan_commit_groups(file.data, file.header):
            if isinstance(found, BadCommitGroup):
                if (error := damage_of(file, found, last=path == paths[-1])) is not None:
                    raise error
                _log.warning(
                    "journal cut at its last whole commit group",
                    file=str(path),
                    start=found.start,
                    end=len(file.data),
                )
                return
            yield file, found
            expected = found.number + 1


def damage_of(file: JournalFile, bad: BadCommitGroup, *, last: bool) -> JournalDamagedError | None:
    """Return what is wrong with a bad commit group of the `last` file or another one.

    None: it was cut short, and nothing of it was acknowledged.
    """
    if file.header.relaxed or (last and not bad.followed):
        return None
    return JournalDamagedError(file.path, bad.start, bad.end, "a synced commit group is not sound")
