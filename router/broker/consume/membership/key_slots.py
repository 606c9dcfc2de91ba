"""Owns which consumer has a slot of keys: by a ring of hashes, or by ranges that it requested for.

Theory of operation. On the ring (AUTO_SPLIT) each consumer has POINTS_OF_CONSUMER points, which
depend on its name alone, and owns the slots up to each of them from the point before. So a consumer
that comes takes from all others a little, one that goes leaves to them what it had, and nothing
moves between those that stay. They are the points of Apache Pulsar, so that the same consumers
share the keys in the same way. The alternative, to halve the largest range, moves less but ends
with uneven shares.

With STICKY ranges each consumer asks for its own; a slot in no range has no consumer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Final

from router.broker.consume.consumer import ClientConsumer
from router.broker.consume.membership.hashing import SLOTS, murmur3_each, slot_of_hash

POINTS_OF_CONSUMER: Final = 100

OwnedRange = tuple[int, int, ClientConsumer]
"""The first and the last slot of a range, and whose it is."""


class HashRangeError(Exception):
    """The ranges of a consumer cannot be assigned to it."""


class Ring:
    """Slots shared out evenly by the consumers' names."""

    def __init__(self) -> None:
        self._points: list[int] = []
        # Of several consumers on the same point the one that came first has it.
        self._at: dict[int, list[ClientConsumer]] = {}
        self._numbers: dict[str, set[int]] = {}
        self._mine: dict[ClientConsumer, tuple[int, list[int]]] = {}

    def add(self, consumer: ClientConsumer) -> None:
        """Give a consumer its slots; consumers of the same name get different ones."""
        taken = self._numbers.setdefault(consumer.name, set())
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        taken.add(number)
        tails = (f"\0{number}\0{n}".encode() for n in range(POINTS_OF_CONSUMER))
        points = list(map(slot_of_hash, murmur3_each(consumer.name.encode(), tails)))
        self._mine[consumer] = number, points
        for point in points:
            there = self._at.setdefault(point, [])
            if not there:
                insort(self._points, point)
            there.append(consumer)

    def remove(self, consumer: ClientConsumer) -> None:
        """Take a consumer's slots back."""
        number, points = self._mine.pop(consumer)
        taken = self._numbers[consumer.name]
        taken.remove(number)
        if not taken:
            del self._numbers[consumer.name]
        for point in points:
            there = self._at[point]
            there.remove(consumer)
            if not there:
                del self._at[point]
                del self._points[bisect_left(self._points, point)]

    def owner(self, slot: int) -> ClientConsumer | None:
        """Return the consumer that has the slot; None only if there is no consumer."""
        points = self._points
        if not points:
            return None
        place = bisect_left(points, slot)
        return self._at[points[place if place < len(points) else 0]][0]


class Ranges:
    """Slots that the consumers requested for."""

    def __init__(self) -> None:
        self._owned: list[OwnedRange] = []

    def add(self, consumer: ClientConsumer) -> None:
        """Give a consumer the ranges that it asks for; raise HashRangeError."""
        requested = sorted(consumer.keys.ranges)
        _check(requested)
        for first, last in requested:
            if (other := self._between(first, last)) is not None:
                raise HashRangeError(f"Range conflict with consumer {other.name}")
        for first, last in requested:
            insort(self._owned, (first, last, consumer), key=lambda owned: owned[0])

    def remove(self, consumer: ClientConsumer) -> None:
        """Take a consumer's ranges back."""
        self._owned = [owned for owned in self._owned if owned[2] is not consumer]

    def owner(self, slot: int) -> ClientConsumer | None:
        """Return the consumer that requested for the slot, if there is one."""
        return self._between(slot, slot)

    def _between(self, first: int, last: int) -> ClientConsumer | None:
        """Return the consumer that has a slot from `first` to `last`; they do not overlap."""
        place = bisect_right(self._owned, last, key=lambda owned: owned[0])
        if place and self._owned[place - 1][1] >= first:
            return self._owned[place - 1][2]
        return None


Assignment = Ring | Ranges
"""Which consumer has which slots."""


def _check(ranges: Sequence[tuple[int, int]]) -> None:
    if not ranges:
        raise HashRangeError("Ranges for KeyShared policy must not be empty.")
    before = (-1, -1)
    for first, last in ranges:
        if not 0 <= first <= last < SLOTS:
            raise HashRangeError(f"[{first},{last}] is no range of slots from 0 to {SLOTS - 1}")
        if first <= before[1]:
            raise HashRangeError(
                f"Consumer's own ranges conflict: [{before[0]},{before[1]}] overlaps with "
                f"[{first},{last}]"
            )
        before = first, last
