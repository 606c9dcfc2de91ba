"""Stretches of a topic, read without a trace: from places to places, merged by time, within bounds.

Theory of operation. A stretch has a place to begin and a place to end for each partition, the same
`Whence` that a feed has. A `Scan` holds one reader for each partition whose stretch is not empty,
and gives the message with the smallest time of those that come next, so that each partition's
order is kept whatever its clock did. Where a scan stands is told by partition too: what stopped
early goes on there. It stops at its deadline, when nothing comes any more, and once it has read so
many bytes, and then gives what it holds already: memory is bounded by that and one message.

Stores count entries, and an entry may be a batch of many messages. So going back (`before`) reads
stretches of entries ahead of a place, and again with fewer of them where those turn out to hold
more than the bounds of one look.
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
from router.services.read import LAST_OF_BATCH, After, Reading, Whence

__all__ = [
    "PAGE_BOUNDS",
    "After",
    "Found",
    "Places",
    "Scan",
    "ScanBounds",
    "Start",
    "Wanted",
    "Whence",
    "after",
    "before",
    "beginning",
    "end_of",
]

Places = dict[int, Whence]
"""A place in each of some partitions."""
Wanted = Callable[[Stored], bool]

RECEIVE_MESSAGES: Final = 200
LOOK_ENTRIES: Final = 1_000
"""Entries of all partitions that a first look back takes."""
SILENCE_SECONDS = 1.0
"""A scan stops when nothing came for so long: what ends a partition may be no message."""
WIDEN: Final = 4
"""How much further each look back goes than the last."""


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """What one scan reads at most; `seconds` until it stops."""

    messages: int
    max_bytes: int
    seconds: float


PAGE_BOUNDS: Final = ScanBounds(20_000, 16 * 1024 * 1024, 2.0)


@dataclass(frozen=True, slots=True)
class Found:
    """Messages that were wanted, by time; `begin` and `end` are what follows in either direction.

    `looked` counts all messages that were read, `whole` says that none is left on the way.
    """

    messages: tuple[Stored, ...]
    begin: Places
    end: Places
    looked: int
    whole: bool


class Scan:
    """Messages of a stretch; iterate once, then `close`.

    `places` says where it stands, and `whole` whether it reached all ends.
    """

    def __init__(
        self,
        reading: Reading,
        topic: TopicName,
        starts: Mapping[int, Whence],
        ends: Mapping[int, Whence],
        bounds: ScanBounds,
    ) -> None:
        self.places: Places = dict(starts)
        self.looked = 0
        self._reading = reading
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
                if not _over(start, ends.get(partition)):
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
        """Let go; callable twice."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _fill(self) -> None:
        """Read on in each partition of which nothing is held, unless a bound is reached."""
        while missing := [p for p in self._readers if not self._held.get(p)]:
            left = min(self._deadline, self._heard + SILENCE_SECONDS) - self._reading.clock()
            if left <= 0:
                self._pass_over(missing)
                return
            if self._bytes >= self._bounds.max_bytes or self._reading.stopping:
                return
            # All of them: what has nothing yet must not hold up what is there.
            if not [partition for partition in missing if self._receive(partition)]:
                self._mailbox.wait(left)

    def _pass_over(self, missing: Sequence[int]) -> None:
        """Take partitions for ended that have been silent since a time: none is stored since."""
        if self._reading.clock() < self._heard + SILENCE_SECONDS:
            return
        for partition in missing:
            if isinstance(self.places[partition], int) and partition in self._ends:
                self.places[partition] = self._ends[partition]
                self._left.discard(partition)
                self._readers.pop(partition).close()

    def _receive(self, partition: int) -> bool:
        """Return whether a partition has something to give, or is over."""
        room = self._bounds.max_bytes - self._bytes
        most = min(RECEIVE_MESSAGES, self._bounds.messages)
        if room <= 0:
            return False
        timeout = self._reading.options.backend_timeout
        share = max(1, room // max(1, len(self._readers)))
        some = self._readers[partition].receive(most, share, timeout)
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
    return {found.partition: _end(found) for found in stats.partitions}


def beginning(partitions: Sequence[int], start: Whence) -> Places:
    """Return the same place in all partitions."""
    return dict.fromkeys(partitions, start)


def after(
    reading: Reading,
    topic: TopicName,
    stretch: tuple[Mapping[int, Whence], Mapping[int, Whence]],
    most: int,
    wanted: Wanted,
    bounds: ScanBounds = PAGE_BOUNDS,
) -> Found:
    """Return at most so many messages that are wanted, the first ones of a stretch."""
    starts, ends = stretch
    scan, found = Scan(reading, topic, starts, ends, bounds), list[Stored]()
    try:
        for stored in scan:
            if wanted(stored):
                found.append(stored)
            if len(found) >= most:
                break
        return Found(tuple(found), dict(starts), scan.places, scan.looked, scan.whole)
    finally:
        scan.close()


def before(
    reading: Reading,
    stats: TopicStats,
    ends: Mapping[int, Whence],
    most: int,
    wanted: Wanted,
    bounds: ScanBounds = PAGE_BOUNDS,
) -> Found:
    """Return at most so many messages that are wanted, the last ones before places."""
    look = _LookBack(reading, stats, ends, most, bounds)
    while look.goes_on():
        look.step(wanted)
    return look.found()


class _LookBack:
    """A search from places towards the beginning, in stretches that grow."""

    def __init__(
        self,
        reading: Reading,
        stats: TopicStats,
        ends: Mapping[int, Whence],
        most: int,
        bounds: ScanBounds,
    ) -> None:
        self._reading = reading
        self._stats = {part.partition: part for part in stats.partitions}
        self._topic = stats.info.topic
        self._ends: Places = {p: ends[p] for p in ends if p in self._stats}
        self._low: Places = dict(self._ends)
        self._tail: Places = dict(self._ends)
        self._most = most
        self._bounds = bounds
        self._deadline = reading.clock() + bounds.seconds
        self._messages: list[Stored] = []
        self._looked = self._bytes = self._matches = 0
        self._stuck = False
        self._entries = max(1, min(most, LOOK_ENTRIES // max(1, len(self._ends))))

    def goes_on(self) -> bool:
        """Return whether there is more to look at, and reason to."""
        return not (
            self._stuck
            or len(self._messages) >= self._most
            or self._looked >= self._bounds.messages
            or self._bytes >= self._bounds.max_bytes
            or self._reading.clock() >= self._deadline
            or self._at_beginning()
        )

    def step(self, wanted: Wanted) -> None:
        """Look at so many entries before those that were looked at, or at fewer."""
        low = {p: _earlier(self._stats[p], place, self._entries) for p, place in self._low.items()}
        left = ScanBounds(
            self._bounds.messages - self._looked,
            self._bounds.max_bytes - self._bytes,
            max(0.0, self._deadline - self._reading.clock()),
        )
        scan = Scan(self._reading, self._topic, low, self._low, left)
        found: deque[Stored] = deque(maxlen=self._most)
        seen, size, matches = set[tuple[int, int]](), 0, 0
        try:
            for stored in scan:
                seen.add((stored.position.partition, stored.position.entry))
                size += stored.message.size()
                if wanted(stored):
                    matches += 1
                    found.append(stored)
            whole = scan.whole
        finally:
            scan.close()
        late = self._reading.clock() >= self._deadline
        if not (whole or late or self._entries == 1):
            # A little fewer than were within the bounds, as the last ones may be larger.
            fewer = len(seen) * 3 // (4 * max(1, len(self._ends)))
            self._entries = max(1, min(self._entries - 1, fewer))
            return
        self._stuck = not whole
        if not whole and self._low == self._ends:
            self._tail = dict(scan.places)
        self._low = low
        self._looked += scan.looked
        self._bytes += size
        self._messages = [*found, *self._messages]
        self._matches += matches
        self._entries = min(self._entries * WIDEN, self._bounds.messages)

    def found(self) -> Found:
        """Return what was found."""
        ordered = sorted(self._messages, key=lambda stored: stored.publish_time)
        kept = ordered[-self._most :] if self._most else []
        begin: Places = dict(self._low)
        if len(ordered) >= self._most:
            begin = dict(self._ends)
            for stored in reversed(kept):
                begin[stored.position.partition] = stored.position
        whole = self._at_beginning() and len(kept) == self._matches
        return Found(tuple(kept), begin, self._tail, self._looked, whole)

    def _at_beginning(self) -> bool:
        return all(
            _over(_earlier(self._stats[p], place, self._entries), place)
            for p, place in self._low.items()
        )


def _end(found: PartitionStats) -> Whence:
    """Return where a partition ends: behind its last message, which may be gone by now."""
    if not found.messages:
        return Start.EARLIEST
    if not found.next_entry:
        return Position(found.ledger, 0, found.partition)
    return After(Position(found.ledger, found.next_entry - 1, found.partition, LAST_OF_BATCH))


def _earlier(part: PartitionStats, place: Whence, entries: int) -> Whence:
    """Return a place so many entries before another, or the first one of the partition's ledger."""
    if not isinstance(place, After | Position):
        return place
    at = place.position if isinstance(place, After) else place
    behind = at.entry + 1 if isinstance(place, After) or at.batch_index > 0 else at.entry
    first = part.first_entry if at.ledger == part.ledger else 0
    if behind <= first:
        return place
    return Position(at.ledger, max(first, behind - entries, 0), part.partition)


def _opened(start: Whence, partition: int) -> Start | int | Position:
    """Return where a reader is opened that is to give what is behind a place."""
    if isinstance(start, After):
        return Position(start.position.ledger, start.position.entry, partition)
    if isinstance(start, Position):
        return replace(start, partition=partition)
    return start


def _over(start: Whence, end: Whence | None) -> bool:
    """Return whether a stretch is known to be empty."""
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


def _within(position: Position, end: Whence | None) -> bool:
    """Return whether a message is before an end; None: there is none."""
    if isinstance(end, After):
        return _key(position) <= _key(end.position)
    if isinstance(end, Position):
        return _key(position) < _key(end)
    return end is None


def _reaches(position: Position, end: Whence | None) -> bool:
    """Return whether a message is of the last entry before an end, or behind it."""
    if isinstance(end, After):
        return _key(position)[:2] >= _key(end.position)[:2]
    if isinstance(end, Position):
        return _key(position)[:2] >= (end.ledger, end.entry - (end.batch_index < 1))
    return False


def _is_last(position: Position, end: Whence | None) -> bool:
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
