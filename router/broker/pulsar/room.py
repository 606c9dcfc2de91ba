"""What all connections together may hold: room for frames that arrive, and for what waits to leave.

Theory of operation. A frame may have 5 MiB, and is handled when it is whole. A thousand producers
that each send one at the same time would have the broker hold 5 GiB before it has seen a message.
So the rest of a large frame is read only when there is room for all of it; the others are not read
from until it is their turn. Who has room needs nothing else to finish its frame, and hence the
line moves. The alternative, to stop reading from everybody when there is too much, could stop them
all in the middle of their frames, for ever.

What waits to leave is bounded for each connection, and less for each where there are many.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LARGE: Final = 64 << 10
"""Of frames; smaller ones come with the read that begins them, or the next."""
IN: Final = 64 << 20
OUT: Final = 128 << 20
LEAST_OUT: Final = 64 << 10
PATIENCE: Final = 120.0


class Room:
    """Bytes of large frames on their way in, by whose they are; in the order of asking."""

    def __init__(self, limit: int = IN, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._taken = 0
        self._had: dict[object, tuple[int, float]] = {}
        self._wanted: dict[object, tuple[int, Callable[[], None]]] = {}

    def take(self, who: object, size: int, found: Callable[[], None]) -> bool:
        """Take room for a frame; False: there is none now, and `found` will be called."""
        if self._wanted or not self._fits(size):
            self._wanted[who] = size, found
            return False
        self._give(who, size)
        return True

    def give_back(self, who: object) -> None:
        """Let a frame's room, or its place in the line, be another's."""
        self._wanted.pop(who, None)
        self._taken -= self._had.pop(who, (0, 0.0))[0]
        while self._wanted:
            following, (size, found) = next(iter(self._wanted.items()))
            if not self._fits(size):
                return
            del self._wanted[following]
            self._give(following, size)
            found()

    def overdue(self, who: object) -> bool:
        """Tell whether somebody who has room is too slow for those who wait for it."""
        if who not in self._had or not self._wanted:
            return False
        return self._had[who][1] <= self._clock() - PATIENCE

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._limit

    def _give(self, who: object, size: int) -> None:
        self._had[who] = size, self._clock()
        self._taken += size


def high_water(most: int, connections: int) -> int:
    """Return how many bytes may wait to leave on the newest of so many connections."""
    return max(min(most, LEAST_OUT), min(most, OUT // max(1, connections)))
