"""Owns the store: its opening, what its parts do under one name, its pressure, and its failure.

The layout of the data folder:
  metadata.db              topics, subscriptions, cursors, what is synced (SQLite)
  journal/<n>.log          the newest of everything, for all partitions; see journal, commit_groups
  ledgers/<id>/<entry>.seg entries by partition; see segments, writing and reclaim
  ledgers/<id>/<entry>.idx points that lead into a segment; see offset_index
  subjects/<id>.idx        the subjects of a stream; see nats/streams/log/index_checkpoint
  READ-ONLY                the reason why the folder must be repaired before it is written

An entry is acknowledged when its commit group of the journal is synced. Behind the journal the
checkpointer fills the segments. Everything here runs on the event loop, but for opening, which
blocks a thread.

The first error of a write or a sync ends the store: what the disk holds is not known any more. If
only space was missing, a restart recovers; anything else leaves READ-ONLY in the folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from router.broker.disk.database import Database
from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk, DiskUsage, measure_disk
from router.broker.folder import write_mark
from router.broker.storage import rows
from router.broker.storage.checkpointer import MAX_UNCUT_JOURNALS, Checkpointer
from router.broker.storage.context import StoreContext
from router.broker.storage.cursor_log import CursorLog
from router.broker.storage.cuts import Cuts
from router.broker.storage.faults import leaves_mark
from router.broker.storage.metadata_changes import MetadataChanges
from router.broker.storage.opening import Opened, open_folder
from router.broker.storage.options import Clock, StoreOptions
from router.broker.storage.partition import Ledger
from router.broker.storage.reclaim import Reclaimer
from router.broker.storage.records import KeepMessages, LatestTime, keep_all, unknown_time
from router.broker.storage.retention_task import RetentionTask
from router.broker.storage.rows import TopicRecord
from router.errors import DiskFullError
from router.metrics import Sample
from router.model.policies import Policies

T = TypeVar("T")
_SPACE_CHECK_SECONDS: Final = 1.0
_log = structlog.get_logger()


class Store:
    """All topics of a node, on disk. Open it with `open`; use it from one event loop.

    `failed` ends with the first error of a write or sync: nothing is acknowledged after it, and the
    process should end. `full`: free space is below the reserve, publishing should be refused.
    `boot` counts the starts of the folder, `history` names its line of appends (see metadata). The
    callbacks in `pressure` are called when `full` changed, and when `congested` ended after it was
    seen to hold.

    Lookups are those of Catalog, changes of topics, subscriptions and ledgers those of
    MetadataChanges, changes of cursors and values and deletions those of CursorLog,
    `reclaim` is that of Reclaimer, `expired_number` that of RetentionTask, `publish_source` that
    of PublishSources.
    `synced` returns when everything done so far is on disk, or raises StoreError. `append_in_turn`
    is for appends of much: see append_turns.
    """

    def __init__(self, opened: Opened, context: StoreContext, clock: Clock) -> None:
        self._context = context
        self._options = context.options
        self._tails = context.tails
        self._metadata = Database(opened.connection, context.disk, "metadata")
        self._clock = clock
        self._catalog = catalog = opened.catalog
        self.topic = catalog.topics.get
        self.ledger = catalog.ledger
        self.subscriptions = catalog.subscriptions
        self.idle = catalog.summary
        self.group_names = catalog.group_names
        self.look = catalog.look
        self.publish_source = context.sources.find
        self._journal = journal = context.journal
        self._journal.start(self._after_commit, self.fail)
        self._checkpointer = Checkpointer(
            context, self._metadata, catalog, failed=self.fail, after=self._after_commit
        )
        self.cuts = Cuts(context, self._checkpointer)
        self._bind_changes()
        cursors = CursorLog(catalog, journal)
        self.acknowledge = cursors.acknowledge
        self.reset = cursors.reset
        self.commit = cursors.commit
        self.delete_messages = cursors.delete_messages
        self.delete_durably = cursors.delete_durably
        self.values, self.change_value = catalog.values, cursors.change_value
        self._sweep = RetentionTask(catalog, self._checkpointer, context, cursors)
        self.expired_number = self._sweep.expired_number
        self._reclaimer = Reclaimer(catalog, self._checkpointer, context, self._sweep)
        self.reclaim = self._reclaimer.reclaim
        self._pressed = False
        self._space_task = asyncio.ensure_future(self._watch_space())
        self.failed = journal.failed
        self.synced = journal.synced
        self.append_in_turn = journal.append_in_turn
        self.full = False
        self.boot = opened.boot
        self.history = opened.history
        self.pressure: dict[Callable[[], None], None] = {}
        self._after_commit()

    def _bind_changes(self) -> None:
        changes = MetadataChanges(
            context=self._context,
            database=self._metadata,
            catalog=self._catalog,
            checkpointer=self._checkpointer,
            now_ms=self._now_ms,
            check_space=self.check_space,
            failed=self._journal.failed,
            fail=self.fail,
        )
        self.create_topic = changes.create_topic
        self.begin_topic, self.finish_topic = changes.begin_topic, changes.finish_topic
        self.discard_topic = changes.discard_topic
        self.grow_topic, self.change_topic = changes.grow_topic, changes.change_topic
        self.delete_topic = changes.delete_topic
        self.create_subscription = changes.create_subscription
        self.activate_subscription = changes.activate_subscription
        self.change_subscription = changes.change_subscription
        self.delete_subscription = changes.delete_subscription
        self.save_epoch, self.save_compacted = changes.save_epoch, changes.save_compacted
        self.terminate = changes.terminate

    @classmethod
    async def open(
        cls,
        folder: Path,
        options: StoreOptions,
        clock: Clock,
        disk: Disk | None = None,
        latest_time: LatestTime = unknown_time,
        keep_messages: KeepMessages = keep_all,
    ) -> Store:
        """Recover the folder, made if it is not there, and return its store.

        `latest_time` returns the time by which `Ledger.find_latest_time` searches; without it
        segments have no such index, and lookups read them from their beginning. `keep_messages`
        writes entries again of which messages were deleted; without it only whole entries are
        reclaimed. Raises StoreError with a sentence for the operator.
        """
        context = StoreContext.build(folder, options, disk or Disk(), latest_time, keep_messages)
        try:
            opened = await asyncio.to_thread(open_folder, context)
        except BaseException:
            context.readers.shutdown()
            raise
        return cls(opened, context, clock)

    async def close(self) -> None:
        """Bring everything to rest, see Checkpointer.finish; or, if the store failed, just end."""
        self._space_task.cancel()
        await self._reclaimer.close()
        with suppress(StoreError):
            await self._journal.settle()
            await self._checkpointer.finish()
        self._journal.stop()
        await self._checkpointer.close()
        await self._metadata.close()
        self._context.readers.shutdown()

    def fail(self, error: BaseException) -> None:
        """End the store with an error of the disk, if none ended it before."""
        if not self.failed.done():
            if leaves_mark(error):
                write_mark(self._context.folder, str(error))
            self._journal.fail(error)

    @property
    def congested(self) -> bool:
        """Whether the disk does not keep up: read no more publishes until `pressure` is called."""
        slow = (
            self._journal.unsynced > self._options.unsynced
            or self._tails.unflushed_size > self._tails.unflushed_limit
            or self._journal.number - self._checkpointer.cut >= MAX_UNCUT_JOURNALS
        )
        self._pressed = self._pressed or slow
        return slow

    @property
    def reserve(self) -> int:
        """Free bytes below which the store is full."""
        return self._options.reserve

    @property
    def written(self) -> tuple[int, int]:
        """What differs after something was journalled: a journal file's number, and its bytes."""
        return self._journal.number, self._journal.size

    def sync_samples(self) -> list[Sample]:
        """Return how long syncs took, and what waits for one."""
        waiting = float(self._journal.unsynced)
        return [
            *self._journal.count_syncs().samples(),
            ("router_journal_unsynced_bytes", (), waiting),
        ]

    @property
    def folder(self) -> Path:
        """Return the data folder."""
        return self._context.folder

    async def disk_usage(self) -> DiskUsage:
        """Return what the store takes of its disk; raise OSError."""
        return await asyncio.to_thread(measure_disk, self._context.folder)

    def topics(self) -> Iterable[TopicRecord]:
        """Return all topics but the unfinished ones."""
        topics = self._catalog.topics.values()
        return tuple(topic for topic in topics if not topic.name.startswith(rows.UNFINISHED))

    def resolve(self, policies: Callable[[TopicRecord], Policies]) -> None:
        """Have retention take the policies of a topic from this function, not the topic's alone."""
        self._catalog.policies = policies

    def after_sync(self, done: Callable[[], object]) -> None:
        """Call when everything appended so far is on disk; at once if it is."""
        if not self.failed.done():
            self._journal.after_sync(done)

    async def retain(self, now_ms: int) -> None:
        """Apply retention once, as RetentionTask.run does, and begin to reclaim space.

        To be called about once a minute. Raises StoreError.
        """
        await self._sweep.run(now_ms)
        self._reclaimer.begin(now_ms)

    async def delete_before(self, ledger: Ledger, number: int) -> None:
        """Delete the messages of a ledger with lower numbers; on disk on return.

        Segments that hold only deleted messages are removed. Raises StoreError.
        """
        await self._sweep.delete_before(ledger, number, self._now_ms())

    def check_space(self) -> None:
        """Raise DiskFullError while the store is full, with what is free."""
        if self.full:
            raise DiskFullError(
                f"the disk of the node is full: {self._journal.free:,} bytes are free, and"
                f" publishing needs {self.reserve:,} (storage.reserve)"
            )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _after_commit(self) -> None:
        checkpointer, journal, tails = self._checkpointer, self._journal, self._tails
        if tails.unflushed_size > checkpointer.flush_bytes or journal.number > checkpointer.cut:
            checkpointer.watch()
        if tails.unflushed_limit != self._options.cache:  # as recovery leaves it for a while
            tails.lower_limit(self._options.cache)
        full = journal.free < self._options.reserve
        ended = self._pressed and not self.congested
        if full != self.full:
            figures = {"free_bytes": journal.free, "reserve_bytes": self.reserve}
            if full:
                _log.error("disk-full", folder=str(self._context.folder), **figures)
            else:
                _log.warning("disk-has-space", folder=str(self._context.folder), **figures)
        if ended or full != self.full:
            self.full = full
            self._pressed = self._pressed and not ended
            for listener in tuple(self.pressure):
                listener()

    async def _watch_space(self) -> None:
        """Keep `full` true while no commit groups come, and do what is due each second."""
        while not self.failed.done():
            await asyncio.sleep(_SPACE_CHECK_SECONDS)
            self._journal.count_syncs()
            self._checkpointer.relieve()
            try:
                self._journal.free = await self._checkpointer.in_thread(
                    partial(self._context.disk.free, self._context.folder)
                )
            except OSError as error:
                self.fail(error)
                return
            self._after_commit()
