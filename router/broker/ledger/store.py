"""Owns the store: its opening, topics, subscriptions, acknowledgements, and its failure.

The layout of the data folder:
  metadata.db              topics, subscriptions, cursors, what is synced (SQLite)
  journal/<n>.log          the newest of everything, for all partitions; see journal and rounds
  ledgers/<id>/<entry>.seg entries by partition; see segments and writing
  READ-ONLY                the reason why nobody may write here before a repair

An entry is acknowledged when its round of the journal is synced. Behind the journal the keeper
fills the segments. Everything here runs on the event loop, but for opening, which blocks a thread.

The first error of a write or a sync ends the store: what the disk holds is not known any more. If
only space was missing, a restart recovers; anything else leaves the mark.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from router.broker.cursors import Ack, Cursor
from router.broker.ledger import rows, topic_rows
from router.broker.ledger.catalog import Catalog
from router.broker.ledger.database import Database
from router.broker.ledger.disk import Disk
from router.broker.ledger.faults import StoreError, leaves_mark, write_mark
from router.broker.ledger.figures import Figures, look
from router.broker.ledger.journal import Journal, JournalFiles
from router.broker.ledger.keeper import Calls, Keeper, Tools
from router.broker.ledger.opening import Ground, Opened, build_ledger, open_folder, skip_holes
from router.broker.ledger.options import Clock, StoreOptions
from router.broker.ledger.partition import Ledger, Parts, Tails
from router.broker.ledger.reading import SegmentReader
from router.broker.ledger.rounds import pack_ack, pack_reset
from router.broker.ledger.rows import LedgerRow, SubscriptionRecord, TopicRecord
from router.broker.ledger.sweep import Sweep
from router.broker.ledger.writing import Limits, SegmentWriter
from router.errors import DiskFullError, TopicExistsError, TopicNotFoundError
from router.metrics import Sample
from router.model import Policies
from router.quoting import said

T = TypeVar("T")
_READERS: Final = 4
_LOOK_AT_SPACE: Final = 1.0


class Store:
    """All topics of a node, on disk. Open it with `open`; use it from one event loop.

    `failed` ends with the first error of a write or sync: nothing is acknowledged after it, and the
    process should end. `full`: free space is below the reserve, publishing should be refused.
    `boot` counts the starts of the folder. Those in `pressure` are called when `full` changed, and
    when `congested` ended after it was seen to hold.
    """

    def __init__(self, opened: Opened, tools: Tools, ground: Ground, clock: Clock) -> None:
        self._ground = ground
        self._tools = tools
        self._clock = clock
        self._catalog = Catalog(opened.rows, opened.ledgers, ground.options)
        self._journal = tools.journal
        self._journal.start(self._after_round, self.fail)
        calls = Calls(self._catalog.roll_ms, self.fail, self._after_round)
        self._keeper = Keeper(tools, ground.options.cache, calls)
        self._keeper.cursors = opened.cursors
        window_ms = ground.options.dedup_window_ms
        self._sweep = Sweep(self._catalog, self._keeper, tools, window_ms, self.acknowledge)
        self._pressed = False
        self._looking = asyncio.ensure_future(self._look_at_space())
        self.failed = tools.journal.failed
        self.full = False
        self.boot = opened.boot
        self.pressure: set[Callable[[], None]] = set()
        self._after_round()

    @classmethod
    async def open(
        cls, folder: Path, options: StoreOptions, clock: Clock, disk: Disk | None = None
    ) -> Store:
        """Recover the folder, made if it is not there, and return its store.

        Raises StoreError with a sentence for the operator.
        """
        disk = disk or Disk()
        files = JournalFiles(disk, folder / "journal", options.journal, options.relaxed)
        limits = Limits(options.segment, options.index_step, options.open_files)
        writer = SegmentWriter(disk, folder / "ledgers", limits)
        readers = ThreadPoolExecutor(_READERS, "reader")
        reader = SegmentReader(disk, folder / "ledgers")
        parts = Parts(Journal(files, options.relaxed), reader, readers, Tails())
        ground = Ground(folder, options, disk, files, writer, parts)
        try:
            opened = await asyncio.to_thread(open_folder, ground)
        except BaseException:
            readers.shutdown()
            raise
        metadata = Database(opened.connection, disk, "metadata")
        tools = Tools(parts.journal, files, writer, metadata, parts.tails)
        return cls(opened, tools, ground, clock)

    async def close(self) -> None:
        """Bring everything to rest in segments and metadata; or, if the store failed, just end."""
        self._looking.cancel()
        with suppress(StoreError):
            await self._journal.settle()
            await self._keeper.checkpoint(everything=True)
        self._journal.stop()
        await self._keeper.close()
        await self._tools.metadata.close()
        self._ground.parts.readers.shutdown()

    def fail(self, error: BaseException) -> None:
        """Take note of an error of the disk: the first one ends the store."""
        if not self.failed.done():
            if leaves_mark(error):
                write_mark(self._ground.folder, str(error))
            self._journal.fail(error)

    @property
    def congested(self) -> bool:
        """Whether the disk does not keep up: read no more publishes until `pressure` is called."""
        slow = self._journal.unsynced > self._ground.options.unsynced or self._keeper.behind
        self._pressed = self._pressed or slow
        return slow

    @property
    def reserve(self) -> int:
        """Free bytes below which the store is full."""
        return self._ground.options.reserve

    def sync_samples(self) -> list[Sample]:
        """Return how long syncs took, and what waits for one."""
        waiting = float(self._journal.unsynced)
        return [*self._journal.syncs.samples(), ("router_journal_unsynced_bytes", (), waiting)]

    async def figures(self) -> Figures:
        """Return what the store takes of its disk; raise OSError."""
        return await asyncio.to_thread(look, self._ground.folder)

    def topics(self) -> Iterable[TopicRecord]:
        """Return all topics."""
        return tuple(self._catalog.topics.values())

    def ledger(self, ledger_id: int) -> Ledger:
        """Return a ledger; raise KeyError if there is none."""
        return self._catalog.ledgers[ledger_id]

    def subscriptions(self, ledger_id: int) -> Iterable[SubscriptionRecord]:
        """Return the subscriptions of a ledger."""
        return self._catalog.subscriptions(ledger_id)

    async def create_topic(
        self, name: str, partitions: int, policies: Policies, properties: Mapping[str, str]
    ) -> TopicRecord:
        """Store a topic; partitions = 0: it is not partitioned and has one ledger.

        Raises TopicExistsError, DiskFullError, StoreError.
        """
        self._refuse_full()
        created_ms = self._now_ms()
        wanted = TopicRecord(0, name, partitions, policies, dict(properties), created_ms, ())
        try:
            topic = await self._run(lambda c: rows.insert_topic(c, wanted))
        except sqlite3.IntegrityError as error:
            raise TopicExistsError(f"topic {name} exists already") from error
        self._take_in(topic, 0)
        return topic

    def resolve(self, policies: Callable[[TopicRecord], Policies]) -> None:
        """Have retention ask for the policies of a topic here, not for its own alone."""
        self._catalog.policies = policies

    async def grow_topic(self, topic: TopicRecord, partitions: int) -> TopicRecord:
        """Give a topic more partitions, with the subscriptions of the others at their beginning.

        Raises TopicNotFoundError, DiskFullError, StoreError.
        """
        self._refuse_full()
        names = {r.name: r.properties for i in topic.ledger_ids for r in self.subscriptions(i)}
        now_ms = self._now_ms()
        try:
            grown, made = await self._run(
                lambda c: topic_rows.grow_topic(c, topic, partitions, names, now_ms)
            )
        except sqlite3.IntegrityError as error:
            raise TopicNotFoundError("there is no such topic any more") from error
        self._take_in(grown, topic.partitions)
        for record in made:
            self._catalog.add(record)
        return grown

    async def change_policies(self, topic: TopicRecord, policies: Policies) -> TopicRecord:
        """Give a topic other policies; on disk on return. Raises StoreError."""
        await self._run(lambda c: topic_rows.save_policies(c, topic.id, policies))
        changed = self._catalog.topics[topic.id] = replace(topic, policies=policies)
        return changed

    async def delete_topic(self, topic_id: int) -> None:
        """Remove a topic with everything that belongs to it; raise TopicNotFoundError."""
        topic = self._catalog.topics.pop(topic_id, None)
        if topic is None:
            raise TopicNotFoundError("there is no such topic any more")
        for ledger_id in topic.ledger_ids:
            self._catalog.ledgers.pop(ledger_id).discard()
            for record in self._catalog.pop_subscriptions(ledger_id):
                self._keeper.cursors.pop(record, None)
        await self._run(lambda c: rows.delete_topic(c, topic_id))
        async with self._keeper.alone():
            for ledger_id in topic.ledger_ids:
                await self._keeper.in_thread(partial(self._tools.writer.remove_ledger, ledger_id))

    async def create_subscription(
        self, ledger_id: int, name: str, mark_delete: int, properties: Mapping[str, str]
    ) -> SubscriptionRecord:
        """Store a subscription behind the entry `mark_delete`; one that exists is returned as is.

        Raises TopicNotFoundError, DiskFullError, StoreError.
        """
        self._refuse_full()
        now_ms = self._now_ms()
        cursor = Cursor(mark_delete)
        record = SubscriptionRecord(
            0, ledger_id, name, dict(properties), now_ms, now_ms, cursor, now_ms
        )
        if (ledger := self._catalog.ledgers.get(ledger_id)) is not None:
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

    async def delete_subscription(self, subscription_id: int) -> None:
        """Forget a subscription; one that is gone is no error. Raises StoreError."""
        record = self._catalog.pop_subscription(subscription_id)
        if record is not None:
            self._keeper.cursors.pop(record, None)
        await self._run(lambda c: rows.delete_subscription(c, subscription_id))

    async def save_epoch(self, ledger: Ledger) -> None:
        """Write a ledger's topic epoch down; on disk on return. Raises StoreError."""
        epoch = ledger.topic_epoch
        if epoch is not None:
            await self._run(lambda c: rows.save_epoch(c, ledger.id, epoch))

    async def terminate(self, ledger: Ledger) -> None:
        """Have a ledger take no more entries, for good; on disk on return. Raises StoreError.

        What is appended before the return is stored.
        """
        await self._run(lambda c: rows.save_terminated(c, ledger.id))
        ledger.terminated = True

    def acknowledge(
        self, subscription: SubscriptionRecord, ack: Ack, done: Callable[[], object] | None = None
    ) -> None:
        """Acknowledge on the cursor at once, and call `done` when that is on disk.

        An acknowledgement of entries that are not durable yet acknowledges nothing.
        """
        if self.failed.done():
            return
        ledger = self._catalog.ledgers.get(subscription.ledger_id)
        known = ledger is not None and ack.entry < ledger.durable_entry
        if known and subscription.cursor.apply(ack):
            self._log_cursor(subscription, pack_ack(subscription.id, ack), done)
        elif done is not None:
            self._journal.after_sync(done)

    def reset(
        self,
        subscription: SubscriptionRecord,
        entry: int,
        done: Callable[[], object] | None = None,
    ) -> None:
        """Set the cursor so that exactly `entry` and all before it are acknowledged.

        `done` is called when that is on disk.
        """
        if self.failed.done():
            return
        subscription.cursor.reset(entry)
        if (ledger := self._catalog.ledgers.get(subscription.ledger_id)) is not None:
            skip_holes(subscription, ledger)
        self._log_cursor(subscription, pack_reset(subscription.id, entry), done)

    def after_sync(self, done: Callable[[], object]) -> None:
        """Call when everything appended so far is on disk; at once if it is."""
        if not self.failed.done():
            self._journal.after_sync(done)

    async def retain(self, now_ms: int) -> None:
        """Remove what retention allows to go, and write down what is due; raise StoreError.

        To be called about once a minute.
        """
        await self._sweep.run(now_ms)

    def _log_cursor(
        self,
        subscription: SubscriptionRecord,
        record: bytes,
        done: Callable[[], object] | None,
    ) -> None:
        round_ = self._journal.round
        round_.parts.append(record)
        round_.size += len(record)
        if done is not None:
            round_.call(done)
        self._keeper.cursors[subscription] = None
        self._journal.kick()

    async def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Change the metadata; sqlite3.IntegrityError passes, other errors fail the store."""
        if self.failed.done():
            raise StoreError("the store failed")
        try:
            return await self._tools.metadata.run(operation)
        except sqlite3.IntegrityError:
            raise
        except (OSError, sqlite3.Error) as error:
            self.fail(error)
            raise StoreError(f"the store failed: {said(error)}") from error

    def _take_in(self, topic: TopicRecord, first: int) -> None:
        """Take note of a topic, and of its new partitions from this one on."""
        self._catalog.topics[topic.id] = topic
        for partition, ledger_id in enumerate(topic.ledger_ids[first:], first):
            row = LedgerRow(ledger_id, topic.id, partition, 0, 0)
            ledger = build_ledger(row, self._ground.options, self._ground.parts)
            self._catalog.ledgers[ledger_id] = ledger

    def _refuse_full(self) -> None:
        if self.full:
            raise DiskFullError("the disk of the node is full")

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _after_round(self) -> None:
        self._keeper.watch()
        full = self._journal.free < self._ground.options.reserve
        ended = self._pressed and not self.congested
        if ended or full != self.full:
            self.full = full
            self._pressed = self._pressed and not ended
            for listener in tuple(self.pressure):
                listener()

    async def _look_at_space(self) -> None:
        """Keep `full` true while no rounds come that would look."""
        while not self.failed.done():
            await asyncio.sleep(_LOOK_AT_SPACE)
            try:
                self._journal.free = await self._keeper.in_thread(
                    partial(self._ground.disk.free, self._ground.folder)
                )
            except OSError as error:
                self.fail(error)
                return
            self._after_round()
