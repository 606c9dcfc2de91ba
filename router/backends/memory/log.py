"""The messages of one partition in memory, the subscriptions on it, and what reads it.

Messages are numbered from 0, so that a cursor is one number, how many messages are acknowledged
from the first one on, and a set of numbers behind it. Keeping acknowledgement sets of entries as
the broker does would test nothing of the broker and cost the fake its simplicity. The backend's
lock guards all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count

from router.backends import Batch, ReadStart, Receipt, Start
from router.errors import ConsumerClosedError, FencedError
from router.model import CursorState, PartitionStats, Position, Stored, SubscriptionStats
from router.node import Mailbox

Lock = AbstractContextManager[object]
_epochs = count(1)


class MemoryCursor:
    """One subscription's place in one partition.

    The first `acked` messages are acknowledged, and so are those with the numbers `apart`, all
    behind.
    """

    def __init__(self, acked: int) -> None:
        self.consumer: MemoryConsumer | None = None
        self.generation = 0
        self.reset(acked)

    def reset(self, acked: int) -> None:
        """Have the first messages acknowledged, and no others."""
        self.acked = acked
        self.apart: set[int] = set()
        self.epoch = next(_epochs)

    def acknowledge(self, first: int, end: int) -> None:
        """Acknowledge the messages from one number to before another."""
        self.apart.update(range(max(first, self.acked), end))
        while self.acked in self.apart:
            self.apart.remove(self.acked)
            self.acked += 1


class MemoryLog:
    """The messages of one partition, with the subscriptions on it and its open readers."""

    def __init__(self, ledger: int, partition: int, lock: Lock) -> None:
        self.ledger = ledger
        self.partition = partition
        self.lock = lock
        self.messages: list[Stored] = []
        self.entries: list[int] = []
        """The number of each entry's first message."""
        self.cursors: dict[str, MemoryCursor] = {}
        self.readers: set[MemoryReader] = set()
        # The last append of each producer that names its appends.
        self.producers: dict[str, tuple[int, Receipt]] = {}

    def append(self, batch: Batch, now_ms: int) -> Receipt:
        """Store messages; return where they begin, or where they were stored before."""
        sequence, receipt = self.producers.get(batch.producer or "", (-1, None))
        if receipt is not None and batch.sequence < sequence:
            return Receipt(Position(-1, -1, self.partition), len(batch.messages), duplicate=True)
        if receipt is not None and batch.sequence == sequence:
            return replace(receipt, duplicate=True)
        position = Position(self.ledger, len(self.entries), self.partition)
        receipt = Receipt(position, len(batch.messages))
        self.entries.append(len(self.messages))
        for index, message in enumerate(batch.messages):
            self.messages.append(Stored(message, receipt.at(index), now_ms))
        if batch.producer is not None:
            self.producers[batch.producer] = batch.sequence, receipt
        return receipt

    def before(self, start: ReadStart) -> int:
        """Return how many messages are before an end, a time or a position."""
        if start is Start.EARLIEST:
            return 0
        if isinstance(start, int):
            later = (i for i, stored in enumerate(self.messages) if stored.publish_time >= start)
            return next(later, len(self.messages))
        if isinstance(start, Position) and start.ledger < self.ledger:
            return 0
        if isinstance(start, Start) or (start.ledger, len(self.entries)) <= (
            self.ledger,
            start.entry,
        ):
            return len(self.messages)
        return self.entries[start.entry] + max(0, start.batch_index)

    def span(self, position: Position) -> tuple[int, int]:
        """Return the number of a message and the one behind; without an index, of its entry."""
        entry, index = position.entry + (position.batch_index < 0), position.batch_index + 1
        return self.before(position), self.before(replace(position, entry=entry, batch_index=index))

    def stats(self) -> PartitionStats:
        """Return what the partition holds."""
        size, count = sum(stored.message.size() for stored in self.messages), len(self.messages)
        return PartitionStats(self.partition, self.ledger, 0, len(self.entries), count, size, 0)

    def subscriptions(self) -> Iterator[SubscriptionStats]:
        """Yield what waits for each subscription."""
        for name, cursor in self.cursors.items():
            backlog, consumers = self.state(cursor).backlog, int(cursor.consumer is not None)
            yield SubscriptionStats(name, self.partition, backlog, consumers)

    def state(self, cursor: MemoryCursor) -> CursorState:
        """Return where a subscription stands."""
        acked, apart = cursor.acked, sorted(cursor.apart)
        firsts = [self.messages[at].position for at in apart if at - 1 not in cursor.apart]
        lasts = [self.messages[at].position for at in apart if at + 1 not in cursor.apart]
        return CursorState(
            self.partition,
            self.messages[acked - 1].position if acked else None,
            tuple(zip(firsts, lasts, strict=True)),
            len(self.messages) - acked - len(apart),
        )


class MemoryReader:
    """Hands out the messages of one partition in order; see `Reader`.

    `cursor` says which messages it leaves out, `first` where it begins at the earliest: that may be
    behind all that is stored.
    """

    epoch = 0

    def __init__(
        self,
        log: MemoryLog,
        cursor: MemoryCursor,
        mailbox: Mailbox,
        first: ReadStart = Start.EARLIEST,
    ) -> None:
        self.mailbox = mailbox
        self._log = log
        self._cursor = cursor
        self._first = first
        self._next = 0
        self._closed = False
        log.readers.add(self)

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what is stored and was not received yet; see the protocol."""
        found: list[Stored] = []
        with self._log.lock:
            if self._closed:
                raise ConsumerClosedError("this reader is closed")
            messages, cursor, size = self._log.messages, self._cursor, 0
            begin = max(self._next, cursor.acked, self._log.before(self._first))
            for number in range(begin, len(messages)):
                if number in cursor.apart:
                    continue
                stored = messages[number]
                size += stored.message.size()
                if found and (size > max_bytes or len(found) >= limit):
                    break
                found.append(replace(stored, position=replace(stored.position, epoch=self.epoch)))
                self._next = number + 1
        return found

    def close(self) -> None:
        """Close the reader; see the protocol."""
        with self._log.lock:
            self.end()

    def end(self) -> Mailbox:
        """Close the reader, with the backend's lock held; return the mailbox to be woken."""
        self._closed = True
        self._log.readers.discard(self)
        if self._cursor.consumer is self:
            self._cursor.consumer = None
        return self.mailbox


class MemoryConsumer(MemoryReader):
    """An exclusive reader of one partition of a subscription; see `Consumer`."""

    def __init__(
        self, log: MemoryLog, cursor: MemoryCursor, generation: int, mailbox: Mailbox
    ) -> None:
        super().__init__(log, cursor, mailbox)
        self.partition = log.partition
        self.epoch = cursor.epoch
        self.generation = generation
        cursor.consumer = self
        cursor.generation = max(cursor.generation, generation)

    def acknowledge(self, upto: Position, timeout: float) -> None:
        """Acknowledge everything up to and including this message; see the protocol."""
        with self._log.lock:
            stale = upto.epoch and upto.epoch != self.epoch
            if self._closed or stale or self.generation < self._cursor.generation:
                raise FencedError
            self._cursor.acknowledge(0, self._log.span(upto)[1])
