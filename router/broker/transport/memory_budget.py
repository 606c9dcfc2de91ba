"""What all connections together may hold: frames that arrive, and what waits to be sent.

Theory of operation. A frame may have 5 MiB, and is handled when it is whole. A thousand producers
that each send one at the same time would have the broker hold 5 GiB before it has seen a message.
So the rest of a large frame is read only when the budget has space for all of it; the other
connections are not read from until it is their turn. A connection that has reserved it needs
nothing else to finish its frame, so that the queue always moves. The alternative, to stop reading
from all connections when there is too much, could stop them all in the middle of their frames, for
ever.

What waits to be sent is bounded for each connection, and less for each if there are many.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MIN_BUDGETED_FRAME_BYTES: Final = 64 << 10
"""Smaller frames arrive with the read that begins them, or the next."""
MAX_ARRIVING_BYTES: Final = 64 << 20
MAX_UNSENT_BYTES: Final = 128 << 20
MIN_HIGH_WATER_BYTES: Final = 64 << 10
MAX_FRAME_SECONDS: Final = 120.0
"""Time for the rest of a frame while others wait for its memory."""


class FrameBudget:
    """Bytes of large frames that arrive, by their owners; in the order of the requests."""

    def __init__(
        self, limit: int = MAX_ARRIVING_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._used = 0
        self._held: dict[object, tuple[int, float]] = {}
        self._waiting: dict[object, tuple[int, Callable[[], None]]] = {}

    def reserve(self, owner: object, size: int, reserved: Callable[[], None]) -> bool:
        """Reserve memory for a frame; False: there is none now, and `reserved` is called later."""
        if self._waiting or not self._fits(size):
            self._waiting[owner] = size, reserved
            return False
        self._hold(owner, size)
        return True

    def release(self, owner: object) -> None:
        """Free the memory of an owner, or its place in the queue."""
        self._waiting.pop(owner, None)
        self._used -= self._held.pop(owner, (0, 0.0))[0]
        while self._waiting:
            following, (size, reserved) = next(iter(self._waiting.items()))
            if not self._fits(size):
                return
            del self._waiting[following]
            self._hold(following, size)
            reserved()

    def overdue(self, owner: object) -> bool:
        """Return whether an owner holds memory for too long while others wait."""
        if owner not in self._held or not self._waiting:
            return False
        return self._held[owner][1] <= self._clock() - MAX_FRAME_SECONDS

    def _fits(self, size: int) -> bool:
        return not self._used or self._used + size <= self._limit

    def _hold(self, owner: object, size: int) -> None:
        self._held[owner] = size, self._clock()
        self._used += size


def high_water(limit: int, connections: int) -> int:
    """Return how many bytes may wait to be sent on the newest of so many connections."""
    share = MAX_UNSENT_BYTES // max(1, connections)
    return max(min(limit, MIN_HIGH_WATER_BYTES), min(limit, share))
