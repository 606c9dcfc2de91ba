"""Owns what of the segments stays in the system's memory once it is on disk: the newest stretches.

A broker that takes all it is sent would fill the machine's memory with segments that nobody reads
soon, and take new pages for each byte, which costs more than the writing (several times as much
where a hypervisor has yet to find them). So of what is on disk the system is asked to keep the
newest bytes only, and the pages come back for the next segments. Consumers that follow find the
entries in the tails, those a little behind in the system's memory, and others on disk.

The alternative, writing past the system's memory (O_DIRECT), leaves nothing for those a little
behind, and is not to be had on every file system.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from router.broker.ledger.disk import Disk

KEPT: Final = 256 << 20
"""Bytes of segments that may stay in memory."""
LEAST: Final = 256 << 10
"""Shorter stretches are left to the system: there are many of them, and little in each."""


class Stretch(NamedTuple):
    """Bytes of a file."""

    path: Path
    start: int
    size: int


class Behind:
    """Lets the pages of segments go some way behind what is being written."""

    def __init__(self, disk: Disk, kept: int = KEPT, least: int = LEAST) -> None:
        self._disk = disk
        self._kept = kept
        self._least = least
        self._size = 0
        self._written: list[Stretch] = []
        self._synced: deque[Stretch] = deque()

    def wrote(self, path: Path, start: int, size: int) -> None:
        """Take note of bytes that were written."""
        if size >= self._least:
            self._written.append(Stretch(path, start, size))

    def synced(self) -> None:
        """Take note that all of them are on disk, and let the oldest go if there are too many."""
        for stretch in self._written:
            self._size += stretch.size
            self._synced.append(stretch)
        self._written.clear()
        while self._size > self._kept:
            oldest = self._synced.popleft()
            self._size -= oldest.size
            self._disk.uncache(*oldest)
