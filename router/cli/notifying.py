"""What systemd is told of `serve` and `router broker --http`, beside what they say to their user.

The service is up when the broker has opened its store and HTTP is answered; a backend of other
machines may still be away. A sign of life follows each answer of the HTTP server to `/health`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from router.systemd import Notifier

LOOK_SECONDS: Final = 0.1


class Herald:
    """Tells systemd when the service is up, and then that it lives."""

    def __init__(
        self,
        notifier: Notifier,
        answers: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answers` returns whether the service is up."""
        self._clock = clock
        self._notifier = notifier
        self._answers = answers
        self._up = False
        self._due = 0.0

    def watch(self, announce: Callable[[], float]) -> float:
        """Announce, tell what there is to tell, and return when to call again."""
        wait = announce()
        if not self._notifier.listened_to:
            return wait
        now = self._clock()
        if not self._up:
            self._up = self._answers()
            if not self._up:
                return min(wait, LOOK_SECONDS)
            self._notifier.ready()
        if (interval := self._notifier.interval) is None:
            return wait
        if now >= self._due:
            self._due = now + interval
            if self._answers():
                self._notifier.alive()
        return min(wait, max(0.0, self._due - now))
