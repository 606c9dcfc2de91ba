"""The readers of a worker: one for each group and partition that is polled here, kept warm between.

At most `kafka.consumers` are open. The next one takes the place of the one that
was unused longest; when all are in use it is refused for a moment. Idle readers end by themselves.

One lock guards the table; it is never held over I/O.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from router.backends.kafka.reader import PrefetchingReader
from router.errors import BackendUnavailableError, RouterError, SubscriptionBusyError

CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ReaderKey:
    """A group and a topic as Kafka calls them, and a partition as the router numbers it."""

    group: str
    topic: str
    partition: int


class ReaderPool:
    """Hands readers out to one consumer at a time; calls may be made from many threads."""

    def __init__(self, make: Callable[[ReaderKey], PrefetchingReader], limit: int) -> None:
        self._make = make
        self._limit = max(1, limit)
        self._lock = threading.Lock()
        self._readers: OrderedDict[ReaderKey, PrefetchingReader] = OrderedDict()
        self._taken: set[ReaderKey] = set()
        self._closed = False

    def take(self, key: ReaderKey) -> PrefetchingReader:
        """Return the reader of a group and partition; raise SubscriptionBusyError."""
        evicted: PrefetchingReader | None = None
        with self._lock:
            if self._closed:
                raise BackendUnavailableError("the backend is closed")
            if key in self._taken:
                raise SubscriptionBusyError(f"Another poll here reads {key.topic} as {key.group}.")
            reader = self._readers.get(key)
            if reader is None or not reader.hold():
                if reader is None and len(self._readers) >= self._limit:
                    evicted = self._evict()
                reader = self._readers[key] = self._make(key)
            self._readers.move_to_end(key)
            self._taken.add(key)
        if evicted is not None:
            evicted.end(BackendUnavailableError("the reader made room for another"))
        return reader

    def _evict(self) -> PrefetchingReader:
        for key, reader in self._readers.items():
            if key not in self._taken:
                del self._readers[key]
                return reader
        raise SubscriptionBusyError(
            f"All {self._limit} Kafka consumers of this worker are in use (kafka.consumers).",
            retry_after=1,
        )

    def give_back(self, key: ReaderKey, reader: PrefetchingReader) -> None:
        """Take a reader back from its consumer; it goes on reading for a while."""
        with self._lock:
            self._taken.discard(key)
            keeps = self._readers.get(key) is reader
        if keeps:
            reader.detach()

    def drop(self, key: ReaderKey, reader: PrefetchingReader) -> None:
        """Take a reader back that is not used again."""
        with self._lock:
            self._taken.discard(key)
            if self._readers.get(key) is reader:
                del self._readers[key]
        reader.end(BackendUnavailableError("the reader is closed"))

    def in_use(self, group: str, topic: str) -> set[int]:
        """Return the partitions on which a consumer of the group is open here."""
        with self._lock:
            return {k.partition for k in self._taken if (k.group, k.topic) == (group, topic)}

    def end(self, topic: str, group: str | None, reason: RouterError) -> None:
        """End the readers of a topic, or of one group on it; their consumers hear the reason."""
        with self._lock:
            keys = [k for k in self._readers if k.topic == topic and group in {None, k.group}]
            readers = [self._readers.pop(key) for key in keys]
        _end(readers, reason)

    def close(self) -> None:
        """End all readers and wait for their threads, within a bound."""
        with self._lock:
            self._closed = True
            readers = list(self._readers.values())
            self._readers.clear()
        _end(readers, BackendUnavailableError("the backend is closed"))
        deadline = time.monotonic() + CLOSE_SECONDS
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))


def _end(readers: Iterable[PrefetchingReader], reason: RouterError) -> None:
    for reader in readers:
        reader.end(reason)
