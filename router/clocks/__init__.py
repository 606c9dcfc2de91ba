"""The clocks of the front: the time of day, and deadlines on a clock that only goes forward."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return the time of day in milliseconds since 1970, as messages carry it."""
    return time.time_ns() // 1_000_000


def deadline_in(seconds: float) -> float:
    """Return the time of the monotonic clock that is so many seconds ahead."""
    return time.monotonic() + seconds


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline, never none at all."""
    return max(0.001, deadline - time.monotonic())
