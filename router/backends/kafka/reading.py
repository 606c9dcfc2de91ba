"""Readers of a partition that no group knows of."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import dropwhile

from router.backends.kafka.offsets import Offsets
from router.backends.kafka.reader import Reader
from router.errors import BackendUnavailableError
from router.model import Stored


class KafkaReader:
    """Reads one partition from an offset on; see `Reader` of the protocol."""

    def __init__(
        self, offsets: Offsets, reader: Reader, first: int, let_go: Callable[[], None]
    ) -> None:
        self._offsets = offsets
        self._reader = reader
        self._first = first
        self._let_go = let_go
        self._closed = False

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what comes next; see the protocol."""
        if self._closed:
            raise BackendUnavailableError("this reader is closed")
        reader, deadline = self._reader, time.monotonic() + timeout
        found: list[Stored] = []
        full = self._take(found, limit, max_bytes)
        if full or found:
            return found
        end = self._offsets.end(reader.topic, reader.partition, deadline)
        while not full and reader.more(end, deadline):
            full = self._take(found, limit, max_bytes)
        return found

    def _take(self, found: list[Stored], limit: int, max_bytes: int) -> bool:
        full = self._reader.take(found, max(1, limit), max_bytes)
        if found and found[0].position.entry < self._first:
            # It was opened behind the end, and waits for its position.
            found[:] = dropwhile(lambda stored: stored.position.entry < self._first, found)
            return False
        return full

    def close(self) -> None:
        """Let go; see the protocol."""
        if not self._closed:
            self._closed = True
            self._let_go()
