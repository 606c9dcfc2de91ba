"""Who published which entries: in memory, as runs of entries, the newest of all partitions.

A run begins with an entry whose source differs from that of the entry before it in its partition.
So a steady publisher costs one comparison an entry, and no memory. After a restart, and of what is
dropped because there is too much, the source is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import itemgetter
from typing import Final

from router.model.publish_source import NO_SOURCE

MAX_BYTES: Final = 8 << 20
RUN_BYTES: Final = 200
"""What a run takes beside its source, about."""
LEDGER_BYTES: Final = 1_000
"""What a ledger that has runs takes beside them, about."""


class PublishSources:
    """The runs of all ledgers; `latest` has the source of the last entry of each that has runs."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.latest: dict[int, bytes] = {}
        self._runs: dict[int, deque[tuple[int, bytes]]] = {}
        self._order: deque[int] = deque()  # ledgers of all runs, the oldest run first
        self._bytes = 0
        self._max_bytes = max_bytes

    def begin(self, ledger: int, entry: int, source: bytes) -> None:
        """Note that entries from this one on have another source than those before it."""
        self.latest[ledger] = source
        if (runs := self._runs.get(ledger)) is None:
            runs = self._runs[ledger] = deque()
            self._bytes += LEDGER_BYTES
        runs.append((entry, source))
        self._order.append(ledger)
        self._bytes += len(source) + RUN_BYTES
        while self._bytes > self._max_bytes:
            self._drop(self._order.popleft())

    def find(self, ledger: int, entry: int) -> bytes:
        """Return the source of an entry, NO_SOURCE: it is not known."""
        runs = self._runs.get(ledger, ())
        place = bisect_right(runs, entry, key=itemgetter(0))
        return runs[place - 1][1] if place else NO_SOURCE

    def _drop(self, ledger: int) -> None:
        """Drop the oldest run of a ledger; one that has no other begins again with its next."""
        runs = self._runs[ledger]
        _, source = runs.popleft()
        self._bytes -= len(source) + RUN_BYTES
        if not runs:
            del self._runs[ledger], self.latest[ledger]
            self._bytes -= LEDGER_BYTES
