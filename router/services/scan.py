"""Ranges of a topic, read without a trace: from places to places, merged by time, within bounds.

Theory of operation. A range has a place to begin and a place to end for each partition, the same
`StartPosition` that a feed has. A `Scan` holds one reader for each partition whose range is not
empty, and gives the message with the smallest time of those that come next, so that each
partition's order is kept whatever its clock did. Where a scan stands is known by partition too: a
scan that stopped early goes on there. It stops at its deadline, and once it has read so many bytes,
and then gives what it holds already: memory is bounded by that and one message.

A partition from which nothing comes may be at its end (what ends it may be no message, or nothing
is newer than the time at which it begins), or its store may be slow. So a silent partition is taken
for ended only when the store says so: it is asked for the last messages before the end, and none of
them is left to be read. Otherwise the scan waits until its deadline and is not `whole`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from router.backends import Reader, Start
from router.model import PartitionStats, Position, Stored, TopicName, TopicStats
from router.services.consume import PollMailbox
from router.services.read import LAST_OF_BATCH, After, StartPosition, TopicReader, end_of_partition

__all__ = [
    "After",
    "MessageFilter",
    "Places",
    "Scan",
    "ScanBounds",
    "Start",
    "StartPosition",
    "beginning",
    "earlier",
    "end_of",
    "is_empty",
]

Places = dict[int, StartPosition]
"""A place in each of some partitions."""
MessageFilter = Callable[[Stored], bool]

RECEIVE_MESSAGES: Final = 200
SILENCE_SECONDS = 1.0
"""After so long without a message the store is asked whether a partition is at its end."""
PROBE_ENTRIES: Final = 100
"""Entries before an end that are read to find the last message: the last may hold none."""
PROBE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """What one scan reads at most; `seconds` until it stops."""

    messages: int
    max_bytes: int
    seconds: float


class Scan:
    """Messages of a range; iterate once, then `close`.

    `places` says where it stands, and `whole` whether it reached all ends.
    """

    def __init__(
        self,
        reading: TopicReader,
        topic: TopicName,
        starts: Mapping[int, StartPosition],
        ends: Mapping[int, StartPosition],
        bounds: ScanBounds,
    ) -> None:
        self.places: Places = dict(starts)
        self.looked = 0
        self._reading = reading
        self._topic = topic
        self._ends = ends
        self._bounds = bounds
        self._heard = reading.clock()
        self._deadline = self._heard + bounds.seconds
        self._mailbox = PollMailbox()
        self._readers: dict[int, Reader] = {}
        self._held: dict[int, deque[Stored]] = {}
        self._heads: list[tuple[int, int]] = []
        self._last_seen: set[int] = set()
        self._left: set[int] = set()
        self._bytes = 0
        try:
            for partition, start in starts.items():
                if not is_empty(start, ends.get(partition)):
                    opened = _opened(start, partition)
                    self._readers[partition] = reading.reader(
                        topic, partition, opened, self._mailbox
                    )
                    self._left.add(partition)
        except BaseException:
            self.close()
            raise

    @property
    def whole(self) -> bool:
        """Return whether nothing is left before the ends."""
        return not self._left and not self._heads

    @property
    def is_full(self) -> bool:
        """Return whether it has read as much as its bounds allow."""
        return self.looked >= self._bounds.messages or self._bytes >= self._bounds.max_bytes

    def __iter__(self) -> Iterator[Stored]:
        """Give the messages; raise what reading raises."""
        while True:
            self._fill()
            if not self._heads or self.looked >= self._bounds.messages:
                return
            _, partition = heapq.heappop(self._heads)
            held = self._held[partition]
            stored = held.popleft()
            if held:
                heapq.heappush(self._heads, (held[0].publish_time, partition))
            self.places[partition] = After(stored.position)
            self.looked += 1
            yield stored

    def close(self) -> None:
        """Close all readers; callable twice."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _fill(self) -> None:
        """Read on in each partition of which nothing is held, unless a bound is reached."""
        while missing := [p for p in self._readers if not self._held.get(p)]:
            left = min(self._deadline, self._heard + SILENCE_SECONDS) - self._reading.clock()
            if left <= 0:
                if not self._goes_on_without(missing):
                    return
                continue
            if self._bytes >= self._bounds.max_bytes or self._reading.stopping:
                return
            # All of them: what has nothing yet must not hold up what is there.
            if not [partition for partition in missing if self._receive(partition)]:
                self._mailbox.wait(left)

    def _goes_on_without(self, silent: Sequence[int]) -> bool:
        """Close the silent partitions that are at their ends; return whether to wait for others."""
        if self._reading.clock() >= self._deadline:
            return False
        for partition in silent:
            if partition not in self._ends:
                return False  # nothing says how much of it there is
            if self._is_at_end(partition):
                if isinstance(self.places[partition], int):
                    self.places[partition] = self._ends[partition]
                self._left.discard(partition)
                self._readers.pop(partition).close()
        self._heard = self._reading.clock()
        return True

    def _is_at_end(self, partition: int) -> bool:
        """Return whether the store says that nothing of a partition is left before its end."""
        end, place = self._ends[partition], self.places[partition]
        if not isinstance(end, After | Position):
            return True
        at = end.position if isinstance(end, After) else end
        # Before the first entry of a ledger is another one, of which no entry is known.
        is_first = isinstance(end, Position) and not at.entry
        if is_first or self._reading.has_lost(self._topic, at):
            return True
        last = self._last_before(end, at)
        return last is not None and _is_passed(last, place)

    def _last_before(self, end: After | Position, at: Position) -> Stored | None:
        """Return the last message before an end, None: the store does not give it in time."""
        clock, timeout = self._reading.clock, self._reading.options.backend_timeout
        begin = Position(at.ledger, max(0, at.entry - PROBE_ENTRIES + 1), at.partition)
        mailbox, last = PollMailbox(), None
        reader = self._reading.reader(self._topic, at.partition, begin, mailbox)
        until = clock() + SILENCE_SECONDS
        try:
            while (left := min(until, self._deadline) - clock()) > 0:
                some = reader.receive(RECEIVE_MESSAGES, PROBE_BYTES, timeout)
                for stored in some:
                    last = stored if _within(stored.position, end) else last
                if some and _is_last(some[-1].position, end):
                    return last
                if some:
                    until = clock() + SILENCE_SECONDS
                elif last is not None:
                    return last  # the store has nothing more: what is behind it holds no message
                else:
                    mailbox.wait(left)
            return None
        finally:
            reader.close()

    def _receive(self, partition: int) -> bool:
        """Return whether a partition has something to give, or is over."""
        room = self._bounds.max_bytes - self._bytes
        limit = min(RECEIVE_MESSAGES, self._bounds.messages)
        if room <= 0:
            return False
        timeout = self._reading.options.backend_timeout
        share = max(1, room // max(1, len(self._readers)))
        some = self._readers[partition].receive(limit, share, timeout)
        self._bytes += sum(stored.message.size() for stored in some)
        if some:
            self._heard = self._reading.clock()
        end, place = self._ends.get(partition), self.places[partition]
        kept = [
            stored
            for stored in some
            if not (isinstance(place, After) and _key(stored.position) <= _key(place.position))
            and _within(stored.position, end)
        ]
        if kept:
            self._held.setdefault(partition, deque()).extend(kept)
            heapq.heappush(self._heads, (kept[0].publish_time, partition))
        if some and _reaches(some[-1].position, end):
            self._last_seen.add(partition)
        over = bool(some) and _is_last(some[-1].position, end)
        if over or (not some and partition in self._last_seen):
            self._readers.pop(partition).close()
            self._left.discard(partition)
            return True
        return bool(some)


def end_of(stats: TopicStats) -> Places:
    """Return where each partition of a topic ends now."""
    return {found.partition: end_of_partition(found) for found in stats.partitions}


def beginning(partitions: Sequence[int], start: StartPosition) -> Places:
    """Return the same place in all partitions."""
    return dict.fromkeys(partitions, start)


def earlier(part: PartitionStats, place: StartPosition, entries: int) -> StartPosition:
    """Return a place so many entries before another, or the first one of the partition's ledger."""
    if not isinstance(place, After | Position):
        return place
    at = place.position if isinstance(place, After) else place
    end_entry = at.entry + 1 if isinstance(place, After) or at.batch_index > 0 else at.entry
    first = part.first_entry if at.ledger == part.ledger else 0
    if end_entry <= first:
        return place
    return Position(at.ledger, max(first, end_entry - entries, 0), part.partition)


def _opened(start: StartPosition, partition: int) -> Start | int | Position:
    """Return where a reader is opened that is to give what is behind a place."""
    if isinstance(start, After):
        return Position(start.position.ledger, start.position.entry, partition)
    if isinstance(start, Position):
        return replace(start, partition=partition)
    return start


def is_empty(start: StartPosition, end: StartPosition | None) -> bool:
    """Return whether a range is known to be empty."""
    if start == end or end is Start.EARLIEST or start is Start.LATEST:
        return True
    if not isinstance(start, After | Position) or not isinstance(end, After | Position):
        return False
    if isinstance(start, After):
        return _is_last(start.position, end) or not _within(
            replace(start.position, batch_index=LAST_OF_BATCH), _loose(end)
        )
    return not _within(start, end)


def _loose(end: After | Position) -> After | Position:
    """Return the end of the entry in which an end is."""
    at = end.position if isinstance(end, After) else end
    return After(replace(at, batch_index=LAST_OF_BATCH))


def _key(position: Position) -> tuple[int, int, int]:
    return position.ledger, position.entry, position.batch_index


def _is_passed(last: Stored, place: StartPosition) -> bool:
    """Return whether the last message is before a place, so that nothing is behind the place."""
    if isinstance(place, int):
        return last.publish_time < place
    if isinstance(place, After):
        return _key(last.position) <= _key(place.position)
    return isinstance(place, Position) and _key(last.position) < _key(place)


def _within(position: Position, end: StartPosition | None) -> bool:
    """Return whether a message is before an end; None: there is none."""
    if isinstance(end, After):
        return _key(position) <= _key(end.position)
    if isinstance(end, Position):
        return _key(position) < _key(end)
    return end is None


def _reaches(position: Position, end: StartPosition | None) -> bool:
    """Return whether a message is of the last entry before an end, or behind it."""
    if isinstance(end, After):
        return _key(position)[:2] >= _key(end.position)[:2]
    if isinstance(end, Position):
        return _key(position)[:2] >= (end.ledger, end.entry - (end.batch_index < 1))
    return False


def _is_last(position: Position, end: StartPosition | None) -> bool:
    """Return whether nothing can be between a message and an end."""
    if not isinstance(end, After | Position) or not _reaches(position, end):
        return False
    if not _within(position, end):
        return True
    index, size = position.batch_index, position.batch_size
    if isinstance(end, After) and _key(position) == _key(end.position):
        return True
    if isinstance(end, Position) and end.batch_index > 0:
        same = _key(position)[:2] == _key(end)[:2]
        return same and index + 1 >= end.batch_index
    return index < 0 or index + 1 == size
