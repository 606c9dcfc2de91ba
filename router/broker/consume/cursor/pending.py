"""What was delivered and is not acknowledged: until when, and how often it came again; pure.

Theory of operation. A key is the number of a message (JetStream) or of an entry (Pulsar), in the
order of the log. What was delivered is *held*, with what the dialect notes of it: its consumer, or
the number of its delivery. It may have a deadline. When that is over, or the client returns it, the
key is *due*: it is delivered again before anything new. How often it came again is counted until
it is settled. What dialects do differently is data: `DeliveryRules`. Times come as arguments, in
the unit of the dialect's clock.

There is a column for each kind of fact and no object for a key: most keys are only held. Fetches of
REST consumers keep spans instead (`in_flight.py`), because they take thousands of messages that are
due together: 3 µs for a thousand, which take 0.7 ms as keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

T = TypeVar("T")
UNLIMITED: Final = -1
MAX_PENDING: Final = 100_000
"""Messages that are delivered and not acknowledged, where the configuration sets no limit."""


class AckScope(Enum):
    """What an acknowledgement covers: a message, all up to it too, or nothing is acknowledged."""

    EXPLICIT = "explicit"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """How messages are acknowledged and delivered again.

    `ack_wait` is how long a delivery has for its acknowledgement; `backoff` is that of the first,
    second … delivery instead, and the last one holds for all that follow. `ack_wait`
    and `max_deliver` -1: unlimited. With `keeps_exhausted` messages that reached
    `max_deliver` are remembered, since a stream whose retention depends on its consumers keeps
    them. `in_order`: what is due comes in the order of the log, else as it became due.
    """

    acks: AckScope = AckScope.EXPLICIT
    ack_wait: int = 30_000_000_000
    backoff: tuple[int, ...] = ()
    max_deliver: int = UNLIMITED
    max_pending: int = MAX_PENDING
    keeps_exhausted: bool = False
    in_order: bool = False

    def wait(self, delivery: int) -> int:
        """Return how long the delivery of this number, from 1, has for its acknowledgement."""
        if self.backoff:
            return self.backoff[min(delivery, len(self.backoff)) - 1]
        return self.ack_wait

    def is_last(self, delivery: int) -> bool:
        """Return whether a message that was delivered so often is delivered no more."""
        return 0 < self.max_deliver <= delivery


class Agenda:
    """Keys in the order of their ranks; the rank of a key may change, and `ranks` may lose it."""

    __slots__ = ("_heap", "ranks")

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def put(self, keys: Iterable[int], rank: int) -> None:
        """Give keys a rank."""
        ranks, heap = self.ranks, self._heap
        for key in keys:
            ranks[key] = rank
            heappush(heap, (rank, key))
        if len(heap) > 4 * len(ranks) + 64:  # most of it is not so any more
            self._heap = sorted((rank, key) for key, rank in ranks.items())

    def first(self) -> tuple[int, int] | None:
        """Return the least rank and its key; None: there is none."""
        heap, ranks = self._heap, self.ranks
        while heap:
            rank, key = found = heap[0]
            if ranks.get(key) == rank:
                return found
            heappop(heap)
        return None

    def take(self, rank: int) -> list[int]:
        """Take out the keys with a rank up to this one; return them in their own order."""
        taken = []
        while (first := self.first()) is not None and first[0] <= rank:
            del self.ranks[first[1]]
            taken.append(first[1])
        return sorted(taken)


class PendingDeliveries(Generic[T]):
    """The pending keys of one consumer or subscription.

    `held` has them in the order of their first delivery, if the table that is given keeps one.
    `redelivered`: how often keys came again, of those that did. `deadlines` and `due`: see above.
    """

    __slots__ = ("_order", "deadlines", "due", "held", "redelivered", "rules")

    def __init__(self, rules: DeliveryRules, held: dict[int, T]) -> None:
        self.rules = rules
        self.held = held
        self.redelivered: dict[int, int] = {}
        self.deadlines = Agenda()
        self.due = Agenda()
        self._order = count()

    def deliver(self, keys: Sequence[int], holders: Iterable[T], now: int) -> None:
        """Note the first delivery of keys, and what is to be known of each."""
        self.held.update(zip(keys, holders, strict=False))
        if (wait := self.rules.wait(1)) >= 0:
            self.deadlines.put(keys, now + wait)

    def deliver_again(self, key: int, now: int) -> None:
        """Note another delivery of a key that is held."""
        self.count(key)
        self.postpone(key, now + self.rules.wait(self.redelivered[key] + 1))

    def count(self, key: int) -> None:
        """Count that a key comes again."""
        self.redelivered[key] = self.redelivered.get(key, 0) + 1

    def postpone(self, key: int, deadline: int) -> None:
        """Have a key be due at a time."""
        self.due.ranks.pop(key, None)
        self.deadlines.put((key,), deadline)

    def make_due(self, key: int) -> None:
        """Have a key be due now."""
        if key not in self.due.ranks:
            self.deadlines.ranks.pop(key, None)
            self.due.put((key,), key if self.rules.in_order else next(self._order))

    def next_due(self) -> int | None:
        """Return the key that is to be delivered again next; None: there is none."""
        first = self.due.first() if self.due.ranks else None
        return None if first is None else first[1]

    def settle(self, key: int) -> T | None:
        """Forget a key; return what was noted of it, None: it was not held."""
        if self.redelivered:
            self.redelivered.pop(key, None)
        if self.deadlines.ranks:
            self.deadlines.ranks.pop(key, None)
        if self.due.ranks:
            self.due.ranks.pop(key, None)
        return self.held.pop(key, None)
