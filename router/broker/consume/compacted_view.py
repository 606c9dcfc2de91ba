"""Owns the compacted view of a partition: the newest message of each key up to a number, then all.

Theory of operation. A topic of Pulsar is compacted on request. Its log stays as it is for most
readers; those that ask for it read it without the messages before `end` that a later one before
`end` superseded. A view has the numbers that are left there, 8 bytes for each key, and does not
change: what is compacted while it is read is in the next one. So its reader meets every message
from `end` on, and with it the tombstone of each key whose value it has read. Apache Pulsar gives a
reader the newer view in the middle, and may spare it that tombstone.

What the log itself leaves out is left out of a view too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from router.broker.consume.visible import Visible
from router.broker.storage import Entry, Ledger


class CompactedView(Visible):
    """What readers of a compacted topic get; `numbers` are left of those before `end`, in order."""

    __slots__ = ("__weakref__", "_numbers", "_superseded", "end")

    def __init__(self, ledger: Ledger, numbers: array[int], end: int) -> None:
        super().__init__(ledger)
        self._numbers = numbers
        self.end = end
        first = min(ledger.first_number, end)
        self._superseded = end - first - self._count_kept(first, end - 1)

    @property
    def leaves_out(self) -> int:
        """How many messages of those that the ledger keeps are left out, at most."""
        gone = self.ledger.first_number >= self.end
        return super().leaves_out + (0 if gone else self._superseded)

    def messages(self, entry: Entry) -> int | None:
        """Return which messages of an entry are not left out, a bit for each; None: all."""
        first, last = entry.index + 1 - entry.messages, entry.index
        if first >= self.end:
            return super().messages(entry)
        live = self.between(first, last)
        return None if live == (1 << entry.messages) - 1 else live

    def contains(self, number: int) -> bool:
        """Return whether a message may be delivered now."""
        return self._keeps(number) and super().contains(number)

    def is_left_out(self, number: int) -> bool:
        """Return whether a message of those that the ledger keeps is left out."""
        return not self._keeps(number) or super().is_left_out(number)

    def first_from(self, number: int) -> int:
        """Return the first number at or after one that is not left out, durable or not."""
        while number < self.end:
            place = bisect_left(self._numbers, number)
            kept = self._numbers[place] if place < len(self._numbers) else self.end
            number = super().first_from(kept)
            if number == kept:
                return number
        return super().first_from(number)

    def last_to(self, number: int) -> int:
        """Return the last number at or before one that is not left out; less than any: none."""
        if number >= self.end:
            number = super().last_to(number)
        while 0 <= number < self.end:
            place = bisect_right(self._numbers, number)
            kept = self._numbers[place - 1] if place else -1
            number = super().last_to(kept)
            if number == kept:
                break
        return number

    def between(self, first: int, last: int) -> int:
        """Return which of the numbers from `first` to `last` are not left out, a bit for each."""
        live = super().between(first, last)
        if first >= self.end:
            return live
        # All bits from `end` on, with those of the numbers that are left before it.
        kept = -1 << max(0, self.end - first)
        for place in range(bisect_left(self._numbers, first), bisect_right(self._numbers, last)):
            kept |= 1 << (self._numbers[place] - first)
        return live & kept

    def count(self, first: int, end: int) -> int:
        """Return how many numbers from `first` to before `end` are not left out."""
        total = super().count(max(first, self.end), end)
        end = min(end, self.end)
        if first >= end:
            return total
        gone = sum(self._count_kept(*span) for span in super().left_out(first, end - 1))
        return total + self._count_kept(first, end - 1) - gone

    def left_out(self, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the ranges that are left out between two numbers, in order."""
        past_end = (self.end if last is None else last) + 1
        number = first
        while number < past_end:
            kept = self.first_from(number)
            if kept > number:
                yield number, min(kept, past_end) - 1
            number = kept + 1

    def _keeps(self, number: int) -> bool:
        if number >= self.end:
            return True
        place = bisect_left(self._numbers, number)
        return place < len(self._numbers) and self._numbers[place] == number

    def _count_kept(self, first: int, last: int) -> int:
        return bisect_right(self._numbers, last) - bisect_left(self._numbers, first)
