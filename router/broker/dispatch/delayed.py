"""Owns what is not to be delivered yet: entries with a time, and the timer that wakes for them.

Theory of operation. A shared subscription reads its partition in order and puts entries whose time
has not come aside, here; each takes some 50 bytes until it is due. Nothing of it is stored: such an
entry is not acknowledged, so that after a restart it is read and put aside again. When LIMIT are
put aside, reading stops until one is due. The alternative, an index on disk of what is delayed,
buys more of them at the price of a write for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

LIMIT: Final = 50_000
# The clock of days may be set; the timer runs by another one, and looks at it at least so often.
LONGEST: Final = 30.0

_ENTRY: Final = 48
_SLOT: Final = 16


class Delayed:
    """The entries of one subscription whose time has not come; `wake` is called when one's has."""

    def __init__(self, now_ms: Callable[[], int], wake: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._wake = wake
        # A time, a slot and an entry in one number: half the bytes of a tuple.
        self._waiting: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Tell whether no more may be put aside."""
        return len(self._waiting) >= LIMIT

    def put_aside(self, entry: int, when_ms: int, slot: int = 0) -> bool:
        """Keep an entry, and the slot of its key, until its time; False: it has come already."""
        if when_ms <= self._now_ms():
            return False
        heappush(self._waiting, (when_ms << _SLOT | slot) << _ENTRY | entry)
        return True

    def due(self) -> tuple[int, int] | None:
        """Take out an entry, and its slot, whose time has come: the one whose time came first."""
        if not self._waiting or self._next_ms() > self._now_ms():
            return None
        found = heappop(self._waiting)
        return found & (1 << _ENTRY) - 1, found >> _ENTRY & (1 << _SLOT) - 1

    def arm(self) -> None:
        """See to it that `wake` is called when the next one is due; not if it is already."""
        self.disarm()
        if self._waiting:
            left = self._next_ms() - self._now_ms()
            if left > 0:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(min(left / 1000, LONGEST), self._wake)

    def drop(self, done: Callable[[int], bool]) -> None:
        """Forget the entries that are done with."""
        self._waiting = [kept for kept in self._waiting if not done(kept & (1 << _ENTRY) - 1)]
        heapify(self._waiting)

    def close(self) -> None:
        """Forget everything, and wake nobody any more."""
        self._waiting.clear()
        self.disarm()

    def disarm(self) -> None:
        """Wake nobody until it is armed again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_ms(self) -> int:
        return self._waiting[0] >> _SLOT + _ENTRY
