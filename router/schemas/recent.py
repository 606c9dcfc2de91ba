"""What was made lately and may be wanted again, bounded by weight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by their keys; those not asked for longest go first. For many threads."""

    def __init__(self, limit: int, weigh: Callable[[K], int]) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._found: dict[K, V] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: K, make: Callable[[K], V]) -> V:
        """Return the value of a key, made if it is not there; what `make` raises is not kept."""
        with self._lock:
            if key in self._found:
                self._found[key] = value = self._found.pop(key)
                return value
        value = make(key)
        with self._lock:
            if key not in self._found:
                self._weight += self._weigh(key)
                self._found[key] = value
            while self._weight > self._limit:
                oldest = next(iter(self._found))
                del self._found[oldest]
                self._weight -= self._weigh(oldest)
        return value
