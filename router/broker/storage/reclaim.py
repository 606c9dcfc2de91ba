"""Owns reclaiming space: closed segments with many deleted messages are written without them.

Theory of operation. A deletion takes numbers out of what readers get and leaves the bytes. Once at
least MIN_DELETED_SHARE of the messages that a closed segment has in its file are deleted, it is
written again without them (see rewriting); neighbours for which that holds share a file as long as
they fit. The last segment of a ledger, which may be written on, is left alone.

The new file has another name: that of the segment's next generation. It is synced, then one
transaction of the metadata puts the new segment in the place of the old ones and stores the
deletions, then the old files go. A process that ends at any point leaves one or the other in force;
files that the metadata does not name are removed before the ledger is written again, or by the
first run after a start. Deletions that are not durable yet do not count. To rewrite in place was
not taken: a reader may have the file open, and a power cut would leave neither form.

It goes on beside publishing: in short steps with pauses between them, longer ones while the journal
is written, and no lock is held but for the change of names. What cannot be read or written is left
as it is, with a warning, and tried again after RETRY_MS; only the metadata ends the store.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from errno import ENOSPC
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from router.broker.disk.faults import StoreError
from router.broker.storage import rows
from router.broker.storage.catalog import StorageCatalog
from router.broker.storage.checkpointer import Checkpointer
from router.broker.storage.context import StoreContext
from router.broker.storage.deleted_ranges import DeletedRanges
from router.broker.storage.faults import DamagedError
from router.broker.storage.partition import Ledger
from router.broker.storage.records import MAX_GAP_MESSAGES
from router.broker.storage.retention import roll_age_ms
from router.broker.storage.retention_task import RetentionTask
from router.broker.storage.rewriting import RewriteContext, SegmentRewrite
from router.broker.storage.segments import Segment
from router.errors.quoting import failure_text

MIN_DELETED_SHARE: Final = 0.25
"""Of the messages in a segment's file; three bytes are written at most for one that is freed."""
RETRY_MS: Final = 3_600_000
IDLE_PAUSE: Final = 1.0
BUSY_PAUSE: Final = 12.0
"""How long a pause is, in the time that the step before it took: while the journal is written, so
that publishing keeps nine tenths of its rate."""
_SEGMENTS_PER_SLICE: Final = 16
_LEDGERS_PER_SLICE: Final = 100

_log = structlog.get_logger()
T = TypeVar("T")


def reclaimable_bytes(segment: Segment, deleted: DeletedRanges) -> int:
    """Return about how many bytes of a segment's file deleted messages take; 0: too few of it."""
    gone = deleted.count_between(segment.first_index, segment.next_index - 1)
    held = segment.next_index - segment.first_index - segment.reclaimed
    more = gone - segment.reclaimed
    return segment.size * more // held if more > held * MIN_DELETED_SHARE else 0


def grouped(
    found: Sequence[tuple[Segment, int]], deleted: DeletedRanges, max_bytes: int, span_ms: int
) -> list[list[Segment]]:
    """Return which segments are written again, those in one list into one file.

    `found` has all segments in order, each with the bytes to reclaim of it, 0: none. Neighbours
    share a file if nothing but deleted messages is between them, as long as about `max_bytes` are
    left of them and they hold no more than `span_ms` (-1: any).
    """
    groups: list[list[Segment]] = []
    left = -1
    for segment, reclaimable in found:
        if not reclaimable:
            left = -1
            continue
        rest = segment.size - reclaimable
        if (
            0 <= left <= max_bytes - rest
            and _adjoin(groups[-1][-1], segment, deleted)
            and not 0 <= span_ms < segment.max_ms - groups[-1][0].first_ms
        ):
            groups[-1].append(segment)
            left += rest
        else:
            groups.append([segment])
            left = rest
    return groups


def _adjoin(one: Segment, following: Segment, deleted: DeletedRanges) -> bool:
    between = following.first_index - one.next_index
    return one.next_entry == following.first_entry or (
        0 < between <= MAX_GAP_MESSAGES
        and deleted.covers(one.next_index, following.first_index - 1)
    )


class Reclaimer:
    """Gives space back, one ledger at a time."""

    def __init__(
        self,
        catalog: StorageCatalog,
        checkpointer: Checkpointer,
        context: StoreContext,
        sweep: RetentionTask,
    ) -> None:
        self._catalog, self._checkpointer = catalog, checkpointer
        self._context, self._sweep = context, sweep
        self._rewriting = RewriteContext(
            context.disk, context.reader, context.keep_messages, context.options.index_step
        )
        self._lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[int]] = set()
        self._run: asyncio.Task[int] | None = None
        self._retry_ms: dict[int, int] = {}
        self._now_ms = 0
        self._tidied = False
        self._journal_end = (0, 0)

    def begin(self, now_ms: int) -> None:
        """Begin to reclaim what can be of all ledgers, unless that is under way."""
        if self._run is None or self._run.done():
            self._run = self._start(self._reclaim_all(now_ms))

    async def reclaim(self, ledger: Ledger) -> int:
        """Reclaim what can be of a ledger; return by how many bytes its segments are smaller.

        It goes on if the caller is cancelled. Raises StoreError if the store failed or is closed.
        """
        return await asyncio.shield(self._start(self._reclaim(ledger)))

    async def close(self) -> None:
        """End after the steps under way; what was not finished is left as it was."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A store that failed says so itself.
            log = _log.debug if isinstance(error, StoreError) else _log.error
            log("reclaim-ended", reason=failure_text(error))

    def _stops(self, ledger: Ledger | None = None) -> bool:
        failed = self._context.journal.failed.done()
        return failed or self._closing.is_set() or (ledger is not None and ledger.discarded)

    async def _reclaim_all(self, now_ms: int) -> int:
        self._now_ms = now_ms
        self._retry_ms = {key: at_ms for key, at_ms in self._retry_ms.items() if at_ms > now_ms}
        given = 0
        for count, ledger_id in enumerate(list(self._catalog.ids), 1):
            if count % _LEDGERS_PER_SLICE == 0:
                await asyncio.sleep(0)
            if self._stops():
                break
            idle = self._catalog.summary(ledger_id)
            if ledger_id in self._retry_ms or (idle is not None and not idle.deletes):
                continue
            if (ledger := self._look(ledger_id)) is None or not ledger.deleted_numbers:
                continue
            if not self._tidied and any(segment.generation for segment in ledger.segments):
                await self._tidy(ledger_id)
            due = await self._found(ledger, ledger.segments[:-1])
            if due and (used := self._catalog.find(ledger_id)) is not None:
                given += await self._reclaim(used)
        self._tidied = True
        return given

    def _look(self, ledger_id: int) -> Ledger | None:
        try:
            return self._catalog.look(ledger_id)[0]
        except KeyError:
            return None  # its topic was deleted meanwhile

    async def _tidy(self, ledger_id: int) -> None:
        """Remove the files that a process left which ended while it replaced a segment."""
        async with self._checkpointer.alone():
            if (ledger := self._look(ledger_id)) is None:
                return
            prepare = partial(self._context.writer.prepare, ledger_id, ledger.segments)
            failure = await self._try(prepare)
        if failure is not None:
            _log.warning("reclaim-not-tidied", ledger=ledger_id, reason=failure_text(failure))

    async def _found(
        self, ledger: Ledger, segments: Sequence[Segment]
    ) -> list[tuple[Segment, int]]:
        """Return segments, each with the bytes to reclaim of it; none if there are none of any."""
        least, found = self._context.options.reclaim_bytes, []
        for count, segment in enumerate(segments, 1):
            reclaimable = reclaimable_bytes(segment, ledger.deleted_numbers)
            found.append((segment, reclaimable if reclaimable >= least else 0))
            if count % _SEGMENTS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return found if any(reclaimable for _, reclaimable in found) else []

    async def _reclaim(self, ledger: Ledger) -> int:
        async with self._lock:
            if self._stops(ledger) or not await self._found(ledger, ledger.segments[:-1]):
                return 0
            # What goes must be known to the metadata as far as it reaches.
            await self._checkpointer.checkpoint()
            given = await self._sweep.drop_deleted(ledger)
            limits, options = self._catalog.retention_limits(ledger.topic_id), self._context.options
            bounded = limits.retention_ms >= 0 or limits.retention_bytes >= 0
            span_ms = roll_age_ms(limits) if bounded else -1
            found = await self._found(ledger, ledger.recorded_segments)
            for sources in grouped(found, ledger.deleted_numbers, options.segment, span_ms):
                if self._stops(ledger):
                    break
                given += await self._rewrite(ledger, sources)
            return given

    async def _rewrite(self, ledger: Ledger, sources: Sequence[Segment]) -> int:
        """Write segments again; return by how many bytes they are smaller."""
        deleted = ledger.deleted_numbers.around(sources[0].first_index, sources[-1].next_index - 1)
        # From here on they are durable.
        await self._context.journal.synced()
        work, written = SegmentRewrite(self._rewriting, ledger.id, sources, deleted), False
        try:
            written = await self._write(ledger, work)
        except (OSError, DamagedError) as error:
            # Segments that were removed meanwhile, or with their topic, cannot be read.
            if not self._stops(ledger) and set(sources) <= set(ledger.segments):
                _log.warning("reclaim-failed", ledger=ledger.id, reason=failure_text(error))
                self._retry_ms[ledger.id] = self._now_ms + RETRY_MS
        finally:
            if not written:
                await self._in_reader(work.abandon)
        return await self._replace(ledger, sources, work) if written else 0

    async def _write(self, ledger: Ledger, work: SegmentRewrite) -> bool:
        """Return whether the new file is on disk; raise OSError, DamagedError."""
        free, reserve = self._context.journal.free, self._context.options.reserve
        if free - work.size_bound < reserve // 2:
            raise OSError(ENOSPC, "less than half of storage.reserve would be free")

        def begin() -> None:
            self._context.writer.prepare(ledger.id, ledger.segments)
            work.open()

        # Names in a folder are made by the checkpointer's thread, which may remove the folder.
        async with self._checkpointer.alone():
            failure = None if ledger.discarded else await self._try(begin)
        if failure is not None:
            raise failure
        while not self._stops(ledger):
            if not await self._in_reader(work.step):
                await self._in_reader(work.finish)
                return True
            await self._pause(work.cost)
        return False

    async def _replace(
        self, ledger: Ledger, sources: Sequence[Segment], work: SegmentRewrite
    ) -> int:
        """Put the new segment in force, and remove the files of those that it replaces."""
        await self._in_reader(work.close)
        new = work.segment
        async with self._checkpointer.alone():
            if ledger.discarded or not set(sources) <= set(ledger.segments):
                await self._try(work.abandon)
                return 0
            deleted = ledger.deleted_numbers.take_changes()

            def store(connection: sqlite3.Connection) -> None:
                rows.replace_segments(connection, ledger.id, sources, [new])
                rows.save_deleted(connection, ledger.id, deleted)

            await self._checkpointer.metadata.run(store)
            ledger.replace_segments(sources, new)
            failure = await self._try(partial(self._context.writer.remove, ledger.id, sources))
        size = sum(segment.size for segment in sources)
        figures = {"segments": len(sources), "bytes": size, "left_bytes": new.size}
        _log.info("reclaimed", ledger=ledger.id, **figures)
        if failure is not None:
            _log.warning("reclaim-not-removed", ledger=ledger.id, reason=failure_text(failure))
        return size - new.size

    async def _pause(self, microseconds: int) -> None:
        """Leave the processor to others for a time, or until the store closes."""
        journal = self._context.journal
        before, self._journal_end = self._journal_end, (journal.number, journal.size)
        share = IDLE_PAUSE if before == self._journal_end else BUSY_PAUSE
        with suppress(TimeoutError):
            async with asyncio.timeout(share * microseconds / 1e6):
                await self._closing.wait()

    async def _try(self, work: Callable[[], object]) -> OSError | None:
        """Run work on files in the checkpointer's thread; return the error that it raises."""

        def run() -> OSError | None:
            try:
                work()
            except OSError as error:
                return error
            return None

        return await self._checkpointer.in_thread(run)

    async def _in_reader(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._context.readers, work)
