"""Pauses between tries of what failed: each is twice the last, up to a longest one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from router.errors import RouterError

T = TypeVar("T")


class Backoff:
    """Pauses from `first` to `longest` seconds; `longest` None: all are the same.

    `seconds` is the next pause. Not for several threads at once without a lock of their own.
    """

    __slots__ = ("_first", "_longest", "seconds")

    def __init__(self, first: float, longest: float | None = None) -> None:
        self._first = first
        self._longest = first if longest is None else longest
        self.seconds = first

    def next(self) -> float:
        """Return the next pause in seconds, and double the one after it."""
        pause = self.seconds
        self.seconds = min(self._longest, pause * 2)
        return pause

    def halve(self, times: float) -> None:
        """Halve the next pause so many times, down to the first one's length."""
        self.seconds = max(self._first, self.seconds / 2.0**times)

    def reset(self) -> None:
        """Begin with the first pause again: a try went well."""
        self.seconds = self._first

    def sleep(self, deadline: float) -> bool:
        """Pause before the next try; return False, at once, if that would be after the deadline.

        `deadline` is a time of `time.monotonic`.
        """
        pause = self.next()
        if time.monotonic() + pause >= deadline:
            return False
        time.sleep(pause)
        return True


def retry(attempt: Callable[[], T], backoff: Backoff, deadline: float) -> T:
    """Return what the attempt returns, repeated while its failure may pass and time is left.

    Raises the last failure, and one that a retry does not mend at once.
    """
    while True:
        try:
            return attempt()
        except RouterError as error:
            if not error.retriable or not backoff.sleep(deadline):
                raise
