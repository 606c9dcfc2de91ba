"""Owns the set of message numbers that were deleted one by one in a partition; pure.

Disjoint ranges that do not touch, in order. They are held in chunks of at most MAX_CHUNK_RANGES, so
that a deletion at any place costs two bisections and moves a few kilobytes; one that extends a
range, as a stream does that deletes its oldest message at each publish, moves nothing. Between two
ranges lies a message that is left: there is at most one range more than messages are left, and each
takes 16 bytes. The alternative, one bit for each message, would grow with all that was deleted.

The metadata stores a row for each range. `take_changes` says which rows a checkpoint has to write.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from math import inf
from typing import Final, NamedTuple

MAX_CHUNK_RANGES: Final = 512


class RangeChange(NamedTuple):
    """A row to be stored: the range that begins at a number now; `last` None: none does."""

    first: int
    last: int | None


class _RangeChunk:
    """Some ranges: their first and last numbers, and how many numbers they hold together."""

    __slots__ = ("count", "firsts", "lasts")

    def __init__(self, firsts: Iterable[int], lasts: Iterable[int]) -> None:
        self.firsts = array("Q", firsts)
        self.lasts = array("Q", lasts)
        self.count = sum(self.lasts) - sum(self.firsts) + len(self.firsts)

    def copy(self) -> _RangeChunk:
        """Return a chunk with the same ranges."""
        copied = object.__new__(_RangeChunk)
        copied.firsts, copied.lasts, copied.count = self.firsts[:], self.lasts[:], self.count
        return copied


class DeletedRanges:
    """The deleted numbers of one partition; all ends of ranges are included.

    `count` is how many numbers are deleted.
    """

    __slots__ = ("_changed", "_chunk_lasts", "_chunks", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Begin with these ranges, which are in order and do not touch."""
        firsts, lasts = array("Q"), array("Q")
        for first, last in ranges:
            firsts.append(first)
            lasts.append(last)
        half = MAX_CHUNK_RANGES // 2
        self._chunks = [
            _RangeChunk(firsts[at : at + half], lasts[at : at + half])
            for at in range(0, len(firsts), half)
        ]
        self._chunk_lasts = [chunk.lasts[-1] for chunk in self._chunks]
        self._changed: set[int] = set()
        self.count = sum(chunk.count for chunk in self._chunks)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return sum(len(chunk.firsts) for chunk in self._chunks)

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def contains(self, number: int) -> bool:
        """Return whether a number is deleted."""
        return self.first_live(number) != number

    def covers(self, first: int, last: int) -> bool:
        """Return whether all numbers from `first` to `last` are deleted."""
        return self.first_live(first) > last

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether any of the numbers from `first` to `last` is deleted."""
        found = self._range_at(first)
        return found is not None and found[0] <= last

    def live_between(self, first: int, last: int) -> int:
        """Return the numbers from `first` to `last` that are not deleted, a bit for each.

        `first` has the lowest bit.
        """
        live = (1 << (last + 1 - first)) - 1
        for start, end in self.ranges(first, last):
            live &= ~(((1 << (end + 1 - start)) - 1) << (start - first))
        return live

    def first_live(self, number: int) -> int:
        """Return the first number at or after this one that is not deleted."""
        found = self._range_at(number)
        return number if found is None or found[0] > number else found[1] + 1

    def last_live(self, number: int) -> int:
        """Return the last number at or before this one that is not deleted; -1: all are."""
        found = self._range_at(number)
        return number if found is None or found[0] > number else found[0] - 1

    def ranges(self, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the deleted ranges between two numbers, in order; not while the set is changed."""
        at = bisect_left(self._chunk_lasts, first)
        place = bisect_left(self._chunks[at].lasts, first) if at < len(self._chunks) else 0
        for chunk in self._chunks[at:]:
            for start, end in zip(chunk.firsts[place:], chunk.lasts[place:], strict=True):
                if last is not None and end >= last:
                    if start <= last:
                        yield max(start, first), last
                    return
                yield max(start, first), end
            place = 0

    def around(self, first: int, last: int) -> DeletedRanges:
        """Return a copy that has all the ranges between two numbers, and some of the others.

        A million ranges take a few milliseconds.
        """
        low = bisect_left(self._chunk_lasts, first)
        high = bisect_right(self._chunks, last, low, key=lambda chunk: chunk.firsts[0])
        copied = DeletedRanges()
        copied._chunks = [chunk.copy() for chunk in self._chunks[low:high]]
        copied._chunk_lasts = self._chunk_lasts[low:high]
        copied.count = sum(chunk.count for chunk in copied._chunks)
        return copied

    def count_between(self, first: int, last: int) -> int:
        """Return how many of the numbers from `first` to `last` are deleted."""
        if last < first or not self._chunks:
            return 0
        return self._count_to(last) - self._count_to(first - 1)

    def add(self, first: int, last: int) -> int:
        """Delete the numbers from `first` to `last`; return how many were not deleted yet."""
        if last < first:
            return 0
        at = bisect_left(self._chunk_lasts, first - 1)
        if at < len(self._chunks):
            chunk = self._chunks[at]
            place = bisect_left(chunk.lasts, first - 1)
            if chunk.firsts[place] <= first and last < self._first_after(at, place) - 1:
                return self._extend(at, place, last)
        before = self.count
        self._insert(*self._take_touching(at, first, last))
        return self.count - before

    def remove_below(self, number: int) -> None:
        """Forget all numbers below one."""
        at = bisect_left(self._chunk_lasts, number)
        for chunk in self._chunks[:at]:
            self._forget(chunk, 0, len(chunk.firsts))
        del self._chunks[:at], self._chunk_lasts[:at]
        if not self._chunks:
            return
        chunk = self._chunks[0]
        self._forget(chunk, 0, bisect_left(chunk.lasts, number))
        if (first := chunk.firsts[0]) < number:
            self._changed.update((first, number))
            chunk.firsts[0] = number
            chunk.count -= number - first
            self.count -= number - first

    def remove_from(self, number: int) -> bool:
        """Forget a number and all above it; return whether any of them was deleted."""
        before = self.count
        while self._chunks and self._chunks[-1].firsts[0] >= number:
            chunk = self._chunks.pop()
            self._chunk_lasts.pop()
            self._forget(chunk, 0, len(chunk.firsts))
        if self._chunks:
            chunk = self._chunks[-1]
            self._forget(chunk, bisect_left(chunk.firsts, number), len(chunk.firsts))
            if (excess := chunk.lasts[-1] + 1 - number) > 0:
                self._changed.add(chunk.firsts[-1])
                chunk.lasts[-1] = number - 1
                chunk.count -= excess
                self.count -= excess
            self._chunk_lasts[-1] = chunk.lasts[-1]
        return self.count != before

    def take_changes(self) -> list[RangeChange]:
        """Return what became of the rows since the last call, for a checkpoint to store."""
        changed, self._changed = self._changed, set()
        found = ((first, self._range_at(first)) for first in changed)
        return [
            RangeChange(first, None if at is None or at[0] != first else at[1])
            for first, at in found
        ]

    def _range_at(self, number: int) -> tuple[int, int] | None:
        """Return the first range that ends at or behind a number; None: there is none."""
        at = bisect_left(self._chunk_lasts, number)
        if at == len(self._chunks):
            return None
        chunk = self._chunks[at]
        place = bisect_left(chunk.lasts, number)
        return chunk.firsts[place], chunk.lasts[place]

    def _first_after(self, at: int, place: int) -> float:
        """Return where the range behind one of a chunk begins; infinity: there is none."""
        if place + 1 < len(self._chunks[at].firsts):
            return self._chunks[at].firsts[place + 1]
        return self._chunks[at + 1].firsts[0] if at + 1 < len(self._chunks) else inf

    def _extend(self, at: int, place: int, last: int) -> int:
        """Have a range of a chunk end at a number; return how many more it has then."""
        chunk = self._chunks[at]
        added = last - chunk.lasts[place]
        if added <= 0:
            return 0
        chunk.lasts[place] = last
        chunk.count += added
        self.count += added
        self._chunk_lasts[at] = chunk.lasts[-1]
        self._changed.add(chunk.firsts[place])
        return added

    def _take_touching(self, at: int, first: int, last: int) -> tuple[int, int]:
        """Take out the ranges, from a chunk on, that touch one; return the range that joins all."""
        while at < len(self._chunks):
            chunk = self._chunks[at]
            low = bisect_left(chunk.lasts, first - 1)
            high = bisect_right(chunk.firsts, last + 1, low)
            if low == high:
                break
            num_after = len(chunk.firsts) - high
            first, last = min(first, chunk.firsts[low]), max(last, chunk.lasts[high - 1])
            self._forget(chunk, low, high)
            if not chunk.firsts:
                del self._chunks[at], self._chunk_lasts[at]
                continue
            self._chunk_lasts[at] = chunk.lasts[-1]
            if num_after:
                break
            at += 1
        return first, last

    def _insert(self, first: int, last: int) -> None:
        """Add a range that touches no other."""
        at = bisect_left(self._chunk_lasts, first)
        if at == len(self._chunks):
            if not at or len(self._chunks[-1].firsts) >= MAX_CHUNK_RANGES:
                self._chunks.append(_RangeChunk((), ()))
                self._chunk_lasts.append(last)
            at = len(self._chunks) - 1
        chunk = self._chunks[at]
        place = bisect_left(chunk.firsts, first)
        chunk.firsts.insert(place, first)
        chunk.lasts.insert(place, last)
        chunk.count += last + 1 - first
        self.count += last + 1 - first
        self._chunk_lasts[at] = chunk.lasts[-1]
        self._changed.add(first)
        if len(chunk.firsts) > MAX_CHUNK_RANGES:
            self._divide(at)

    def _divide(self, at: int) -> None:
        chunk, half = self._chunks[at], MAX_CHUNK_RANGES // 2
        parts = [
            _RangeChunk(chunk.firsts[a:b], chunk.lasts[a:b]) for a, b in ((0, half), (half, None))
        ]
        self._chunks[at : at + 1] = parts
        self._chunk_lasts[at : at + 1] = [part.lasts[-1] for part in parts]

    def _forget(self, chunk: _RangeChunk, low: int, high: int) -> None:
        """Take ranges out of a chunk."""
        firsts, lasts = chunk.firsts[low:high], chunk.lasts[low:high]
        held = sum(lasts) - sum(firsts) + len(firsts)
        self._changed.update(firsts)
        del chunk.firsts[low:high], chunk.lasts[low:high]
        chunk.count -= held
        self.count -= held

    def _count_to(self, number: int) -> int:
        """Return how many numbers up to this one are deleted."""
        if number < 0:
            return 0
        at = bisect_left(self._chunk_lasts, number)
        total = sum(chunk.count for chunk in self._chunks[:at])
        if at < len(self._chunks):
            chunk = self._chunks[at]
            place = bisect_left(chunk.lasts, number)
            total += sum(chunk.lasts[:place]) - sum(chunk.firsts[:place]) + place
            total += max(0, number + 1 - chunk.firsts[place])
        return total
