"""Keeps the subject index of a stream in step with its log.

Theory of operation. What NATS clients publish is in the index as soon as it is appended, so that
the next publish is checked against it. Entries of other dialects are taken when they are on disk,
in their order. `position` is the entry before which all are in the index; `_ahead` are entries
behind it that are in it too. Small entries in memory are taken within the call that finds them,
others by a task that reads the log.

Messages may go that the index counts: retention of the topic removes segments, and clients of other
dialects delete records. Then the index is built again from what is left.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from router.broker.nats.streams.log.deadlines import (
    MARK,
    Deadline,
    Deadlines,
    is_marker,
    message_ttl,
)
from router.broker.nats.streams.log.messages import (
    NS_PER_MS,
    READ_BYTES,
    READ_ENTRIES,
    MessageReader,
    StoredMessage,
)
from router.broker.nats.streams.log.subject_index import SubjectIndex
from router.broker.storage import DamagedError, Entry

MAX_INLINE_ENTRIES: Final = 64


class IndexObserver(Protocol):
    """Is called with what comes into the index, and leaves it."""

    def added(self, sequence: int, subject: str) -> None:
        """Count a message that came."""
        ...

    def removed(self, sequence: int, subject: str) -> None:
        """Count a message that left."""
        ...

    def reset(self) -> None:
        """Begin again: all messages are deleted, or are added once more."""
        ...


_log = structlog.get_logger(__name__)


class Indexer:
    """Keeps the index of one ledger; entries before `position` are in it.

    `taken` counts the entries that were read for it, as those of other dialects are; `restarts` how
    often it was built again.
    """

    def __init__(self, reader: MessageReader, index: SubjectIndex) -> None:
        self._visible = reader.visible
        self._ledger = ledger = reader.visible.ledger
        self.index = index
        self.deadlines = Deadlines(self.is_deleted)
        self.position = ledger.first_entry
        self.foreign = False
        self.taken = self.restarts = 0
        self.observers: dict[IndexObserver, None] = {}
        self._reader = reader
        self._ahead: set[int] = set()
        self._lacks_withheld = False
        self._seen = self._gone()
        self.unreadable = 0
        self._work: asyncio.Task[None] | None = None

    def resume(
        self, position: int, unreadable: int, deadlines: Iterable[Deadline], *, foreign: bool
    ) -> None:
        """Go on at an entry: the index has what a checkpoint held."""
        self.position = position
        self.foreign = foreign
        self.unreadable = unreadable
        self.deadlines.restore(deadlines)
        self._seen = self._gone()

    def restart(self) -> None:
        """Build the index again from nothing; observers hear of that, then of each message.

        What cannot be read yet is in it at once, as it was, or with the next `catch_up` if it is
        on disk: the next publish is checked against it.
        """
        find, before = self._ledger.in_memory, self.ahead()
        ahead = [found for one in before if (found := find(one))]
        self._ahead = {entry.entry_id for entry in ahead}
        self._lacks_withheld = self._lacks_withheld or len(ahead) < len(before)
        self.foreign = False
        self.restarts += 1
        self.position = self._ledger.first_entry
        self._seen = self._gone()
        self.forget_all()
        for entry in ahead:
            self._count(entry)

    @property
    def has_all(self) -> bool:
        """Return whether the index has all that was appended, on disk or not."""
        return self._ledger.next_entry - self.position == len(self._ahead)

    def count_absent(self) -> int | None:
        """Return how many messages were appended that are not in the index; None: not known now."""
        if self.has_all:
            return 0
        if not self.advance() or self.position != self._visible.end_entry:
            return None
        absent = self._visible.count(self._visible.end_number, self._ledger.next_index)
        for entry_id in self._ahead:
            if (messages := self.cached(entry_id)) is None:
                return None
            absent -= len(messages)
        return absent

    @property
    def withholds(self) -> bool:
        """Return whether the index may have what stands behind an open transaction."""
        return self._ledger.undecided is not None and bool(self._ahead)

    def ahead(self) -> list[int]:
        """Return the entries that are in the index and cannot be read yet, in order."""
        end = self._visible.end_entry
        return sorted(one for one in self._ahead if one >= end)

    def cached(self, entry_id: int) -> list[StoredMessage] | None:
        """Return the messages of an entry that are not deleted; None: it is not in memory."""
        entry = self._ledger.in_memory(entry_id)
        return None if entry is None else list(self._left(entry))

    async def stored(
        self, entry_ids: Sequence[int], max_reads: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Yield the messages of entries on disk, in order, that are not deleted; raise OSError.

        There are at most `max_reads` reads, each of no more than READ_BYTES; None: as many as it
        takes.
        """
        waiting, chosen = sorted(entry_ids), {*entry_ids}
        while waiting and max_reads != 0:
            max_reads = None if max_reads is None else max_reads - 1
            try:
                entries = await self._ledger.read(waiting[0], READ_ENTRIES, READ_BYTES)
            except DamagedError as damage:
                entries, last = [], damage.last
            else:
                last = entries[-1].entry_id if entries else waiting[-1]
            for entry in entries:
                if entry.entry_id in chosen:
                    for message in self._left(entry):
                        yield message
            del waiting[: bisect_right(waiting, last)]
            await asyncio.sleep(0)

    async def take_withheld(self) -> AsyncIterator[StoredMessage]:
        """Take what NATS clients published behind an open transaction, in order, and yield it.

        For a start, or an index that is built again: the next publish is checked against it.
        Raises OSError.
        """
        ledger, entry_id = self._ledger, self._visible.end_entry
        end = entry_id if ledger.undecided is None else ledger.durable_entry
        while entry_id < end:
            try:
                entries = await ledger.read(entry_id, READ_ENTRIES, READ_BYTES)
            except DamagedError as damage:
                entry_id = damage.last + 1
                continue
            if not entries:
                return
            for entry in filter(self._reader.is_native, entries):
                if not self.has(entry.entry_id):
                    self._count(entry)
                    self._ahead.add(entry.entry_id)
                for message in self._left(entry):
                    yield message
            entry_id = entries[-1].entry_id + 1
            await asyncio.sleep(0)

    def add(self, subject: str, sequence: int, size: int) -> None:
        """Count a message that is appended; `appended` follows with its entry."""
        self.index.add(subject, sequence, size)
        for observer in self.observers:
            observer.added(sequence, subject)

    def appended(self, entry_id: int) -> None:
        """Note that the messages of an entry, which is not on disk yet, are in the index."""
        self._ahead.add(entry_id)

    @property
    def knows_all_gone(self) -> bool:
        """Return whether nothing went that the index may count."""
        return self._gone() == self._seen

    def note_gone(self) -> None:
        """Note that what went was taken out of the index."""
        self._seen = self._gone()

    def forget_all(self) -> None:
        """Take everything out: all that was appended is deleted now."""
        self.index.clear()
        self.deadlines.clear()
        self.unreadable = 0
        for observer in self.observers:
            observer.reset()

    def remove(self, subject: str, sequence: int, size: int) -> None:
        """Take a message out that is deleted now, and is in the index."""
        self.index.remove(subject, sequence, size)
        for observer in self.observers:
            observer.removed(sequence, subject)

    def has(self, entry_id: int) -> bool:
        """Return whether the messages of an entry are in the index."""
        return entry_id < self.position or entry_id in self._ahead

    def advance(self) -> bool:
        """Take what is quick; return whether the index has all that is on disk."""
        if self._gone() != self._seen:
            self._check_gone()
        ledger, end = self._ledger, self._visible.end_entry
        inline = MAX_INLINE_ENTRIES
        while self._pass_ahead(end) < end:
            if self._work is not None:
                return False
            entry = ledger.cached(self.position)
            if entry is None or not inline or not self._reader.is_quick(entry):
                return False
            inline -= 1
            self._take(entry)
        return not self._lacks_withheld

    async def catch_up(self) -> None:
        """Return when the index has all that was on disk at the call. Raises OSError."""
        end = self._visible.end_entry
        while not (self._ledger.discarded or self.advance() or self._has_until(end)):
            if self._work is None:
                self._work = asyncio.get_running_loop().create_task(self._read(end))
                self._work.add_done_callback(self._ended)
            await asyncio.shield(self._work)
            await asyncio.sleep(0)  # the callback of a task that has ended is still to run

    async def close(self) -> None:
        """End reading."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait((self._work,))

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if not work.cancelled() and (error := work.exception()) is not None:
            _log.error("nats-index-failed", ledger=self._ledger.id, reason=str(error))

    def _has_until(self, end: int) -> bool:
        return self.position >= end and not self._lacks_withheld

    async def _read(self, end: int) -> None:
        ledger = self._ledger
        while (start := self._pass_ahead(end)) < end and not ledger.discarded:
            try:
                entries = await self._visible.read(start, READ_ENTRIES, READ_BYTES)
            except DamagedError as damage:
                self._pass_over(start, damage.last + 1)
                continue
            await self._reader.prepared(entries)
            if self.position != start:
                continue  # it was built again from nothing meanwhile
            for entry in entries:
                self._pass_over(self.position, entry.entry_id)
                if entry.entry_id in self._ahead:
                    break
                self._take(entry)
            if not entries:
                self.position = max(self.position, self._visible.end_entry)
            await asyncio.sleep(0)
        restarts = self.restarts
        if self._lacks_withheld:
            async for _ in self.take_withheld():
                pass
            self._lacks_withheld = self.restarts != restarts

    def _pass_ahead(self, end: int) -> int:
        """Go on behind entries before `end` that are in the index; return the position."""
        while self.position in self._ahead and self.position < end:
            self._ahead.remove(self.position)
            self.position += 1
        return self.position

    def _pass_over(self, start: int, end: int) -> None:
        """Go on behind entries that are not there, but for those that are in the index."""
        if self.position == start and start < end:
            self.position = min(end, self._visible.end_entry)
            self._ahead = {entry for entry in self._ahead if entry >= self.position}

    def _take(self, entry: Entry) -> None:
        """Add the messages of the entry at `position`."""
        self.foreign = self.foreign or not self._reader.is_native(entry)
        self._count(entry)
        self.taken += 1
        self.position = entry.entry_id + 1

    def _count(self, entry: Entry) -> None:
        """Add the messages of an entry that are not deleted."""
        if not self._reader.messages(entry):
            left = self._visible.messages(entry)
            self.unreadable += entry.messages if left is None else left.bit_count()
        for message in self._left(entry):
            self.add(message.subject, message.sequence, message.size)
            if message.native and MARK in message.headers:
                self._add_deadline(message)

    def _left(self, entry: Entry) -> Iterator[StoredMessage]:
        """Yield the messages of an entry that are not deleted."""
        left = self._visible.messages(entry)
        for message in self._reader.messages(entry):
            if left is None or left >> message.index & 1:
                yield message

    def _add_deadline(self, message: StoredMessage) -> None:
        try:
            ttl_seconds = message_ttl(message.headers)
        except ValueError:
            return  # of an archive: a publish is refused
        if ttl_seconds > 0:
            place = message.sequence, message.subject, message.size
            stored_ms, marks = message.time_ns // NS_PER_MS, is_marker(message.headers)
            self.deadlines.add(stored_ms, ttl_seconds, place, is_marker=marks)

    def is_deleted(self, sequence: int) -> bool:
        """Return whether a message that was appended is deleted."""
        number = sequence - 1
        return number < self._ledger.first_number or self._visible.is_left_out(number)

    def _gone(self) -> tuple[int, int]:
        """Return what changes when messages go."""
        return self._ledger.first_number, self._visible.leaves_out

    def _check_gone(self) -> None:
        """Find out whether messages went that the index counts."""
        ledger = self._ledger
        if not self.has_all:
            return  # entries that are not in the index yet: looked at again when they are
        self._seen = self._gone()
        if self.index.messages + self.unreadable != ledger.messages:
            _log.info("nats-index-rebuilt", ledger=ledger.id)
            self.restart()
