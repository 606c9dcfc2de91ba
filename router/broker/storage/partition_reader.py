"""Owns reading a partition: its entries from memory and segments, and lookups by number and time.

Everything here runs on the event loop; files are read in threads. The tail is the newest part of
the ledger, without gaps, and is read without I/O; it begins before the end of the last segment as
long as it fits into the cache.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from errno import EIO
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Final, TypeVar

from router.broker.storage.deleted_ranges import DeletedRanges
from router.broker.storage.faults import DamagedError
from router.broker.storage.offset_index import STORED, TimeKey
from router.broker.storage.reading import ReadRequest, SegmentReader
from router.broker.storage.records import Entry
from router.broker.storage.segments import Segment, SegmentPoint

T = TypeVar("T")
RETRY_SECONDS: Final = (0.1, 1.0)
"""When a file that the disk could not read is read again, before that is an error."""
MAX_HINTS: Final = 64
"""Places of entries that are remembered, since a reader is expected there."""


class PartitionReader:
    """What is stored of a partition: bounds, segments and tail.

    `first_entry` is the oldest that is kept, and all below `durable_entry` are on disk and
    readable; `first_number` and `durable_number` are the numbers of the first messages there. The
    first ones follow from the segments and the next number that the metadata names, so they never
    go back: not when retention removes everything, nor when the process ends. `deleted_numbers` are
    those of messages that were deleted one by one: entries are read as they were written, or
    without some of those messages, and what delivers them leaves them out. All before
    `removed_entry` is gone, and retention or a limit of a stream took some of it: that is lost to
    readers that have not received it. These and requests to delete all before a message went as far
    as to before `removed_number`; of what has a higher number and is gone, each message was deleted
    by itself, as with an aborted transaction.
    """

    def __init__(self, ledger_id: int, reader: SegmentReader, readers: Executor) -> None:
        self.id = ledger_id
        self.first_entry = self.durable_entry = 0
        self.first_number = 0
        self.removed_entry = self.removed_number = 0
        self.segments: tuple[Segment, ...] = ()
        self.flushed_entry = self.flushed_index = 0
        self.discarded = False
        self.deleted_numbers = DeletedRanges()
        self._reader = reader
        self._readers = readers
        self._tail: dict[int, Entry] = {}
        self._tail_start = 0
        self._hints: OrderedDict[int, tuple[tuple[int, int], SegmentPoint]] = OrderedDict()

    @property
    def durable_number(self) -> int:
        """The number of the first message that is not durable yet."""
        last = self._tail.get(self.durable_entry - 1)
        return self.flushed_index if last is None else last.index + 1

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the entries between segments that are gone, ends included.

        A repair gave them up, or their messages were all deleted.
        """
        for segment, following in pairwise(self.segments):
            if segment.next_entry < following.first_entry:
                yield segment.next_entry, following.first_entry - 1

    def cached(self, entry: int) -> Entry | None:
        """Return a durable entry that is in memory; None: `read` may have it."""
        return self._tail.get(entry) if entry < self.durable_entry else None

    def in_memory(self, entry: int) -> Entry | None:
        """Return an entry that is in memory, on disk or not yet; None: it is not."""
        return self._tail.get(entry)

    async def entry(self, number: int) -> Entry | None:
        """Return a durable entry by its number; None: it is not kept. Raises as `read` does."""
        found = await self.read(number, 1, 1)
        return found[0] if found and found[0].entry_id == number else None

    async def read(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Return durable entries in order, from the first readable one at or after `start`.

        Stops at both bounds, though never before the first entry; may stop earlier. Empty: there
        are none. What retention removed, repair gave up or was deleted and reclaimed is passed
        over, between entries too. Raises DamagedError if the first entry cannot be read as it was
        written or its file is missing, OSError if the disk cannot read it.
        """
        start = max(start, self.first_entry)
        while start < self.durable_entry and not self.discarded:
            found = self.read_cached(start, max_entries, max_bytes)
            if found:
                return found
            segment = self._segment_for(start)
            if segment is None:
                start = max(start + 1, self._tail_start)
                continue
            start = max(start, segment.first_entry)
            request = ReadRequest(start, max_entries, max_bytes)
            hint = self._take_hint(start, segment)
            answer = await self._intact(self._reader.read, segment, start, request, hint)
            if answer is None:
                start = max(start, self.first_entry)
                continue
            if not answer.entries:
                start = segment.next_entry
                continue
            # A consumer that reads on from here need not look for the place.
            self._give_hint(segment, answer.after)
            return answer.entries
        return []

    async def entry_of_number(self, number: int) -> int:
        """Return the entry that holds the message of a number.

        This is the first one kept if the message is older than that, and `durable_entry` if it is
        not durable yet. Where the message was given up or reclaimed it is the next entry; where
        damage hides it, the first entry of the damage. Raises OSError if the disk cannot read it.
        """
        while not self.discarded:
            if (entry := self.cached_entry_of_number(number)) is not None:
                return entry
            place = bisect_right(self.segments, number, key=attrgetter("next_index"))
            if place == len(self.segments):
                return self._tail_start
            segment = self.segments[place]
            if number <= segment.first_index and not segment.generation:
                return segment.first_entry
            number = max(number, segment.first_index)
            try:
                point = await self._in_thread(self._reader.entry_of_number, segment, number)
            except FileNotFoundError:
                return segment.first_entry
            if point is not None and point.entry == segment.next_entry:
                number = segment.next_index
            elif point is not None:
                self._give_hint(segment, point)
                return point.entry
        return self.durable_entry

    async def number_before(self, entry: int) -> int:
        """Return how many messages were numbered before an entry; the number of its first one.

        It is `first_number` before the first entry that is kept, and `durable_number` behind the
        last one. Where damage or a repair hides the number, it is that of the next message that can
        be read. Raises OSError if the disk cannot read it.
        """
        while not self.discarded and self.first_entry < entry < self.durable_entry:
            if (found := self._tail.get(entry)) is not None:
                return found.index + 1 - found.messages
            segment = self._segment_for(entry)
            if segment is None:
                break
            if entry <= segment.first_entry:
                return self._number_at_segment(entry, segment)
            try:
                point = await self._in_thread(self._reader.number_before, segment, entry)
            except FileNotFoundError:
                return segment.next_index
            if point is not None:
                self._give_hint(segment, point)
                return point.number
        if entry <= self.first_entry:
            return self.first_number
        first_cached = self._tail.get(self._tail_start) if entry < self._tail_start else None
        return (
            self.durable_number
            if first_cached is None
            else first_cached.index + 1 - first_cached.messages
        )

    async def find_time(self, timestamp_ms: int) -> int:
        """Return the first entry stored at or after a time; `durable_entry` if there is none.

        First in the order of the log, whichever way the clock was set meanwhile. Damage that may
        hold it is the answer where nothing before it is. Raises DamagedError if a file is missing,
        OSError if the disk cannot read it.
        """
        return await self._find(timestamp_ms, STORED, 0)

    async def find_latest_time(self, timestamp_ms: int, start: int = 0) -> int:
        """Return the first entry, from one on, whose latest message has a time or a later one.

        Otherwise as `find_time`. An entry whose messages have unknown times matches.
        """
        return await self._find(timestamp_ms, self._reader.latest, start)

    async def latest_time(self) -> int:
        """Return a time that no message is behind; 0 if there are none."""
        tail = self._tail_from(self.flushed_entry)
        of_entry = self._reader.latest.of_entry
        found = await self._run(lambda: max(map(of_entry, tail), default=0))
        return max(found, *(segment.latest_ms for segment in self.segments), 0)

    async def _find(self, timestamp_ms: int, key: TimeKey, start: int) -> int:
        at, latest = max(start, self.first_entry), attrgetter(key.name)
        # The next segment is looked up again: while one is read, others are written and dropped.
        while not self.discarded:
            later = (s for s in self.segments if s.next_entry > at and latest(s) >= timestamp_ms)
            if (segment := next(later, None)) is None:
                break
            find = self._reader.find_time
            entry = await self._intact(find, segment, at, at, timestamp_ms, key)
            if entry is not None and entry < segment.next_entry:
                return entry
            at = segment.next_entry
        end, tail = self.durable_entry, self._tail_from(at)
        found = (entry.entry_id for entry in tail if key.of_entry(entry) >= timestamp_ms)
        return await self._run(lambda: next(found, end))

    def read_cached(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Return durable entries as `read` does if they are in memory; []: `read` finds them."""
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

    def cached_entry_of_number(self, number: int) -> int | None:
        """Return the entry that holds a message; None: it is not in memory."""
        if number >= self.durable_number:
            return self.durable_entry
        first = self._tail.get(self._tail_start)
        if first is None or number < first.index + 1 - first.messages:
            return None
        entries = range(self._tail_start, self.durable_entry)
        return entries[bisect_left(entries, number, key=lambda entry: self._tail[entry].index)]

    def _tail_from(self, start: int) -> list[Entry]:
        """Return the durable entries in memory from one on."""
        entries = range(max(start, self._tail_start), self.durable_entry)
        return [self._tail[entry] for entry in entries if entry in self._tail]

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    def _segment_for(self, start: int) -> Segment | None:
        """Return the segment that holds the entry, or else the next; None: it is in the tail."""
        place = bisect_right(self.segments, start, key=attrgetter("next_entry"))
        return self.segments[place] if place < len(self.segments) else None

    def _number_at_segment(self, entry: int, segment: Segment) -> int:
        """Return the number at an entry that stands before a segment, or begins it."""
        place = self.segments.index(segment)
        before = self.segments[place - 1] if place else None
        ends = before is not None and before.next_entry == entry
        return before.next_index if before is not None and ends else segment.first_index

    def _take_hint(self, entry: int, segment: Segment) -> SegmentPoint | None:
        file, hint = self._hints.pop(entry, (None, None))
        return hint if file == (segment.first_entry, segment.generation) else None

    def _give_hint(self, segment: Segment, point: SegmentPoint) -> None:
        self._hints[point.entry] = ((segment.first_entry, segment.generation), point)
        if len(self._hints) > MAX_HINTS:
            self._hints.popitem(last=False)

    async def _intact(
        self, work: Callable[..., T], segment: Segment, start: int, *arguments: object
    ) -> T | None:
        """As `_in_thread`; raise DamagedError, from an entry on, if the file is missing."""
        try:
            return await self._in_thread(work, segment, *arguments)
        except FileNotFoundError as error:
            path = self._reader.path(self.id, segment)
            last, size = segment.next_entry - 1, segment.size
            raise DamagedError(self.id, path, start, last, 0, size) from error

    async def _in_thread(
        self, work: Callable[..., T], segment: Segment, *arguments: object
    ) -> T | None:
        """Return what is read of a segment; None: the segment was removed meanwhile.

        Raises OSError; what the disk could not read was tried again a moment later. That is no
        damage, which readers pass over for good: the disk may read it once more in a minute.
        """
        pauses = iter(RETRY_SECONDS)
        while True:
            try:
                return await self._run(partial(work, self.id, segment, *arguments))
            except OSError as error:
                if self.discarded or segment not in self.segments:
                    return None
                pause = next(pauses, None) if error.errno == EIO else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)
