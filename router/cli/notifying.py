"""What systemd is told of `serve` and `router broker --http`, beside what they say to their user.

The service is up when the broker has opened its store and HTTP is answered; a backend of other
machines may still be away. From then on a sign of life follows each answer of the HTTP server to
`/health`, be there a broker or not: one that opens a large log after a crash, or waits for a full
disk, is the supervisor's to keep, and systemd ending both would only begin that again. An answer
that does not come is asked for again soon, so that a machine that is slow for moments is no reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from router.systemd import Notifier

LOOK_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0
"""Time to the next try when the HTTP server does not answer."""


class Herald:
    """Tells systemd when the service is up, and then that it lives."""

    def __init__(
        self,
        notifier: Notifier,
        is_up: Callable[[], bool],
        lives: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_up` returns whether all of the service is up, `lives` whether HTTP is answered."""
        self._clock = clock
        self._notifier = notifier
        self._is_up = is_up
        self._lives = lives
        self._up = False
        self._due = 0.0

    def watch(self, announce: Callable[[], float]) -> float:
        """Announce, tell what there is to tell, and return when to call again."""
        wait = announce()
        if not self._notifier.listened_to:
            return wait
        now = self._clock()
        if not self._up:
            self._up = self._is_up()
            if not self._up:
                return min(wait, LOOK_SECONDS)
            self._notifier.ready()
        if (interval := self._notifier.interval) is None:
            return wait
        if now >= self._due:
            if lives := self._lives():
                self._notifier.alive()
            self._due = now + (interval if lives else min(interval, RETRY_SECONDS))
        return min(wait, max(0.0, self._due - now))
