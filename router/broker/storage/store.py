"""Owns the store: its opening, topics, subscriptions, acknowledgements, and its failure.

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
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from router.broker.disk.database import Database
from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk, DiskUsage, measure_disk
from router.broker.folder import write_mark
from router.broker.storage import rows
from router.broker.storage.catalog import skip_holes
from router.broker.storage.checkpointer import MAX_UNCUT_JOURNALS, Checkpointer
from router.broker.storage.context import StoreContext
from router.broker.storage.cursor_log import CursorLog
from router.broker.storage.cursors import Cursor
from router.broker.storage.cuts import Cuts
from router.broker.storage.faults import leaves_mark
from router.broker.storage.loading import StoredLedger
from router.broker.storage.opening import Opened, open_folder
from router.broker.storage.options import Clock, StoreOptions
from router.broker.storage.partition import Ledger
from router.broker.storage.reclaim import Reclaimer
from router.broker.storage.records import KeepMessages, LatestTime, keep_all, unknown_time
from router.broker.storage.retention_task import RetentionTask
from router.broker.storage.rows import SubscriptionRecord, TopicRecord
from router.errors import DiskFullError, TopicExistsError, TopicNotFoundError
from router.errors.quoting import said
from router.metrics import Sample
from router.model import NO_PROPERTIES
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

    Lookups are those of Catalog, changes of cursors and values and deletions those of CursorLog,
    `reclaim` is that of Reclaimer, `expired_number` that of RetentionTask.
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
        self._journal = journal = context.journal
        self._journal.start(self._after_commit, self.fail)
        self._checkpointer = Checkpointer(
            context, self._metadata, catalog, failed=self.fail, after=self._after_commit
        )
        self.cuts = Cuts(context, self._checkpointer)
        cursors = CursorLog(catalog, journal)
        self.acknowledge = cursors.acknowledge
        self.reset = cursors.reset
        self.commit = cursors.commit
        self.delete_messages = cursors.delete_messages
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
        self.pressure: set[Callable[[], None]] = set()
        self._after_commit()

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

    async def create_topic(
        self,
        name: str,
        partitions: int,
        policies: Policies,
        properties: Mapping[str, str],
        first_number: int = 0,
    ) -> TopicRecord:
        """Store a topic; partitions = 0: it is not partitioned and has one ledger.

        `first_number`: that of the first message of each partition.
        Raises TopicExistsError, DiskFullError, StoreError.
        """
        self.check_space()
        record = TopicRecord(0, name, partitions, policies, dict(properties), self._now_ms(), ())
        try:
            topic = await self._run(lambda c: rows.insert_topic(c, record, first_number))
        except sqlite3.IntegrityError as error:
            raise TopicExistsError(f"topic {name} exists already") from error
        self._take_in(topic, 0, first_number)
        return topic

    async def begin_topic(self, policies: Policies, first_number: int) -> TopicRecord:
        """Store a topic of one ledger that is not shown before `finish_topic`.

        A start of the store removes it. `first_number`: that of the first message. Raises
        DiskFullError, StoreError.
        """
        name = f"{rows.UNFINISHED}{secrets.token_hex(16)}"
        return await self.create_topic(name, 0, policies, NO_PROPERTIES, first_number)

    async def finish_topic(self, topic: TopicRecord, name: str) -> TopicRecord:
        """Give a topic that was begun its name; on disk on return.

        Raises TopicExistsError, StoreError.
        """
        try:
            await self._run(lambda c: rows.update(c, "topics", topic.id, name=name))
        except sqlite3.IntegrityError as error:
            raise TopicExistsError(f"topic {name} exists already") from error
        finished = self._catalog.topics[topic.id] = replace(topic, name=name)
        return finished

    async def discard_topic(self, topic: TopicRecord) -> None:
        """Remove a topic that was begun; one that is finished stays. Raises StoreError."""
        present = self._catalog.topics.get(topic.id)
        if present is not None and present.name == topic.name:
            await self.delete_topic(topic.id)

    def resolve(self, policies: Callable[[TopicRecord], Policies]) -> None:
        """Have retention take the policies of a topic from this function, not the topic's alone."""
        self._catalog.policies = policies

    async def grow_topic(self, topic: TopicRecord, partitions: int) -> TopicRecord:
        """Give a topic more partitions, with the subscriptions of the others at their beginning.

        Raises TopicNotFoundError, DiskFullError, StoreError.
        """
        self.check_space()
        known = (r for i in topic.ledger_ids for r in self.subscriptions(i))
        names = {record.name: record.properties for record in known if not record.passive}
        now_ms = self._now_ms()
        try:
            grown, made = await self._run(
                lambda c: rows.grow_topic(c, topic, partitions, names, now_ms)
            )
        except sqlite3.IntegrityError as error:
            raise TopicNotFoundError("there is no such topic any more") from error
        self._take_in(grown, topic.partitions)
        for record in made:
            self._catalog.add(record)
        return grown

    async def change_topic(self, topic: TopicRecord) -> TopicRecord:
        """Store the policies and properties of a topic; on disk on return. Raises StoreError."""
        await self._run(lambda c: rows.save_topic(c, topic))
        self._catalog.topics[topic.id] = topic
        return topic

    async def delete_topic(
        self, topic_id: int, deleted: Callable[[], object] = lambda: None
    ) -> None:
        """Remove a topic with all that belongs to it; raise TopicNotFoundError, StoreError.

        `deleted` is called as soon as that is on disk. Until then the topic is used as before: a
        client that saw it gone could find it there again after a power cut.
        """
        topic = self._catalog.topics.get(topic_id)
        if topic is None:
            raise TopicNotFoundError("there is no such topic any more")
        # What writes a ledger's segments down finds either its row or that it is discarded.
        async with self._checkpointer.alone():
            await self._metadata.run(lambda c: rows.delete(c, "topics", topic_id))
            self._catalog.discard(topic)
        deleted()
        remove = self._context.writer.remove_ledger
        async with self._checkpointer.alone():
            for ledger_id in topic.ledger_ids:
                await self._checkpointer.in_thread(partial(remove, ledger_id))

    async def create_subscription(
        self,
        ledger_id: int,
        name: str,
        mark_delete: int,
        properties: Mapping[str, str],
        *,
        passive: bool = False,
    ) -> SubscriptionRecord:
        """Store a subscription behind the entry `mark_delete`; one that exists is returned as is.

        Raises TopicNotFoundError, DiskFullError, StoreError.
        """
        self.check_space()
        now_ms = self._now_ms()
        cursor = Cursor(mark_delete)
        record = SubscriptionRecord(
            0, ledger_id, name, dict(properties), now_ms, now_ms, cursor, now_ms, passive
        )
        if (ledger := self._catalog.find(ledger_id)) is not None:
            skip_holes(record, ledger)
        try:
            record.id = await self._run(lambda c: rows.insert_subscription(c, record))
        except sqlite3.IntegrityError as error:
            for existing in self.subscriptions(ledger_id):
                if existing.name == name:
                    return existing
            raise TopicNotFoundError("there is no such topic any more") from error
        self._catalog.add(record)
        return record

    async def activate_subscription(self, subscription: SubscriptionRecord) -> None:
        """Have a passive subscription hold its messages back; on disk on return.

        Raises StoreError.
        """
        subscription.passive = False
        await self._run(lambda c: rows.update(c, "subscriptions", subscription.id, passive=0))

    async def change_subscription(
        self, subscription: SubscriptionRecord, properties: Mapping[str, str]
    ) -> None:
        """Give a subscription other properties; on disk on return. Raises StoreError."""
        await self._run(lambda c: rows.save_properties(c, subscription.id, properties))
        subscription.properties = dict(properties)

    async def delete_subscription(self, subscription: SubscriptionRecord) -> None:
        """Forget a subscription, on disk on return; one that is gone is no error.

        Until then it is used as before. Raises StoreError.
        """
        await self._run(lambda c: rows.delete(c, "subscriptions", subscription.id))
        self._catalog.drop(subscription)

    async def save_epoch(self, ledger: Ledger) -> None:
        """Write a ledger's topic epoch down; on disk on return. Raises StoreError."""
        epoch = ledger.topic_epoch
        if epoch is not None:
            await self._run(lambda c: rows.update(c, "ledgers", ledger.id, topic_epoch=epoch))

    async def save_compacted(self, ledger: Ledger, number: int) -> None:
        """Note that the messages before a number are compacted; on disk on return.

        Raises StoreError.
        """
        await self._run(lambda c: rows.update(c, "ledgers", ledger.id, compacted_number=number))
        ledger.compacted_number = number

    async def terminate(self, ledger: Ledger) -> None:
        """Have a ledger take no more entries, for good; on disk on return. Raises StoreError.

        What is appended before the return is stored.
        """
        await self._run(lambda c: rows.update(c, "ledgers", ledger.id, terminated=1))
        ledger.terminated = True

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

    async def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Change the metadata; sqlite3.IntegrityError passes, other errors fail the store."""
        if self.failed.done():
            raise StoreError("the store failed")
        try:
            return await self._metadata.run(operation)
        except sqlite3.IntegrityError:
            raise
        except (OSError, sqlite3.Error) as error:
            self.fail(error)
            raise StoreError(f"the store failed: {said(error)}") from error

    def _take_in(self, topic: TopicRecord, first: int, first_number: int = 0) -> None:
        """Add a topic, and its new partitions from this one on."""
        self._catalog.topics[topic.id] = topic
        for partition, ledger_id in enumerate(topic.ledger_ids[first:], first):
            self._catalog.add_idle(StoredLedger.new(ledger_id, topic.id, partition, first_number))

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
