"""Owns the memory of producers: what each one stored last in a partition, so a retry is known.

The marks of a partition are held in the order of their last use; the oldest go first, by age and by
number. What a mark says counts only once its entry is on disk, so a checkpoint stores the marks of
synced rounds only (the ledger keeps those apart); here are the newest, synced or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Mark(NamedTuple):
    """What a producer stored last: its sequence id, and where, how many messages and when."""

    sequence: int
    entry: int
    messages: int
    time_ms: int


class Producers:
    """The marks of one partition, by producer name."""

    __slots__ = ("_limit", "_marks", "_window_ms")

    def __init__(self, window_ms: int, limit: int) -> None:
        self._window_ms = window_ms
        self._limit = limit
        self._marks: dict[str, Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def __iter__(self) -> Iterator[tuple[str, Mark]]:
        return iter(self._marks.items())

    def last(self, name: str) -> Mark | None:
        """Return what this producer stored last, if it is remembered."""
        return self._marks.get(name)

    def duplicate(self, name: str, sequence: int) -> Mark | None:
        """Return the producer's mark if it stored this sequence id or a later one already."""
        mark = self._marks.get(name)
        return mark if mark is not None and sequence <= mark.sequence else None

    def record(self, name: str, mark: Mark) -> None:
        """Remember what a producer stored; the oldest goes when there are too many."""
        self._marks.pop(name, None)
        self._marks[name] = mark
        if len(self._marks) > self._limit:
            del self._marks[next(iter(self._marks))]

    def expire(self, now_ms: int) -> list[str]:
        """Forget the marks older than the window and return their names."""
        gone = []
        for name, mark in self._marks.items():
            if mark.time_ms > now_ms - self._window_ms:
                break
            gone.append(name)
        for name in gone:
            del self._marks[name]
        return gone
