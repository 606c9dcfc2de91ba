"""Changes of topics, subscriptions and ledgers: in the metadata first, then in the catalog.

Each is on disk when it returns, and nothing shows it before. An error of the disk fails the store.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from router.broker.disk.database import Database
from router.broker.disk.faults import StoreError
from router.broker.storage import rows
from router.broker.storage.catalog import StorageCatalog, skip_holes
from router.broker.storage.checkpointer import Checkpointer
from router.broker.storage.context import StoreContext
from router.broker.storage.cursors import Cursor
from router.broker.storage.loading import StoredLedger
from router.broker.storage.partition import Ledger
from router.broker.storage.rows import SubscriptionRecord, TopicRecord
from router.errors import TopicExistsError, TopicNotFoundError
from router.errors.quoting import failure_text
from router.model import NO_PROPERTIES
from router.model.policies import Policies

T = TypeVar("T")


@dataclass(eq=False, slots=True, kw_only=True)
class MetadataChanges:
    """Changes the metadata of an open store; for one event loop.

    `check_space` raises DiskFullError, `failed` is done once the store failed, `fail` fails it.
    """

    context: StoreContext
    database: Database
    catalog: StorageCatalog
    checkpointer: Checkpointer
    now_ms: Callable[[], int]
    check_space: Callable[[], None]
    failed: asyncio.Future[BaseException]
    fail: Callable[[BaseException], None]

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
        record = TopicRecord(0, name, partitions, policies, dict(properties), self.now_ms(), ())
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
        finished = self.catalog.topics[topic.id] = replace(topic, name=name)
        return finished

    async def discard_topic(self, topic: TopicRecord) -> None:
        """Remove a topic that was begun; one that is finished stays. Raises StoreError."""
        present = self.catalog.topics.get(topic.id)
        if present is not None and present.name == topic.name:
            await self.delete_topic(topic.id)

    async def grow_topic(self, topic: TopicRecord, partitions: int) -> TopicRecord:
        """Give a topic more partitions, with the subscriptions of the others at their beginning.

        Raises TopicNotFoundError, DiskFullError, StoreError.
        """
        self.check_space()
        known = (r for i in topic.ledger_ids for r in self.catalog.subscriptions(i))
        names = {record.name: record.properties for record in known if not record.passive}
        now_ms = self.now_ms()
        try:
            grown, made = await self._run(
                lambda c: rows.grow_topic(c, topic, partitions, names, now_ms)
            )
        except sqlite3.IntegrityError as error:
            raise TopicNotFoundError("there is no such topic any more") from error
        self._take_in(grown, topic.partitions)
        for record in made:
            self.catalog.add(record)
        return grown

    async def change_topic(self, topic: TopicRecord) -> TopicRecord:
        """Store the policies and properties of a topic; on disk on return. Raises StoreError."""
        await self._run(lambda c: rows.save_topic(c, topic))
        self.catalog.topics[topic.id] = topic
        return topic

    async def delete_topic(
        self, topic_id: int, deleted: Callable[[], object] = lambda: None
    ) -> None:
        """Remove a topic with all that belongs to it; raise TopicNotFoundError, StoreError.

        `deleted` is called as soon as that is on disk. Until then the topic is used as before: a
        client that saw it gone could find it there again after a power cut.
        """
        topic = self.catalog.topics.get(topic_id)
        if topic is None:
            raise TopicNotFoundError("there is no such topic any more")
        # What writes a ledger's segments down finds either its row or that it is discarded.
        async with self.checkpointer.alone():
            await self.database.run(lambda c: rows.delete(c, "topics", topic_id))
            self.catalog.discard(topic)
        deleted()
        remove = self.context.writer.remove_ledger
        async with self.checkpointer.alone():
            for ledger_id in topic.ledger_ids:
                await self.checkpointer.in_thread(partial(remove, ledger_id))

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
        now_ms = self.now_ms()
        cursor = Cursor(mark_delete)
        record = SubscriptionRecord(
            0, ledger_id, name, dict(properties), now_ms, now_ms, cursor, now_ms, passive
        )
        if (ledger := self.catalog.find(ledger_id)) is not None:
            skip_holes(record, ledger)
        try:
            record.id = await self._run(lambda c: rows.insert_subscription(c, record))
        except sqlite3.IntegrityError as error:
            for existing in self.catalog.subscriptions(ledger_id):
                if existing.name == name:
                    return existing
            raise TopicNotFoundError("there is no such topic any more") from error
        self.catalog.add(record)
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
        self.catalog.drop(subscription)

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

    async def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Change the metadata; sqlite3.IntegrityError passes, other errors fail the store."""
        if self.failed.done():
            raise StoreError("the store failed")
        try:
            return await self.database.run(operation)
        except sqlite3.IntegrityError:
            raise
        except (OSError, sqlite3.Error) as error:
            self.fail(error)
            raise StoreError(f"the store failed: {failure_text(error)}") from error

    def _take_in(self, topic: TopicRecord, first: int, first_number: int = 0) -> None:
        """Add a topic, and its new partitions from this one on."""
        self.catalog.topics[topic.id] = topic
        for partition, ledger_id in enumerate(topic.ledger_ids[first:], first):
            self.catalog.add_idle(StoredLedger.new(ledger_id, topic.id, partition, first_number))
