"""Pages of a topic: the first messages behind places, or the last before them, that match.

Theory of operation. Stores count entries, and an entry may be a batch of many messages. So going
back (`before`) scans ranges of entries ahead of a place, and again with fewer of them where
those turn out to hold more than the bounds of one scan.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from router.model import PartitionStats, Position, Stored, TopicName, TopicStats
from router.services.consume import PollMailbox
from router.services.read import After, StartPosition, TopicReader
from router.services.scan import MessageFilter, Places, Scan, ScanBounds, earlier, is_empty

PAGE_BOUNDS: Final = ScanBounds(20_000, 16 * 1024 * 1024, 2.0)
LOOK_SECONDS = 1.0
"""How long the first message since a time is waited for."""
SHARE_MESSAGES: Final = 50
"""Messages that are checked in a row while other requests of the worker wait."""
PAUSE: Final = 3.0
"""How much longer than they took a search then pauses: its share of a processor is a quarter."""
FIRST_ENTRIES: Final = 1_000
"""Entries of all partitions that a first scan back takes."""
MAX_LATE: Final = 3
"""Ranges of a search that may take longer than its time, each of them smaller."""
WIDEN: Final = 4
"""How much further each scan back goes than the last."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages that matched, by time; `begin` and `end` are what follows in either direction.

    `looked` counts all messages that were read, `whole` says that none is left on the way. `is_cut`
    is a page whose oldest entry has more messages than the bounds: its last ones are left out.
    """

    messages: tuple[Stored, ...]
    begin: Places
    end: Places
    looked: int
    whole: bool
    is_cut: bool = False


def after(
    reading: TopicReader,
    topic: TopicName,
    places: tuple[Mapping[int, StartPosition], Mapping[int, StartPosition]],
    limit: int,
    condition: MessageFilter,
    bounds: ScanBounds = PAGE_BOUNDS,
) -> MessagePage:
    """Return at most so many messages that match, the first ones of a range."""
    starts, ends = places
    scan, found = Scan(reading, topic, starts, ends, bounds), list[Stored]()
    try:
        for stored in _sharing(scan):
            if condition(stored):
                found.append(stored)
            if len(found) >= limit:
                break
        return MessagePage(tuple(found), dict(starts), scan.places, scan.looked, scan.whole)
    finally:
        scan.close()


def before(
    reading: TopicReader,
    stats: TopicStats,
    ends: Mapping[int, StartPosition],
    limit: int,
    condition: MessageFilter,
    bounds: ScanBounds = PAGE_BOUNDS,
    *,
    first: int = FIRST_ENTRIES,
) -> MessagePage:
    """Return at most so many messages that match, the last ones before places.

    The first range has at most `first` entries of all partitions, or one of each. Where not one
    message is read in time, up to MAX_LATE smaller ranges have that time again.
    """
    search = _SearchBack(reading, stats, ends, limit, bounds, first)
    while search.goes_on():
        search.step(condition)
    return search.found()


def _sharing(scan: Scan) -> Iterator[Stored]:
    """Give the messages of a scan, and others of this worker most of its time in between.

    What was read ahead is there without a wait, so nothing else would let them.
    """
    began = time.thread_time()
    for number, stored in enumerate(scan):
        if number % SHARE_MESSAGES == SHARE_MESSAGES - 1:
            time.sleep((time.thread_time() - began) * PAUSE)
            began = time.thread_time()
        yield stored


def first_since(
    reading: TopicReader, topic: TopicName, ends: Mapping[int, StartPosition], since_ms: int
) -> Places:
    """Return the first message since a time in ms since 1970, in each partition.

    Where none comes within LOOK_SECONDS it is the partition's end.
    """
    mailbox, found = PollMailbox(), dict(ends)
    readers = {}
    deadline = reading.clock() + LOOK_SECONDS
    try:
        for partition, end in ends.items():
            if not is_empty(since_ms, end):
                readers[partition] = reading.reader(topic, partition, since_ms, mailbox)
        while readers and (left := deadline - reading.clock()) > 0:
            for partition, reader in list(readers.items()):
                if some := reader.receive(1, 1, reading.options.backend_timeout):
                    found[partition] = some[0].position
                    readers.pop(partition).close()
            if readers:
                mailbox.wait(left)
    finally:
        for reader in readers.values():
            reader.close()
    return found


def _left(part: PartitionStats, place: StartPosition) -> int:
    """Return how many entries there are before a place, about."""
    if not isinstance(place, After | Position):
        return 0
    at = place.position if isinstance(place, After) else place
    return at.entry - (part.first_entry if at.ledger == part.ledger else 0)


class _SearchBack:
    """A search from places towards the beginning, in ranges that grow.

    A range counts only if it was read whole: from its begin on, so that what a bound cuts off are
    its newest messages. Where one entry of each partition is too much, they take turns.
    """

    def __init__(
        self,
        reading: TopicReader,
        stats: TopicStats,
        ends: Mapping[int, StartPosition],
        limit: int,
        bounds: ScanBounds,
        first: int,
    ) -> None:
        self._reading = reading
        self._stats = {part.partition: part for part in stats.partitions}
        self._topic = stats.info.topic
        self._ends: Places = {p: ends[p] for p in ends if p in self._stats}
        self._low: Places = dict(self._ends)
        self._tail: Places = dict(self._ends)
        self._limit = limit
        self._bounds = bounds
        self._deadline = reading.clock() + bounds.seconds
        self._messages: list[Stored] = []
        self._looked = self._bytes = self._matches = self._late = 0
        self._stuck = self._is_cut = self._in_turns = False
        entries = sum(part.next_entry - part.first_entry for part in stats.partitions)
        self._density = sum(part.messages for part in stats.partitions) / max(1, entries)
        first = min(limit, first // max(1, len(self._ends)))
        self._entries = max(1, min(first, self._fitting()))

    def goes_on(self) -> bool:
        """Return whether there is more to look at, and reason to."""
        return not (
            self._stuck
            or len(self._messages) >= self._limit
            or (self._looked and self._looked + self._density > self._bounds.messages)
            or self._bytes >= self._bounds.max_bytes
            or self._reading.clock() >= self._deadline
            or self._at_beginning()
        )

    def step(self, condition: MessageFilter) -> None:
        """Look at so many entries before those that were looked at, or at fewer."""
        low = dict(self._low)
        for p in self._next():
            low[p] = earlier(self._stats[p], low[p], self._entries)
        left = ScanBounds(
            self._bounds.messages - self._looked,
            self._bounds.max_bytes - self._bytes,
            max(0.0, self._deadline - self._reading.clock()),
        )
        scan = Scan(self._reading, self._topic, low, self._low, left)
        found: deque[Stored] = deque(maxlen=self._limit)
        seen, size, matches = set[tuple[int, int]](), 0, 0
        try:
            for stored in _sharing(scan):
                seen.add((stored.position.partition, stored.position.entry))
                size += stored.message.size()
                if condition(stored):
                    matches += 1
                    found.append(stored)
            whole = scan.whole
        finally:
            scan.close()
        if not whole and self._again(len(seen)):
            return
        self._stuck = self._is_cut = not whole
        if not whole and self._low == self._ends:
            self._tail = dict(scan.places)
        self._low = low
        self._looked += scan.looked
        self._bytes += size
        self._messages = [*found, *self._messages]
        self._matches += matches
        self._density = scan.looked / max(1, len(seen))
        self._entries = max(1, min(self._entries * WIDEN, self._fitting()))

    def _again(self, entries: int) -> bool:
        """Return whether a range of which so many entries were read is left for later.

        Where nothing was read whole yet a smaller one follows, in time of its own.
        """
        late = self._reading.clock() >= self._deadline
        if self._looked and (late or self._entries == 1):
            self._stuck = True
        elif self._entries > 1:
            # A little fewer than were within the bounds, as the last ones may be larger.
            fewer = entries * 3 // (4 * len(self._next()))
            self._entries = max(1, min(self._entries - 1, fewer))
        elif len(self._ends) > 1 and not self._in_turns:
            self._in_turns = True
        else:
            return False
        if late and self._late < MAX_LATE:
            self._late += 1
            self._deadline += self._bounds.seconds
        return True

    def _next(self) -> list[int]:
        """Return the partitions of the next range: all, or the one of which most is left."""
        if not self._in_turns:
            return list(self._ends)
        return [max(self._ends, key=lambda p: _left(self._stats[p], self._low[p]))]

    def _fitting(self) -> int:
        """Return how many entries of each partition are within the bounds, by what is known."""
        left = (self._bounds.messages - self._looked) * 3 / 4
        return int(left / max(1.0, self._density) / max(1, len(self._next())))

    def found(self) -> MessagePage:
        ordered = sorted(self._messages, key=lambda stored: stored.publish_time)
        kept = ordered[-self._limit :] if self._limit else []
        begin: Places = dict(self._low)
        if len(ordered) >= self._limit:
            begin = dict(self._ends)
            for stored in reversed(kept):
                begin[stored.position.partition] = stored.position
        whole = self._at_beginning() and len(kept) == self._matches and not self._is_cut
        return MessagePage(tuple(kept), begin, self._tail, self._looked, whole, self._is_cut)

    def _at_beginning(self) -> bool:
        return all(
            is_empty(earlier(self._stats[p], place, self._entries), place)
            for p, place in self._low.items()
        )
