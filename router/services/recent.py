"""The last messages of a topic, and where reading goes on behind them.

Stores bound what they hold by entries, and an entry may be a batch of many messages: so reading
begins some entries before the end of each partition, and again with fewer of them where those turn
out to hold more than the bounds of one look.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router.backends import Start
from router.model import PartitionStats, Position, Stored, TopicName, TopicStats
from router.services.consume import PollMailbox
from router.services.read import Reading, Whence

LOOK_SECONDS: Final = 2.0
LOOK_BYTES: Final = 4 * 1024 * 1024
LOOK_MESSAGES: Final = 4_000
LOOK_ENTRIES: Final = 1_000
"""Entries of all partitions of a topic."""
TAKE_MESSAGES: Final = 200


@dataclass(frozen=True, slots=True)
class Recent:
    """Messages by the time they were published at; `whence` is what follows, by partition."""

    messages: tuple[Stored, ...]
    whence: dict[int, Whence]


def recent(reading: Reading, stats: TopicStats, most: int) -> Recent:
    """Return at most so many messages, the last ones; raise what reading raises."""
    partitions = max(1, len(stats.partitions))
    entries = max(1, min(most, LOOK_ENTRIES // partitions))
    while True:
        found, whole = _look(reading, stats, entries)
        if whole or entries == 1:
            break
        seen = len({(s.position.partition, s.position.entry) for s in found.messages})
        # A little fewer than were within the bounds, as the last ones may be larger.
        entries = max(1, min(entries - 1, seen * 3 // (4 * partitions)))
    ordered = sorted(found.messages, key=lambda stored: stored.publish_time)
    return Recent(tuple(ordered[-most:]), found.whence)


def _look(reading: Reading, stats: TopicStats, entries: int) -> tuple[Recent, bool]:
    """Return what so many entries of each partition hold, and whether that is all of it."""
    starts = {part.partition: _start(part, entries) for part in stats.partitions}
    left = {part.partition: part.next_entry - 1 for part in stats.partitions if part.messages}
    mailbox, found, size = PollMailbox(), list[Stored](), 0
    deadline = reading.clock() + LOOK_SECONDS
    feed = reading.feed(stats.info.topic, starts, mailbox)
    try:
        while size < LOOK_BYTES and len(found) < LOOK_MESSAGES:
            some = feed.take(TAKE_MESSAGES, LOOK_BYTES - size)
            seconds = deadline - reading.clock()
            # Also once all ends were seen: they may be batches, of which the rest comes now.
            if not some and (not left or seconds <= 0):
                break
            if not some:
                mailbox.wait(seconds)
            for stored in some:
                feed.had(stored)
                size += stored.message.size()
                if stored.position.entry >= left.get(stored.position.partition, 0):
                    left.pop(stored.position.partition, None)
            found += some
        # What did not come in time, as a transaction's mark does not, comes no sooner from fewer.
        whole = size < LOOK_BYTES and len(found) < LOOK_MESSAGES
        return Recent(tuple(found), dict(feed.whence)), whole
    finally:
        feed.close()


def _start(part: PartitionStats, entries: int) -> Whence:
    """Return where the last entries of a partition begin."""
    if not part.messages:
        return Start.EARLIEST
    entry = max(part.first_entry, part.next_entry - entries)
    return Position(part.ledger, max(0, entry), part.partition)


def nothing(reading: Reading, topic: TopicName) -> Recent:
    """Return no message, for a store that does not tell where a topic ends."""
    return Recent((), dict.fromkeys(reading.partitions(topic), Start.LATEST))
