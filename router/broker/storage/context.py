"""Owns the parts that a store is made of, and the memory that its ledgers share."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.broker.disk.files import Disk
from router.broker.storage.journal import Journal, JournalFiles
from router.broker.storage.options import StoreOptions
from router.broker.storage.publish_sources import PublishSources
from router.broker.storage.reading import SegmentReader
from router.broker.storage.records import KeepMessages, LatestTime
from router.broker.storage.removals import Removals
from router.broker.storage.writing import SegmentLimits, SegmentWriter

if TYPE_CHECKING:
    from router.broker.storage.partition import Ledger

_READER_THREADS: Final = 4


@dataclass(slots=True)
class TailCache:
    """What all ledgers together hold in memory: bytes, and whose they are, the oldest first.

    `changed`: the ledgers that were flushed since the last checkpoint. More than `unflushed_limit`
    bytes that are not flushed hold publishing up.
    """

    unflushed: dict[Ledger, None] = field(default_factory=dict)
    unflushed_size: int = 0
    unflushed_limit: int = 0
    changed: dict[Ledger, None] = field(default_factory=dict)
    flushed: deque[Flushed] = field(default_factory=deque)
    flushed_size: int = 0

    def lower_limit(self, cache: int) -> None:
        """Have at most `cache` bytes be unflushed; what recovery left may be more for a while."""
        limit = self.unflushed_size + cache // 2
        if self.unflushed_limit:
            limit = min(limit, self.unflushed_limit)
        self.unflushed_limit = max(cache, limit)

    def add(self, flushed: Flushed) -> None:
        """Count entries that are in segments as flushed."""
        self.unflushed_size -= flushed.size
        self.flushed_size += flushed.size
        self.flushed.append(flushed)

    def evict(self, limit: int) -> None:
        """Let the oldest flushed entries go until no more bytes than `limit` are held."""
        while self.flushed and self.flushed_size + self.unflushed_size > limit:
            oldest = self.flushed.popleft()
            self.flushed_size -= oldest.size
            oldest.ledger.evict(oldest)


@dataclass(frozen=True, slots=True)
class Flushed:
    """Entries of a ledger that are in segments and may leave the tail."""

    ledger: Ledger
    first: int
    next: int
    size: int


@dataclass(frozen=True, slots=True)
class StoreContext:
    """The data folder of a store, and the parts that work on it."""

    folder: Path
    options: StoreOptions
    disk: Disk
    journal: Journal
    files: JournalFiles
    removals: Removals
    writer: SegmentWriter
    reader: SegmentReader
    readers: Executor
    tails: TailCache
    keep_messages: KeepMessages
    sources: PublishSources = field(default_factory=PublishSources)

    @classmethod
    def build(
        cls,
        folder: Path,
        options: StoreOptions,
        disk: Disk,
        latest_time: LatestTime,
        keep_messages: KeepMessages,
    ) -> StoreContext:
        """Return the parts, for the running event loop; no file is opened."""
        files = JournalFiles(disk, folder / "journal", options.journal, relaxed=options.relaxed)
        limits = SegmentLimits(options.segment, options.index_step, options.open_files, latest_time)
        removals = Removals()
        return cls(
            folder,
            options,
            disk,
            Journal(files, options.relaxed),
            files,
            removals,
            SegmentWriter(disk, folder / "ledgers", limits, removals),
            SegmentReader(disk, folder / "ledgers", latest_time),
            ThreadPoolExecutor(_READER_THREADS, "reader"),
            TailCache(),
            keep_messages,
        )
