"""Owns the memory of producers: what each one stored last in a partition, so a retry is known.

The states of a partition are held in the order of their last use; the oldest go first, by age and
by number. A state counts only once its entry is on disk, so a checkpoint stores the states of
synced commit groups only (the ledger keeps those apart); here are the newest, synced or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class ProducerState(NamedTuple):
    """What a producer stored last: its sequence id, and where, how many messages and when."""

    sequence: int
    entry: int
    messages: int
    time_ms: int


class ProducerStates:
    """The states of one partition, by producer name."""

    __slots__ = ("_limit", "_states", "_window_ms")

    def __init__(self, window_ms: int, limit: int) -> None:
        self._window_ms = window_ms
        self._limit = limit
        self._states: dict[str, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[tuple[str, ProducerState]]:
        return iter(self._states.items())

    def last(self, name: str) -> ProducerState | None:
        """Return what this producer stored last, if it is remembered."""
        return self._states.get(name)

    def record(self, name: str, state: ProducerState) -> None:
        """Remember what a producer stored; the oldest goes when there are too many."""
        self._states.pop(name, None)
        self._states[name] = state
        if len(self._states) > self._limit:
            del self._states[next(iter(self._states))]

    def expire(self, now_ms: int) -> list[str]:
        """Forget the states older than the window and return their names."""
        gone = []
        for name, state in self._states.items():
            if state.time_ms > now_ms - self._window_ms:
                break
            gone.append(name)
        for name in gone:
            del self._states[name]
        return gone
