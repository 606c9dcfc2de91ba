"""Owns one ledger in memory: appending to a partition, its newest entries, and reading it back.

Everything here runs on the event loop; files are read in threads. An entry walks through four
places: `fresh` (appended, its round not begun), `flying` (in the round on its way), `unflushed`
(synced in the journal, in no segment yet) and a segment. Until it is flushed it stays in the tail,
from which it is read without I/O; afterwards it stays there as long as the cache has room. The tail
is therefore always the last stretch of the ledger, without gaps.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from errno import EIO, ENOENT
from typing import Final

from router.broker.dedup import Mark, Producers
from router.broker.ledger.faults import DamagedError, StoreError
from router.broker.ledger.journal import Journal
from router.broker.ledger.reading import SegmentReader, Wanted
from router.broker.ledger.records import HEAD, MAX_PAYLOAD, Entry, Record, make_head
from router.broker.ledger.rounds import entry_prefix, pack_mark
from router.broker.ledger.rows import Hole, LedgerChange
from router.broker.ledger.segments import Point, Segment
from router.errors import TopicTerminatedError

ENTRY_OVERHEAD: Final = 400
"""What an entry in memory takes besides its payload, about."""
MAX_MESSAGES: Final = 1 << 31
_HINTS: Final = 64
_new: Final = tuple.__new__


@dataclass(slots=True)
class Tails:
    """What all ledgers together hold in memory: bytes, and whose they are, the oldest first.

    `changed`: the ledgers that were flushed since the last checkpoint.
    """

    unflushed: dict[Ledger, None] = field(default_factory=dict)
    unflushed_size: int = 0
    changed: dict[Ledger, None] = field(default_factory=dict)
    flushed: deque[Flushed] = field(default_factory=deque)
    flushed_size: int = 0

    def add(self, flushed: Flushed) -> None:
        """Take note that entries are in segments."""
        self.unflushed_size -= flushed.size
        self.flushed_size += flushed.size
        self.flushed.append(flushed)

    def evict(self, limit: int) -> None:
        """Let the oldest flushed entries go until no more bytes than `limit` are held."""
        while self.flushed and self.flushed_size + self.unflushed_size > limit:
            oldest = self.flushed.popleft()
            self.flushed_size -= oldest.size
            oldest.ledger.evict(oldest)


@dataclass(frozen=True, slots=True)
class Parts:
    """What every ledger of a store works with."""

    journal: Journal
    reader: SegmentReader
    readers: Executor
    tails: Tails


@dataclass(frozen=True, slots=True)
class Flushed:
    """Entries of a ledger that are in segments and may leave the tail."""

    ledger: Ledger
    first: int
    next: int
    size: int


class Ledger:
    """One partition: entries with dense ids from 0, appended in order and never changed.

    `first_entry` is the oldest that is kept, `next_entry` the next to be assigned; all below
    `durable_entry` are on disk and readable. `listeners` are called once for each round that made
    entries durable. `producers` remembers what each named producer stored last. Of a ledger that is
    `terminated` no more than is there will ever be; `topic_epoch` is the newest of its exclusive
    producers' epochs, None before the first; both are written down through the store.
    """

    def __init__(self, ledger_id: int, topic_id: int, producers: Producers, parts: Parts) -> None:
        self.id = ledger_id
        self.topic_id = topic_id
        self.producers = producers
        self.listeners: set[Callable[[], None]] = set()
        self.first_entry = self.next_entry = self.durable_entry = 0
        self.next_index = 0
        self.segments: tuple[Segment, ...] = ()
        self.holes: list[Hole] = []
        self.deleted = self.terminated = False
        self.topic_epoch: int | None = None
        self.unflushed: list[Record] = []
        self.flushed_entry = self.flushed_index = 0
        self._recorded_entry = 0
        self._unflushed_size = self._unflushed_held = self._taken_size = 0
        self._first_index = 0
        self._parts = parts
        self._prefix = entry_prefix(ledger_id)
        self._fresh: list[Record] = []
        self._fresh_marks: dict[str, Mark] = {}
        self._flying: list[Record] = []
        self._fresh_size = self._flying_size = 0
        self._flying_marks: dict[str, Mark] = {}
        self._durable_marks: dict[str, Mark] = {}
        self._tail: dict[int, Entry] = {}
        self._tail_start = 0
        self._hints: OrderedDict[int, tuple[int, Point]] = OrderedDict()

    def restore(self, segments: Iterable[Segment], next_entry: int, next_index: int) -> None:
        """Take the state of the last checkpoint."""
        self.segments = tuple(segments)
        self.next_entry = self.durable_entry = self._tail_start = next_entry
        self.flushed_entry = self._recorded_entry = next_entry
        self.flushed_index = next_index
        self.next_index = next_index
        self._set_first()

    def replay(self, record: Record) -> None:
        """Take an entry that recovery found in the journal; its id may not be below the next."""
        entry = record.entry
        if not self._tail:
            self._tail_start = entry.entry_id
        self._tail[entry.entry_id] = entry
        self._remember([record], len(entry.payload))
        self.next_entry = self.durable_entry = entry.entry_id + 1
        self.next_index = entry.index + 1

    def replay_mark(self, name: str, mark: Mark) -> None:
        """Take a producer's mark that recovery found in the journal."""
        self.producers.record(name, mark)
        self._durable_marks[name] = mark

    def append(
        self,
        payload: bytes,
        messages: int,
        timestamp_ms: int,
        done: Callable[[int], None],
        mark: tuple[str, int] | None = None,
    ) -> int:
        """Append an entry of so many messages and return its id.

        `done` is called with the id once the entry is on disk. `mark`, a producer's name and the
        sequence id, is remembered with it. Raises TopicTerminatedError, StoreError once the disk
        has failed or the topic is deleted, ValueError if an entry cannot have so many messages or
        bytes.
        """
        journal = self._parts.journal
        if journal.failed.done() or self.deleted:
            raise StoreError("the store takes no more entries")
        if self.terminated:
            raise TopicTerminatedError
        if not 0 < messages <= MAX_MESSAGES or len(payload) > MAX_PAYLOAD:
            raise ValueError(f"an entry of {messages} messages and {len(payload)} bytes")
        payload = bytes(payload)
        size = len(payload)
        entry_id, index = self.next_entry, self.next_index + messages - 1
        head = make_head(entry_id, index, timestamp_ms, payload)
        # Not by calling the classes, whose own `__new__` is written in Python.
        entry = _new(Entry, (entry_id, index, timestamp_ms, payload))
        self.next_entry = entry_id + 1
        self.next_index = index + 1
        self._tail[entry_id] = entry
        self._fresh.append(_new(Record, (head, entry, messages)))
        self._fresh_size += size
        round_ = journal.round
        if not round_.parts:
            journal.kick()
        round_.parts += (self._prefix, head, payload)
        round_.size += size + 64
        round_.calls.append((done, entry_id))
        round_.ledgers[self] = None
        if mark is not None:
            self._mark(mark[0], Mark(mark[1], entry_id, messages, timestamp_ms))
        return entry_id

    def cached(self, entry: int) -> Entry | None:
        """Return a durable entry that is in memory; None: `read` may have it."""
        return self._tail.get(entry) if entry < self.durable_entry else None

    async def read(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Return durable entries in order, from the first readable one at or after `start`.

        Stops at both bounds, though never before the first entry; may stop earlier. Empty: there
        are none. What retention removed or repair gave up is passed over. Raises DamagedError if
        the first entry cannot be read as it was written, OSError if files cannot be opened.
        """
        start = max(start, self.first_entry)
        while start < self.durable_entry and not self.deleted:
            found = self._read_tail(start, max_entries, max_bytes)
            if found:
                return found
            segment = self._segment_for(start)
            if segment is None:
                start = max(start + 1, self._tail_start)
                continue
            start = max(start, segment.first_entry)
            try:
                return await self._read_segment(segment, Wanted(start, max_entries, max_bytes))
            except OSError as error:
                if self._holds(segment):
                    raise self._unreadable(segment, start, error) from error
                start = max(start, self.first_entry)
        return []

    async def find_time(self, timestamp_ms: int) -> int:
        """Return the first entry stored at or after a time; `durable_entry` if there is none.

        First in the order of the log, whichever way the clock was set meanwhile. Damage that may
        hold it is the answer where nothing before it is. Raises DamagedError if a file is missing,
        OSError if it cannot be opened.
        """
        at = self.first_entry
        # The next segment is looked up anew: while one is read, others are written and dropped.
        while not self.deleted and (segment := self._segment_for(at)) is not None:
            if segment.max_ms >= timestamp_ms:
                entry = await self._find_in(segment, timestamp_ms)
                if entry < segment.next_entry:
                    return entry
            at = segment.next_entry
        for entry in range(at, self.durable_entry):
            if (found := self._tail.get(entry)) is not None and found.timestamp_ms >= timestamp_ms:
                return entry
        return self.durable_entry

    @property
    def size_bytes(self) -> int:
        """Bytes that the ledger holds."""
        return sum(segment.size for segment in self.segments) + self._unflushed_size

    @property
    def messages(self) -> int:
        """Messages that the ledger holds."""
        return self.next_index - self._first_index

    def begin(self) -> None:
        """Let what is fresh go on its way; see Appender."""
        self._flying, self._fresh = self._fresh, []
        self._flying_size, self._fresh_size = self._fresh_size, 0
        self._flying_marks, self._fresh_marks = self._fresh_marks, {}

    def synced(self) -> None:
        """Make what was on its way readable; see Appender."""
        self._durable_marks.update(self._flying_marks)
        self._remember(self._flying, self._flying_size)
        self.durable_entry = self._flying[-1].entry.entry_id + 1
        self._flying = []
        self._flying_marks = {}

    def announce(self) -> None:
        """Tell listeners that there are entries."""
        for listener in tuple(self.listeners):
            listener()

    def take_unflushed(self) -> list[Record]:
        """Return what is to be written to segments now; `flushed` follows, or the store fails."""
        taken, self.unflushed = self.unflushed, []
        self._taken_size = self._unflushed_size
        return taken

    def flushed(self, records: list[Record], segments: tuple[Segment, ...]) -> Flushed:
        """Take the segments that hold the records now: those that were taken last."""
        size = self._taken_size
        self._unflushed_size -= size
        self.segments = segments
        self.flushed_entry = segments[-1].next_entry
        self.flushed_index = segments[-1].next_index
        self._set_first()
        first, last = records[0].entry.entry_id, records[-1].entry.entry_id
        held = size + ENTRY_OVERHEAD * len(records)
        self._unflushed_held -= held
        return Flushed(self, first, last + 1, held)

    def discard(self) -> None:
        """Let go of everything: the topic was deleted."""
        self.deleted = True
        self._parts.tails.unflushed.pop(self, None)
        self._parts.tails.changed.pop(self, None)
        self._parts.tails.unflushed_size -= self._unflushed_held
        self.unflushed = []
        self._unflushed_size = self._unflushed_held = 0
        self._tail.clear()
        self.listeners.clear()

    def evict(self, flushed: Flushed) -> None:
        """Let go of entries that are in segments."""
        for entry in range(flushed.first, flushed.next):
            self._tail.pop(entry, None)
        self._tail_start = max(self._tail_start, flushed.next)

    def drop(self, segments: tuple[Segment, ...]) -> None:
        """Forget the oldest segments: these remain."""
        self.segments = segments
        self._set_first()
        for entry in range(self._tail_start, self.first_entry):
            self._tail.pop(entry, None)
        self._tail_start = max(self._tail_start, self.first_entry)

    def change(self) -> LedgerChange:
        """Return what a checkpoint says about this ledger; its marks are handed over."""
        known = self.producers.last
        marks = {name: mark for name, mark in self._durable_marks.items() if known(name)}
        self._durable_marks = {}
        # A segment that has not grown since is on record as it is.
        grown = tuple(s for s in self.segments if s.next_entry > self._recorded_entry)
        self._recorded_entry = self.flushed_entry
        return LedgerChange(self.id, self.flushed_entry, self.flushed_index, grown, marks)

    def _remember(self, records: list[Record], size: int) -> None:
        """Take note of records, of so many bytes of payload, that are to go into segments."""
        if self.deleted:
            return
        held = size + (HEAD.size + ENTRY_OVERHEAD) * len(records)
        self.unflushed += records
        self._unflushed_size += size + HEAD.size * len(records)
        self._unflushed_held += held
        self._parts.tails.unflushed[self] = None
        self._parts.tails.unflushed_size += held

    def _holds(self, segment: Segment) -> bool:
        return not self.deleted and segment in self.segments

    def _mark(self, name: str, mark: Mark) -> None:
        self.producers.record(name, mark)
        self._fresh_marks[name] = mark
        self._parts.journal.round.parts.append(pack_mark(self.id, name, mark))

    def _set_first(self) -> None:
        first = self.segments[0] if self.segments else None
        self.first_entry = self.flushed_entry if first is None else first.first_entry
        self._first_index = self.flushed_index if first is None else first.first_index

    def _read_tail(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        if start < self._tail_start:
            return found
        left = max_bytes
        for entry_id in range(start, min(self.durable_entry, start + max_entries)):
            entry = self._tail.get(entry_id)
            if entry is None:
                break
            left -= len(entry.payload)
            if left < 0 and found:
                break
            found.append(entry)
        return found

    def _segment_for(self, start: int) -> Segment | None:
        """Return the segment that holds the entry, or else the next; None: it is in the tail."""
        place = bisect_right(self.segments, start, key=lambda segment: segment.next_entry)
        return self.segments[place] if place < len(self.segments) else None

    async def _read_segment(self, segment: Segment, wanted: Wanted) -> list[Entry]:
        first, hint = self._hints.pop(wanted.start, (-1, None))
        answer = await asyncio.get_running_loop().run_in_executor(
            self._parts.readers,
            self._parts.reader.read,
            self.id,
            segment,
            wanted,
            hint if first == segment.first_entry else None,
        )
        # Whoever reads on from here need not look for the place.
        self._hints[answer.after.entry] = (segment.first_entry, answer.after)
        if len(self._hints) > _HINTS:
            self._hints.popitem(last=False)
        return answer.entries

    async def _find_in(self, segment: Segment, timestamp_ms: int) -> int:
        """Return the first entry of a segment at or after a time; its next one if there is none."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._parts.readers, self._parts.reader.find_time, self.id, segment, timestamp_ms
            )
        except OSError as error:
            if self._holds(segment):
                raise self._unreadable(segment, segment.first_entry, error) from error
            return segment.next_entry

    def _unreadable(self, segment: Segment, start: int, error: OSError) -> Exception:
        if error.errno not in {EIO, ENOENT}:
            return error
        path = self._parts.reader.path(self.id, segment)
        return DamagedError(self.id, (start, segment.next_entry - 1), path, (0, segment.size))
