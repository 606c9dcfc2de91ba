"""Whether a broker keeps messages: in a log of its own, or, where another server has them, not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from router.broker.admin import TopicRequests
from router.broker.counters import Counters
from router.broker.leases import Leases
from router.broker.ledger import Store, StoreOptions, TopicRecord
from router.broker.listening import elsewhere, has_log
from router.broker.log_gauges import LogGauges
from router.broker.namespaces import Namespaces, namespace_of
from router.broker.pulsar import LogMessages, Messages, NoMessages
from router.broker.registry import FileRegistry
from router.broker.schemas import SchemaPolicy, TopicSchemas
from router.broker.tending import Tending
from router.broker.topic_admin import TopicAdmin
from router.broker.topics import TopicOptions, Topics
from router.errors import NotAllowedError
from router.model import TopicName
from router.schemas import Strategy
from router.settings import Settings
from router.wire.pulsar import pulsar_pb2 as pb


class Served(NamedTuple):
    """What clients are given to do with messages and with topics."""

    messages: Messages
    topics: TopicRequests


class Keeping(Protocol):
    """The part of a broker that is about messages.

    `boot` counts its starts. `failed` ends with an error of the disk, after which the process
    should end.
    """

    boot: int
    failed: asyncio.Future[BaseException]

    def serve(self, leases: Leases, counters: Counters) -> Served:
        """Return what clients are served; called once."""
        ...

    def tended(self) -> AbstractAsyncContextManager[None]:
        """Do what has to be done from time to time while the block lasts."""
        ...

    async def close(self) -> None:
        """End, with nothing left for the next start to recover."""
        ...


async def open_keeping(folder: Path, settings: Settings, registry: FileRegistry) -> Keeping:
    """Return what the settings ask for; raise StoreError."""
    if has_log(settings):
        options = StoreOptions.from_settings(settings)
        # The clock that is passed around starts here.
        store = await Store.open(folder, options, time.time)  # noqa: TID251
        strategy = Strategy(settings.text("schemas.compatibility"))
        gauges = LogGauges(store, settings.number("metrics.max_group_series"), time.monotonic)
        topics = TopicOptions.from_settings(settings)
        return await Log.over(store, topics, registry, strategy, gauges)
    return NoLog(await registry.next_boot(), elsewhere(settings))


class Log:
    """The log of the data folder."""

    def __init__(
        self, store: Store, topics: Topics, schemas: TopicSchemas, gauges: LogGauges
    ) -> None:
        self._gauges = gauges
        self._store = store
        self._topics = topics
        self._schemas = schemas
        self.boot = store.boot
        self.failed = store.failed

    @classmethod
    async def over(
        cls,
        store: Store,
        options: TopicOptions,
        registry: FileRegistry,
        strategy: Strategy,
        gauges: LogGauges,
    ) -> Log:
        """Return the log with its topics and the namespaces that they are in."""
        default = (options.tenant, options.namespace)
        namespaces = Namespaces(
            registry,
            default,
            auto_create=options.auto_namespaces,
            now_ms=lambda: int(time.time() * 1000),  # noqa: TID251 - see above
        )
        await namespaces.load()
        topics = Topics(store, options, time.time, namespaces)  # noqa: TID251 - see above
        await namespaces.adopt(
            namespace_of(TopicName.parse(record.name)) for record in topics.records()
        )
        policy = partial(_schema_policy, namespaces, strategy)
        schemas = TopicSchemas(registry, policy, topics.now_ms)
        await schemas.load()
        return cls(store, topics, schemas, gauges)

    def serve(self, leases: Leases, counters: Counters) -> Served:
        """Serve the topics of the log."""
        counters.observe(self._gauges.collect)
        return Served(
            LogMessages(self._topics, leases, counters.watch, self._schemas),
            TopicAdmin(self._topics, counters, leases, self._schemas),
        )

    @contextlib.asynccontextmanager
    async def tended(self) -> AsyncIterator[None]:
        """Apply retention while the block lasts."""
        tending = asyncio.create_task(Tending(self._topics).tend_for_ever())
        sweeping = asyncio.create_task(self._schemas.sweep_for_ever(self._alive))
        try:
            yield
        finally:
            tending.cancel()
            sweeping.cancel()

    def _alive(self) -> Iterator[int]:
        return (record.id for record in self._topics.records())

    async def close(self) -> None:
        """Close the store."""
        try:
            await self._store.close()
        except Exception:
            # Of a store that has failed only the threads had to end.
            if not self.failed.done():
                raise


def _schema_policy(namespaces: Namespaces, strategy: Strategy, topic: TopicRecord) -> SchemaPolicy:
    """Return what a topic's namespace says of schemas, or the settings do."""
    given = namespaces.policies(namespace_of(TopicName.parse(topic.name)))
    named = given.schema_compatibility
    return SchemaPolicy(
        Strategy(named) if named and named != "UNDEFINED" else strategy,
        auto_update=given.schema_auto_update is not False,
        enforced=given.schema_validation_enforced is True,
    )


class NoLog:
    """No log: messages live in another server, and what is asked about them here is refused."""

    def __init__(self, boot: int, where: str) -> None:
        self.boot = boot
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._sentence = f"this node's broker keeps no messages: they live in {where}"

    def serve(self, leases: Leases, counters: Counters) -> Served:
        """Refuse what is asked about messages and topics."""
        del leases, counters
        return Served(NoMessages(self._sentence), self)

    async def answer(self, asked: pb.CommandAdmin, response: pb.CommandAdminResponse) -> None:
        """Refuse a request about topics."""
        raise NotAllowedError(self._sentence)

    def count(self) -> None:
        """Count nothing."""

    @contextlib.asynccontextmanager
    async def tended(self) -> AsyncIterator[None]:
        """Do nothing."""
        yield

    async def close(self) -> None:
        """Do nothing."""
