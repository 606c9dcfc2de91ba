"""Owns the position of a subscription in a partition: its cursor, and the commit beside it; pure.

A cursor says what is acknowledged. It is a set of entries, held as a mark-delete position (all at
or below it are acknowledged), disjoint ranges above it, and for batch entries acknowledged in part
the indexes that remain. The alternative, a plain set of entry ids, grows with every message of a
busy subscription; ranges grow only with its gaps. A hypothesis model checks that the two are the
same.

Acknowledging is monotone and idempotent, which recovery relies on: replaying a part of the journal
that a stored cursor already contains changes nothing. Only `reset` goes back.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

_HEAD = struct.Struct(">BqII")
_RANGE = struct.Struct(">QQ")
_PART = struct.Struct(">QI")
_VERSION = 1
_COMMIT = struct.Struct(">qiqqiI")


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement of one entry, or of all up to it.

    `ack_set` names the indexes of a batch entry that are *not* acknowledged, as the protocol's
    64-bit words, lowest first; empty: the whole entry. With `cumulative` the entries before are
    acknowledged whole.
    """

    entry: int
    cumulative: bool = False
    ack_set: tuple[int, ...] = ()


def bits(words: Iterable[int]) -> int:
    """Return the protocol's signed 64-bit words, lowest first, as one number."""
    # All at once: a number that grows by a word at a time is copied for each of them.
    given = tuple(words)
    return int.from_bytes(struct.pack(f"<{len(given)}q", *given), "little")


def words(mask: int) -> list[int]:
    """Return a bit mask as the protocol's signed 64-bit words, lowest first."""
    count = (mask.bit_length() + 63) // 64
    return list(struct.unpack(f"<{count}q", mask.to_bytes(8 * count, "little")))


class CommittedPosition(NamedTuple):
    """A position as a client gave it: the number of the message that comes next.

    The cursor has what is acknowledged; this has the number that the client gave, which may lie
    outside the log, and the client's `metadata`. `leader_epoch` -1: the client has none.
    `cursor` is the entry, and the index in it, that the cursor had next then.
    """

    number: int
    leader_epoch: int = -1
    metadata: str = ""
    time_ms: int = 0
    cursor: tuple[int, int] = (-1, 0)

    def dump(self) -> bytes:
        """Return the commit as bytes that `read` understands."""
        text = self.metadata.encode("utf-8", "surrogatepass")
        numbers = self.number, self.leader_epoch, self.time_ms, *self.cursor
        return _COMMIT.pack(*numbers, len(text)) + text

    @classmethod
    def read(cls, data: bytes, start: int = 0) -> tuple[CommittedPosition, int]:
        """Return the commit that stands in bytes, and the place after it.

        Raises struct.error, ValueError if these are not its bytes.
        """
        number, leader_epoch, time_ms, *cursor, size = _COMMIT.unpack_from(data, start)
        end = start + _COMMIT.size + size
        if end > len(data):
            raise ValueError("the metadata of a commit is cut short")
        text = data[end - size : end].decode("utf-8", "surrogatepass")
        entry, index = cursor
        return cls(number, leader_epoch, text, time_ms, (entry, index)), end


class Cursor:
    """The acknowledged entries of one subscription on one partition."""

    __slots__ = ("_ends", "_partial", "_starts", "mark_delete")

    def __init__(self, mark_delete: int = -1) -> None:
        self.mark_delete = mark_delete
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._partial: dict[int, int] = {}

    def apply(self, ack: Ack) -> bool:
        """Take an acknowledgement; return whether it acknowledged anything new."""
        remaining = bits(ack.ack_set)
        if remaining:
            below = ack.cumulative and self._upto(ack.entry - 1)
            return self._part(ack.entry, remaining) or below
        if ack.cumulative:
            return self._upto(ack.entry)
        return self.skip(ack.entry, ack.entry)

    def reset(self, mark_delete: int) -> None:
        """Forget all; exactly the entries at or below `mark_delete` are acknowledged."""
        self.mark_delete = mark_delete
        self._starts.clear()
        self._ends.clear()
        self._partial.clear()

    def clip(self, next_entry: int) -> bool:
        """Forget acknowledgements at or after `next_entry`; return whether there were any."""
        before = (self.mark_delete, len(self._starts), self._ends[-1:], len(self._partial))
        self.mark_delete = min(self.mark_delete, next_entry - 1)
        keep = bisect_left(self._starts, next_entry)
        del self._starts[keep:], self._ends[keep:]
        if self._ends and self._ends[-1] >= next_entry:
            self._ends[-1] = next_entry - 1
        self._partial = {e: left for e, left in self._partial.items() if e < next_entry}
        return before != (self.mark_delete, len(self._starts), self._ends[-1:], len(self._partial))

    def skip(self, first: int, last: int) -> bool:
        """Acknowledge the entries from `first` to `last`; return whether any was not yet."""
        first = max(first, self.mark_delete + 1)
        if last < first:
            return False
        if first == last and self._covers(first):
            return False
        # The ranges from `low` to before `high` touch or overlap the new one and melt into it.
        low = bisect_left(self._ends, first - 1)
        high = bisect_right(self._starts, last + 1)
        if high == low + 1 and self._starts[low] <= first and self._ends[low] >= last:
            return False
        if low < high:
            first = min(first, self._starts[low])
            last = max(last, self._ends[high - 1])
        if first == self.mark_delete + 1:
            self.mark_delete = last
            del self._starts[low:high], self._ends[low:high]
        else:
            self._starts[low:high] = [first]
            self._ends[low:high] = [last]
        self._drop_partials()
        return True

    def is_acked(self, entry: int) -> bool:
        """Return whether the whole entry is acknowledged."""
        return entry <= self.mark_delete or self._covers(entry)

    def ack_set(self, entry: int) -> list[int]:
        """Return the indexes still unacknowledged of an entry acknowledged in part, else []."""
        return words(self._partial.get(entry, 0))

    def remaining(self, entry: int) -> int:
        """Return the indexes still unacknowledged of such an entry, a bit for each, else 0."""
        return self._partial.get(entry, 0)

    def next_unacked(self, start: int) -> int:
        """Return the first entry at or after `start` that is not acknowledged whole."""
        start = max(start, self.mark_delete + 1)
        place = bisect_left(self._ends, start)
        if place < len(self._ends) and self._starts[place] <= start:
            return self._ends[place] + 1
        return start

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the acknowledged ranges above the mark-delete position, ends included."""
        return zip(self._starts, self._ends, strict=True)

    def partials(self) -> Iterator[tuple[int, int]]:
        """Yield the entries acknowledged in part, each with the number of messages left."""
        return ((entry, left.bit_count()) for entry, left in self._partial.items())

    def dump(self) -> bytes:
        """Return the cursor as bytes that `load` understands."""
        parts = [_HEAD.pack(_VERSION, self.mark_delete, len(self._starts), len(self._partial))]
        parts += [_RANGE.pack(first, last) for first, last in self.ranges()]
        for entry, left in self._partial.items():
            mask = left.to_bytes((left.bit_length() + 7) // 8, "big")
            parts.append(_PART.pack(entry, len(mask)) + mask)
        return b"".join(parts)

    @classmethod
    def load(cls, data: bytes) -> Cursor:
        """Return the cursor that was dumped; raise ValueError if these are not its bytes."""
        try:
            version, mark_delete, ranges, partials = _HEAD.unpack_from(data)
            cursor = cls(mark_delete)
            at = _HEAD.size
            for _ in range(ranges):
                first, last = _RANGE.unpack_from(data, at)
                cursor._starts.append(first)
                cursor._ends.append(last)
                at += _RANGE.size
            for _ in range(partials):
                entry, size = _PART.unpack_from(data, at)
                at += _PART.size + size
                cursor._partial[entry] = int.from_bytes(data[at - size : at], "big")
        except struct.error as error:
            raise ValueError("a stored cursor is cut short") from error
        if version != _VERSION or at != len(data):
            raise ValueError("a stored cursor has an unknown form")
        return cursor

    @staticmethod
    def mark_delete_of(data: bytes) -> int | None:
        """Return the mark-delete position of a dumped cursor that is nothing else; else None."""
        if len(data) != _HEAD.size:
            return None
        version, mark_delete, ranges, partials = _HEAD.unpack(data)
        return None if version != _VERSION or ranges or partials else int(mark_delete)

    def _covers(self, entry: int) -> bool:
        place = bisect_left(self._ends, entry)
        return place < len(self._ends) and self._starts[place] <= entry

    def _upto(self, entry: int) -> bool:
        if entry <= self.mark_delete:
            return False
        keep = bisect_right(self._starts, entry + 1)
        if keep and self._ends[keep - 1] > entry:
            entry = self._ends[keep - 1]
        del self._starts[:keep], self._ends[:keep]
        self.mark_delete = entry
        self._drop_partials()
        return True

    def _part(self, entry: int, remaining: int) -> bool:
        if self.is_acked(entry):
            return False
        before = self._partial.get(entry)
        left = remaining if before is None else before & remaining
        if not left:
            return self.skip(entry, entry)
        self._partial[entry] = left
        return left != before

    def _drop_partials(self) -> None:
        if self._partial:
            for entry in [e for e in self._partial if self.is_acked(e)]:
                del self._partial[entry]
