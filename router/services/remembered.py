"""Values that are read from elsewhere, remembered for a few seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from router.errors import BackendTimeoutError, BackendUnavailableError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# How long not to ask again when nobody answered: the one who asks may have to wait for that.
RETRY: Final = 5.0
# How old a value may become while nobody answers who could say whether it still holds.
STALE: Final = 3_600.0


class _Known(Generic[T]):
    __slots__ = ("reading", "seen", "until", "value")

    def __init__(self, value: T, seen: float, until: float) -> None:
        self.value = value
        self.seen = seen
        self.until = until
        self.reading = False


class Remembered(Generic[K, T]):
    """Reads a value when it is asked for, again after `keep` seconds; at most `most` of them.

    What was not read for longest makes room: whoever asks for many names that nobody else uses
    pushes out such names, and not those that are in use and read again and again.

    One caller reads anew, others take the old value meanwhile. When reading fails because nobody
    answers, the old value stays in force for up to an hour: an outage of what keeps the keys must
    not end the publishing that they sign. Callable from many threads or greenlets.
    """

    def __init__(
        self, read: Callable[[K], T], keep: float, most: int, clock: Callable[[], float]
    ) -> None:
        self._read = read
        self._keep = keep
        self._most = most
        self._clock = clock
        self._known: dict[K, _Known[T]] = {}  # by when it was read, for those in use last
        self._lock = threading.Lock()

    def get(self, name: K) -> T:
        """Return the value; raise what reading raises where no old value can stand in."""
        known = self._known.get(name)
        now = self._clock()
        if known is None:
            return self._first(name, now)
        if now < known.until or (known.reading and now < known.seen + STALE):
            return known.value
        return self._again(name, known, now)

    def forget(self, name: K) -> None:
        """Read it the next time."""
        with self._lock:
            self._known.pop(name, None)

    def _first(self, name: K, now: float) -> T:
        value = self._read(name)
        with self._lock:
            if len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[name] = _Known(value, now, now + self._keep)
        return value

    def _again(self, name: K, known: _Known[T], now: float) -> T:
        known.reading = True
        try:
            known.value = self._read(name)
        except (BackendUnavailableError, BackendTimeoutError):
            if now >= known.seen + STALE:
                raise
            known.until = self._clock() + RETRY
        else:
            known.seen, known.until = now, now + self._keep
        finally:
            known.reading = False
        with self._lock:
            # Not if it was forgotten meanwhile: what was read may be older than that.
            if self._known.get(name) is known:
                self._known[name] = self._known.pop(name)
        return known.value
