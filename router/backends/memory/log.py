"""The messages of one partition in memory, and the subscriptions on it.

A partition is a flat list of messages in which a batch occupies neighbouring places, so that a
cursor is one number, how many messages are acknowledged from the first one on, and a set of places
behind it. Keeping entries and acknowledgement sets as the broker does would test nothing of the
broker and cost the fake its simplicity.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING

from router.backends import Mailbox, Receipt, Start
from router.model import CursorState, Message, Position, Schema, Stored, TopicInfo

if TYPE_CHECKING:
    from router.backends.memory.reading import MemoryConsumer, MemoryReader

Key = tuple[int, int]
_epochs = count(1)


class Cursor:
    """One subscription's place in one partition.

    The first `acked` messages are done with, and so are those at the places `apart`, all behind.
    """

    __slots__ = ("acked", "apart", "consumer", "epoch", "generation")

    def __init__(self, acked: int) -> None:
        self.acked = acked
        self.apart: set[int] = set()
        self.consumer: MemoryConsumer | None = None
        self.generation = 0
        self.epoch = next(_epochs)

    def acknowledge(self, first: int, end: int) -> None:
        """Be done with the messages from one place to before another."""
        if first > self.acked:
            self.apart.update(range(first, end))
            return
        self.acked = max(self.acked, end)
        self.apart = {place for place in self.apart if place >= self.acked}
        while self.acked in self.apart:
            self.apart.remove(self.acked)
            self.acked += 1

    def reset(self, acked: int) -> None:
        """Be done with the first messages, and no others."""
        self.acked = acked
        self.apart.clear()
        self.epoch = next(_epochs)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first and last place of what is done with behind `acked`."""
        found: list[tuple[int, int]] = []
        for place in sorted(self.apart):
            if found and found[-1][1] == place - 1:
                found[-1] = found[-1][0], place
            else:
                found.append((place, place))
        return found


class Log:
    """The messages of one partition, with the subscriptions on it."""

    __slots__ = (
        "bytes",
        "cursors",
        "keys",
        "ledger",
        "marks",
        "messages",
        "next_entry",
        "partition",
        "readers",
    )

    def __init__(self, ledger: int, partition: int) -> None:
        self.ledger = ledger
        self.partition = partition
        self.next_entry = 0
        self.bytes = 0
        self.messages: list[Stored] = []
        self.keys: list[Key] = []
        self.cursors: dict[str, Cursor] = {}
        self.readers: set[MemoryReader] = set()
        self.marks: dict[str, tuple[int, Receipt]] = {}

    def append(self, messages: Sequence[Message], now_ms: int) -> Position:
        """Store messages; return where they begin."""
        entry, self.next_entry = self.next_entry, self.next_entry + 1
        size = 0 if len(messages) == 1 else len(messages)
        for index, message in enumerate(messages):
            place = index if size else -1
            position = Position(self.ledger, entry, self.partition, place, size)
            self.messages.append(Stored(message, position, now_ms))
            self.keys.append((entry, index))
            self.bytes += message.size()
        return Position(self.ledger, entry, self.partition, -1, size)

    def place(self, start: Start | int) -> int:
        """Return how many messages are before a start."""
        if start is Start.EARLIEST:
            return 0
        if start is Start.LATEST:
            return len(self.messages)
        later = (i for i, stored in enumerate(self.messages) if stored.publish_time >= start)
        return next(later, len(self.messages))

    def span(self, position: Position) -> tuple[int, int]:
        """Return the place of a message and the one behind; without an index, of its entry."""
        if position.ledger != self.ledger:
            return 0, 0
        entry, index = position.entry, position.batch_index
        if index < 0:
            return self._before((entry, 0)), self._before((entry + 1, 0))
        return self._before((entry, index)), self._before((entry, index + 1))

    def behind(self, position: Position) -> int:
        """Return how many messages are before a position, be there a message or not."""
        if position.ledger != self.ledger:
            return 0 if position.ledger < self.ledger else len(self.messages)
        return self._before((position.entry, max(0, position.batch_index)))

    def state(self, cursor: Cursor) -> CursorState:
        """Return where a subscription stands."""
        messages = self.messages
        return CursorState(
            self.partition,
            messages[cursor.acked - 1].position if cursor.acked else None,
            tuple((messages[a].position, messages[b].position) for a, b in cursor.ranges()),
            len(messages) - cursor.acked - len(cursor.apart),
        )

    def _before(self, key: Key) -> int:
        return bisect_left(self.keys, key)


@dataclass(slots=True)
class Topic:
    """A topic with its partitions and schemas."""

    info: TopicInfo
    logs: dict[int, Log] = field(default_factory=dict)
    schemas: list[Schema] = field(default_factory=list)


def take(
    messages: Sequence[Stored], places: Iterable[int], limit: int, max_bytes: int
) -> tuple[list[Stored], int | None]:
    """Return the first messages within the bounds, and the place behind the last one of them.

    A first one that exceeds them comes alone.
    """
    size, following = 0, None
    found: list[Stored] = []
    for place in islice(places, max(1, limit)):
        size += messages[place].message.size()
        if found and size > max_bytes:
            break
        found.append(messages[place])
        following = place + 1
    return found, following


def wake(mailboxes: Iterable[Mailbox | None]) -> None:
    """Wake who waits; the backend's lock must not be held."""
    for mailbox in mailboxes:
        if mailbox is not None:
            mailbox.wake()
