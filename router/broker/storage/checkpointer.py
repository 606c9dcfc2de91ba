"""Owns what happens behind the journal: filling segments, checkpoints, cutting the journal.

A flush writes what is unflushed into segments, unsynced. A checkpoint flushes, syncs all segments,
writes to the metadata in one transaction how far ledgers, cursors and producers are on disk, and
then removes the journal files that are not needed any more. Flushes, checkpoints and the removal of
segments exclude each other by one lock; all their work on files is done in one thread.

Entries and producer states are stored only if their commit group was synced. A cursor may be stored
with acknowledgements whose commit group was not; that only makes durable what a client requested.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from router.broker.disk.database import Database
from router.broker.disk.faults import StoreError
from router.broker.storage import rows
from router.broker.storage.catalog import StorageCatalog
from router.broker.storage.context import StoreContext, TailCache
from router.broker.storage.partition import Ledger
from router.broker.storage.records import StoredRecord
from router.broker.storage.rows import Checkpoint
from router.broker.storage.writing import Segments, SegmentWriter
from router.errors.quoting import failure_text

T = TypeVar("T")
MAX_UNCUT_JOURNALS: Final = 8
"""When so many journal files wait to be cut, the disk does not keep up."""
MAX_LEDGERS_WRITTEN_AT_END: Final = 1_000
"""To make a folder and a file takes 0.4 ms of processor time. So that a stop does not take seconds,
entries of more ledgers stay in the journal, which the next start reads in a fifth of that time."""
LEDGERS_RELIEVED: Final = 250
"""A tenth of a second's processor time in one thread, to be spent once a second."""


@dataclass(frozen=True, slots=True)
class FlushWork:
    """Records of one ledger to be written behind its segments."""

    ledger: Ledger
    segments: Segments
    records: list[StoredRecord]
    roll_ms: int


RollAge = Callable[[Ledger], int]


def begin_flush(tails: TailCache, roll_ms: RollAge, limit: int | None = None) -> list[FlushWork]:
    """Take what is unflushed from the ledgers that wait for longest, at most so many, None: all."""
    taken = list(islice(tails.unflushed, limit))
    for ledger in taken:
        del tails.unflushed[ledger]
    return [
        FlushWork(ledger, ledger.segments, ledger.take_unflushed(), roll_ms(ledger))
        for ledger in taken
        if ledger.unflushed
    ]


def write_flush(writer: SegmentWriter, work: Iterable[FlushWork]) -> list[Segments]:
    """Write it, and return the segments that each ledger has then."""
    return [writer.append(w.ledger.id, w.segments, w.records, w.roll_ms) for w in work]


def end_flush(tails: TailCache, work: Iterable[FlushWork], segments: Iterable[Segments]) -> None:
    """Give the ledgers the segments that hold their records now."""
    for done, after in zip(work, segments, strict=True):
        if done.ledger.discarded:
            continue
        tails.add(done.ledger.flushed(done.records, after))
        tails.changed[done.ledger] = None


def _cut_journal(context: StoreContext, number: int, everything: bool) -> None:
    """Part with the journal files below a number; no spares stay where all of it goes."""
    files = context.files
    if everything:
        files.remove(number)
        files.tidy()
    else:
        context.removals.run(files.path(number), lambda: files.release(number))


class Checkpointer:
    """Moves entries from tails to segments in the background, and what goes with it.

    A checkpoint is due if the journal writes a file of a higher number than `cut`, a flush if more
    than `flush_bytes` are in no segment. `failed` is called with an error, `after` when work in the
    background ended.
    """

    def __init__(
        self,
        context: StoreContext,
        metadata: Database,
        catalog: StorageCatalog,
        *,
        failed: Callable[[BaseException], None],
        after: Callable[[], None],
    ) -> None:
        self._context = context
        self._cache = context.options.cache
        self._roll_ms = catalog.roll_ms
        self._failed = failed
        self._after = after
        self._thread = ThreadPoolExecutor(1, "keeper")
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.cut = context.journal.number
        self.flush_bytes = self._cache // 2
        self._ended = False
        self.metadata = metadata
        self.cursors = catalog.unsaved
        self._values = catalog.values

    @property
    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def watch(self) -> None:
        """Begin a flush or a checkpoint if one is due and none is under way."""
        if self._busy:
            return
        if self._context.journal.number > self.cut:
            self._begin(self.write_checkpoint)
        elif self._context.tails.unflushed_size > self.flush_bytes:
            self._begin(self._flush)

    def relieve(self) -> None:
        """Begin a flush of a part of the ledgers if a stop would leave them in the journal.

        To be called once a second: thousands of topics that were created or filled together are in
        segments a minute later, and not replayed by a start.
        """
        if not self._busy and len(self._context.tails.unflushed) > MAX_LEDGERS_WRITTEN_AT_END:
            self._begin(partial(self._flush, LEDGERS_RELIEVED))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(self._run_in_background(work))

    async def checkpoint(self) -> None:
        """Make all that was synced so far stand in segments and metadata, and cut the journal.

        Raises StoreError if the disk fails.
        """
        async with self.alone():
            await self.write_checkpoint()

    async def finish(self) -> None:
        """Bring all to rest: no commit group is under way and none will come.

        The whole journal goes, unless it has entries of too many ledgers: then it is synced, and
        recovered by the next start. Raises StoreError if the disk fails.
        """
        async with self.alone():
            if len(self._context.tails.unflushed) <= MAX_LEDGERS_WRITTEN_AT_END:
                await self.write_checkpoint(everything=True)
            else:
                # In relaxed mode what was acknowledged last may not be on disk.
                await self.in_thread(self._context.files.sync)
                self._ended = True

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold off flushes and checkpoints; an error within fails the store, the disk's or another.

        Raises StoreError then, and if the store failed or closed before: what a flush that failed
        had taken from the tails is in the journal alone, which must not be cut any more.
        """
        async with self._lock:
            if self._ended or self._context.journal.failed.done():
                raise StoreError("the store failed or is closed")
            try:
                yield
            except Exception as error:  # whatever it was: see above
                self._failed(error)
                raise StoreError(f"the store failed: {failure_text(error)}") from error

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work on files in the checkpointer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Wait for work under way, then close the segments."""
        if self._task is not None:
            await asyncio.wait([self._task])
        async with self._lock:
            await self.in_thread(self._context.writer.close)
            if not self._context.journal.failed.done():
                await self.in_thread(self._context.removals.release)
        self._thread.shutdown()

    async def _run_in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self.alone():
                await work()
        except StoreError:
            return  # the store knows already
        # More may have come meanwhile.
        asyncio.get_running_loop().call_soon(self._after)

    async def _flush(self, limit: int | None = None) -> None:
        context = self._context
        work = begin_flush(context.tails, self._roll_ms, limit)
        if work:
            segments = await self.in_thread(lambda: write_flush(context.writer, work))
            end_flush(context.tails, work, segments)
        context.tails.evict(self._cache)

    async def write_checkpoint(self, *, everything: bool = False) -> None:
        """Do what `checkpoint` does, within `alone`; `everything`: see `finish`."""
        context = self._context
        # Every commit group of the files below is synced, so the flush takes all their entries.
        number = context.journal.number + everything
        await self._flush()
        changed, context.tails.changed = context.tails.changed, {}
        checkpoint = Checkpoint(number, everything, [ledger.change() for ledger in changed])
        for record in self.cursors:
            checkpoint.cursors.append(record.state())
            record.saved_used_ms = record.last_used_ms
        checkpoint.values = self._values.take_changes()
        self.cursors.clear()
        await self.in_thread(context.writer.sync)
        await self.metadata.run(lambda c: rows.save_checkpoint(c, checkpoint))
        await self.in_thread(lambda: _cut_journal(context, number, everything))
        self.cut = number
        self._ended = everything
