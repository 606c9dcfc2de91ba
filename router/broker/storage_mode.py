"""Whether a broker stores messages: in a log of its own, or not if another server has them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

from router.broker.compaction import Cleaner, CleanerPace, CompactionCalls, Compactor, KeyIndexes
from router.broker.consume.membership.leases import Leases
from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS, keep_messages, latest_time
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.storage import Store, StoreOptions, TopicRecord
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.gauges import LogGauges
from router.broker.topics.maintenance import Maintenance
from router.broker.topics.namespaces import Namespaces, namespace_in
from router.broker.topics.schemas import BrokerSchemas, SchemaPolicy
from router.broker.topics.topics import TopicOptions, Topics
from router.broker.transport.listening import has_log, remote_url
from router.schemas import Strategy
from router.settings import Settings


class StorageMode(Protocol):
    """The part of a broker that is about messages.

    `boot` counts its starts. `failed` ends with an error of the disk, after which the process
    should end. `topics` and `compactor` are None if another server has the messages, which
    `refusal` says.
    """

    boot: int
    failed: asyncio.Future[BaseException]
    topics: Topics | None
    compactor: Compactor | None
    schemas: BrokerSchemas
    refusal: str

    def administration(self, leases: Leases, counters: NodeCounters) -> TopicAdmin | None:
        """Return the administration of topics, None: there are none here; called once."""
        ...

    def maintained(self) -> AbstractAsyncContextManager[None]:
        """Run the periodic tasks while the block lasts."""
        ...

    async def stored(self) -> None:
        """Return when everything appended so far is on disk."""
        ...

    async def close(self) -> None:
        """End, with little left for the next start to recover."""
        ...


async def open_storage(
    folder: Path, settings: Settings, registry: FileRegistry, disk: Disk | None = None
) -> StorageMode:
    """Return the mode that the settings ask for; raise StoreError."""
    if not has_log(settings):
        return RemoteMessages(await registry.next_boot(), remote_url(settings))
    # The clock that is passed around starts here.
    clock: Callable[[], float] = time.time  # noqa: TID251
    stored = StoreOptions.from_settings(settings)
    store = await Store.open(folder, stored, clock, disk, latest_time, keep_messages)
    options = TopicOptions.from_settings(settings)
    namespaces = Namespaces(
        registry,
        (options.tenant, options.namespace),
        auto_create=options.auto_namespaces,
        now_ms=lambda: int(clock() * 1000),
    )
    await namespaces.load()
    topics = Topics(store, options, clock, ENTRY_FORMATS, namespaces)
    await namespaces.adopt(namespace_in(record.name) for record in topics.records())
    strategy = Strategy(settings.text("schemas.compatibility"))
    schemas = BrokerSchemas(registry, partial(_schema_policy, namespaces, strategy), topics.now_ms)
    await schemas.load()
    gauges = LogGauges(store, settings.number("metrics.max_group_series"), time.monotonic)
    pace = CleanerPace(store)
    keys = KeyIndexes(store, folder, ENTRY_FORMATS, pace.pause, disk)
    compactor = Compactor(keys)
    cleaner = Cleaner(topics, keys, compactor, pace.discount)
    return EmbeddedLog(store, topics, schemas, gauges, keys, compactor, cleaner)


def _schema_policy(namespaces: Namespaces, strategy: Strategy, topic: TopicRecord) -> SchemaPolicy:
    """Return what a topic's namespace says of schemas, or else the settings."""
    given = namespaces.policies(namespace_in(topic.name))
    named = given.schema_compatibility
    return SchemaPolicy(
        Strategy(named) if named and named != "UNDEFINED" else strategy,
        auto_update=given.schema_auto_update is not False,
        enforced=given.schema_validation_enforced is True,
    )


class EmbeddedLog:
    """The log of the data folder, with its topics and their schemas."""

    refusal = ""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        schemas: BrokerSchemas,
        gauges: LogGauges,
        keys: KeyIndexes,
        compactor: Compactor,
        cleaner: Cleaner,
    ) -> None:
        self.boot = store.boot
        self.failed = store.failed
        self.topics: Topics | None = topics
        self.schemas = schemas
        self._topics = topics
        self._compactor = compactor
        self._store = store
        self._gauges = gauges
        self._keys = keys
        self.compactor: Compactor | None = compactor
        self._cleaner = cleaner

    def administration(self, leases: Leases, counters: NodeCounters) -> TopicAdmin | None:
        """Return the administration of the log's topics; its gauges are shown from now on."""
        counters.observe(self._gauges.collect)
        counters.observe(self._cleaner.collect)
        calls = CompactionCalls(
            self._topics, self._keys, self._compactor, ENTRY_FORMATS, self._cleaner.wake
        )
        return TopicAdmin(self._topics, counters, leases, self.schemas, calls)

    @contextlib.asynccontextmanager
    async def maintained(self) -> AsyncIterator[None]:
        """Apply retention, clean, and drop the schemas of deleted topics, while the block lasts."""
        tasks = [
            asyncio.create_task(Maintenance(self._topics, self._cleaner.wake).run()),
            asyncio.create_task(self._cleaner.run()),
            asyncio.create_task(self.schemas.run_sweeps(self._topic_ids)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def stored(self) -> None:
        """Return when everything appended so far is on disk."""
        stored = asyncio.Event()
        self._store.after_sync(stored.set)
        await stored.wait()

    async def close(self) -> None:
        """Close the store; raise what a store that had not failed raises."""
        await self._compactor.close()
        await self._keys.close()
        try:
            await self._store.close()
        except Exception:
            # Of a store that has failed only the threads had to end.
            if not self.failed.done():
                raise

    def _topic_ids(self) -> Iterator[int]:
        return (record.id for record in self._topics.records())


class RemoteMessages:
    """No log: another server has the messages, and requests for them are refused here."""

    topics: Topics | None = None
    compactor: Compactor | None = None

    def __init__(self, boot: int, url: str) -> None:
        self.boot = boot
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.schemas = BrokerSchemas()
        self.refusal = f"this node's broker keeps no messages: they live in {url}"

    def administration(self, leases: Leases, counters: NodeCounters) -> TopicAdmin | None:
        """Return None: there are no topics here."""

    @contextlib.asynccontextmanager
    async def maintained(self) -> AsyncIterator[None]:
        """Run nothing."""
        yield

    async def stored(self) -> None:
        """Return at once."""

    async def close(self) -> None:
        """Close nothing."""
