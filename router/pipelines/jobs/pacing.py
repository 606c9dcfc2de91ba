"""The bound on how fast rows are published: so many a second, whatever the size of a batch."""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """Makes its caller wait so that rows leave no faster than a rate.

    A batch may start once all rows before it had their time: within any span of `t` seconds no more
    than `rate x t` rows start, and one batch. A caller that was slow gets nothing saved up for it:
    a store that comes back after a failure is not flooded. `wait` sleeps for so many seconds and
    returns whether to give up, as `threading.Event.wait` does.
    """

    def __init__(
        self, rate: float, clock: Callable[[], float], wait: Callable[[float], bool]
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._free = clock()

    def before(self, rows: int) -> bool:
        """Wait until this many rows may start; return False when told to stop instead."""
        start = max(self._free, self._clock())
        while (left := start - self._clock()) > 0:
            if self._wait(left):
                return False
        self._free = start + rows / self._rate
        return True
