"""Owns what happens behind the journal: filling segments, checkpoints, cutting the journal.

A flush writes what is unflushed into segments, unsynced. A checkpoint flushes, syncs all segments,
then tells the metadata in one transaction how far ledgers, cursors and producers are on disk, and
then removes the journal files that nothing needs any more. Only one of them runs at a time, under
one lock, with all work on files in one thread; so does whatever removes segments.

Entries and marks are stored only if their round was synced. A cursor may be stored with
acknowledgements whose round was not; that only makes durable what was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from router.broker.ledger import rows
from router.broker.ledger.database import Database
from router.broker.ledger.faults import StoreError
from router.broker.ledger.journal import Journal, JournalFiles
from router.broker.ledger.partition import Ledger, Tails
from router.broker.ledger.records import Record
from router.broker.ledger.rows import Checkpoint, SubscriptionRecord
from router.broker.ledger.writing import Segments, SegmentWriter
from router.quoting import said

T = TypeVar("T")
MAX_JOURNALS: Final = 8
"""When so many journal files wait to be cut, the disk does not keep up."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the keeper works with."""

    journal: Journal
    files: JournalFiles
    writer: SegmentWriter
    metadata: Database
    tails: Tails


@dataclass(frozen=True, slots=True)
class Work:
    """Records of one ledger to be written behind its segments."""

    ledger: Ledger
    segments: Segments
    records: list[Record]
    roll_ms: int


RollAge = Callable[[Ledger], int]


def take_work(tails: Tails, roll_ms: RollAge) -> list[Work]:
    """Take what is unflushed from all ledgers."""
    taken, tails.unflushed = tails.unflushed, {}
    return [
        Work(ledger, ledger.segments, ledger.take_unflushed(), roll_ms(ledger))
        for ledger in taken
        if ledger.unflushed
    ]


def write_work(writer: SegmentWriter, work: Iterable[Work]) -> list[Segments]:
    """Write it, and return the segments that each ledger has then."""
    return [writer.append(w.ledger.id, w.segments, w.records, w.roll_ms) for w in work]


def finish_work(tails: Tails, work: Iterable[Work], segments: Iterable[Segments]) -> None:
    """Tell the ledgers that it is written."""
    for done, after in zip(work, segments, strict=True):
        if done.ledger.deleted:
            continue
        tails.add(done.ledger.flushed(done.records, after))
        tails.changed[done.ledger] = None


def _cut_journal(files: JournalFiles, number: int, everything: bool) -> None:
    """Part with the journal files below a number; no spares stay where all of it goes."""
    if everything:
        files.remove(number)
        files.tidy()
    else:
        files.release(number)


@dataclass(frozen=True, slots=True)
class Calls:
    """What the keeper asks and tells the store: how old a segment gets, errors, work done."""

    roll_ms: RollAge
    failed: Callable[[BaseException], None]
    after: Callable[[], None]


class Keeper:
    """Moves entries from tails to segments in the background, and what goes with it."""

    def __init__(
        self,
        tools: Tools,
        cache: int,
        calls: Calls,
    ) -> None:
        self._tools = tools
        self._cache = cache
        self._roll_ms = calls.roll_ms
        self._failed = calls.failed
        self._after = calls.after
        self._thread = ThreadPoolExecutor(1, "keeper")
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._cut = tools.journal.number
        self._ended = False
        self.cursors: dict[SubscriptionRecord, None] = {}

    def watch(self) -> None:
        """Begin a flush or a checkpoint if one is due; called after every round."""
        if self._task is not None and not self._task.done():
            return
        if self._tools.journal.number > self._cut:
            self._task = asyncio.ensure_future(self._quietly(everything=False))
        elif self._tools.tails.unflushed_size > self._cache // 2:
            self._task = asyncio.ensure_future(self._quietly(everything=None))

    @property
    def behind(self) -> bool:
        """Whether the segments do not keep up with the journal."""
        tools = self._tools
        waiting = tools.journal.number - self._cut
        return waiting >= MAX_JOURNALS or tools.tails.unflushed_size > self._cache

    async def checkpoint(self, *, everything: bool = False) -> None:
        """Make all that was synced so far stand in segments and metadata, and cut the journal.

        `everything`: no round is under way and none will come, so the whole journal goes. Raises
        StoreError if the disk fails.
        """
        async with self.alone():
            await self._checkpoint(everything)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold off flushes and checkpoints; an error within fails the store, the disk's or another.

        Raises StoreError then, and if the store failed or closed before: what a flush that failed
        had taken from the tails is in the journal alone, which must not be cut any more.
        """
        async with self._lock:
            if self._ended or self._tools.journal.failed.done():
                raise StoreError("the store failed or is closed")
            try:
                yield
            except Exception as error:  # whatever it was: see above
                self._failed(error)
                raise StoreError(f"the store failed: {said(error)}") from error

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work on files in the keeper's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Wait for work under way, then close the segments."""
        if self._task is not None:
            await asyncio.wait([self._task])
        async with self._lock:
            await self.in_thread(self._tools.writer.close)
        self._thread.shutdown()

    async def _quietly(self, everything: bool | None) -> None:
        try:
            async with self.alone():
                await (self._flush() if everything is None else self._checkpoint(everything))
        except StoreError:
            return  # the store knows already
        # More may have come meanwhile, and who waits for this may be waited for.
        asyncio.get_running_loop().call_soon(self._after)

    async def _flush(self) -> None:
        tools = self._tools
        work = take_work(tools.tails, self._roll_ms)
        if work:
            segments = await self.in_thread(lambda: write_work(tools.writer, work))
            finish_work(tools.tails, work, segments)
        tools.tails.evict(self._cache)

    async def _checkpoint(self, everything: bool) -> None:
        tools = self._tools
        # Every round of the files below is synced, so the flush takes all their entries.
        number = tools.journal.number + everything
        await self._flush()
        changed, tools.tails.changed = tools.tails.changed, {}
        checkpoint = Checkpoint(number, everything, [ledger.change() for ledger in changed])
        for record in self.cursors:
            checkpoint.cursors.append((record.cursor.dump(), record.last_used_ms, record.id))
            record.saved_used_ms = record.last_used_ms
        self.cursors.clear()
        await self.in_thread(tools.writer.sync)
        await tools.metadata.run(lambda c: rows.save_checkpoint(c, checkpoint))
        await self.in_thread(lambda: _cut_journal(tools.files, number, everything))
        self._cut = number
        self._ended = everything
