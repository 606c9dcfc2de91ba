"""Values that are read from elsewhere, remembered for a few seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from router.errors import BackendTimeoutError, BackendUnavailableError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# How long not to ask again when nobody answered: the one who asks may have to wait for that.
RETRY_SECONDS: Final = 5.0
# How old a value may become while nobody answers who could say whether it still holds.
MAX_STALE_SECONDS: Final = 3_600.0


class TTLMap(Generic[K, T]):
    """Values that hold for `seconds`, at most `limit` of them, the oldest removed first.

    Callable from many threads or greenlets.
    """

    __slots__ = ("_clock", "_found", "_limit", "_lock", "_seconds")

    def __init__(self, seconds: float, limit: int, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._limit = limit
        self._clock = clock
        self._found: dict[K, tuple[T, float]] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> T | None:
        """Return the value, None if there is none or its time is over."""
        found = self._found.get(key)
        return None if found is None or found[1] <= self._clock() else found[0]

    def __contains__(self, key: K) -> bool:
        """Return whether there is a value, even if its time is over."""
        return key in self._found

    def put(self, key: K, value: T) -> None:
        """Keep a value from now on."""
        until = self._clock() + self._seconds
        with self._lock:
            self._found.pop(key, None)
            while len(self._found) >= self._limit:
                del self._found[next(iter(self._found))]
            self._found[key] = value, until

    def remove(self, key: K) -> None:
        """Forget a value, if there is one."""
        with self._lock:
            self._found.pop(key, None)


class _Known(Generic[T]):
    __slots__ = ("reading", "seen", "until", "value")

    def __init__(self, value: T, seen: float, until: float) -> None:
        self.value = value
        self.seen = seen
        self.until = until
        self.reading = False


class TTLCache(Generic[K, T]):
    """Reads a value when it is asked for, again after `keep` seconds; at most `limit` of them.

    What was not read for longest makes room: whoever asks for many names that nobody else uses
    pushes out such names, and not those that are in use and read again and again.

    One caller reads anew, others take the old value meanwhile. When reading fails because nobody
    answers, the old value stays in force for up to an hour: an outage of what keeps the keys must
    not end the publishing that they sign. Callable from many threads or greenlets.
    """

    def __init__(
        self, read: Callable[[K], T], keep: float, limit: int, clock: Callable[[], float]
    ) -> None:
        self._read = read
        self._keep = keep
        self._limit = limit
        self._clock = clock
        self._known: dict[K, _Known[T]] = {}  # by when it was read, for those in use last
        self._lock = threading.Lock()

    def get(self, name: K) -> T:
        """Return the value; raise what reading raises where no old value can stand in."""
        known = self._known.get(name)
        now = self._clock()
        if known is None:
            return self._first(name, now)
        if now < known.until or (known.reading and now < known.seen + MAX_STALE_SECONDS):
            return known.value
        return self._again(name, known, now)

    def forget(self, name: K) -> None:
        """Read it the next time."""
        with self._lock:
            self._known.pop(name, None)

    def _first(self, name: K, now: float) -> T:
        value = self._read(name)
        with self._lock:
            if len(self._known) >= self._limit:
                del self._known[next(iter(self._known))]
            self._known[name] = _Known(value, now, now + self._keep)
        return value

    def _again(self, name: K, known: _Known[T], now: float) -> T:
        known.reading = True
        try:
            known.value = self._read(name)
        except (BackendUnavailableError, BackendTimeoutError):
            if now >= known.seen + MAX_STALE_SECONDS:
                raise
            known.until = self._clock() + RETRY_SECONDS
        else:
            known.seen, known.until = now, now + self._keep
        finally:
            known.reading = False
        with self._lock:
            # Not if it was forgotten meanwhile: what was read may be older than that.
            if self._known.get(name) is known:
                self._known[name] = self._known.pop(name)
        return known.value
