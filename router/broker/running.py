"""A running broker: what it is made of, from an open folder to the last client served."""

from __future__ import annotations

import asyncio
import platform
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from router.access.authorizer import Authorizer, requires_authentication
from router.broker.activity.calls import ActivityCalls
from router.broker.activity.recorder import Recorder
from router.broker.audit import AuditLog
from router.broker.consume.membership.leases import Leases
from router.broker.consume.polls.engine import PollEngine
from router.broker.context import BrokerContext
from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.entries.slicing import EntryOpener
from router.broker.nats.opening import join_streams
from router.broker.nats.server import NatsServer
from router.broker.node.backups import Backups
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.node.rpc import NodeRpc
from router.broker.storage_mode import StorageMode, open_storage
from router.broker.topics.groups import TopicSubscriptions
from router.broker.topics.topics import Topics
from router.broker.transactions import (
    TransactionalProducers,
    TransactionCalls,
    TransactionCoordinator,
)
from router.broker.transport.authentication import ListenerAuthorizer
from router.broker.transport.blacklist import BrokerBlacklist
from router.broker.transport.context import TransportContext, TransportOptions
from router.broker.transport.listener import Listeners
from router.broker.transport.topic_rights import TopicRightsRegistry
from router.coordination import Coordinator
from router.coordination.opening import open_coordination
from router.errors.quoting import failure_text
from router.metrics import Sample
from router.process import node_socket
from router.process.build import VERSION, build_id
from router.process.resources import Resources
from router.settings import Settings, without_password
from router.sharing.registry import AsyncRegistry

DRAIN_SECONDS: Final = 10.0

_STARTED: Final = time.time()  # noqa: TID251 - a time of day is shown, not counted with
_log = structlog.get_logger(__name__)


class RunningBroker:
    """The parts of a broker that serves; `failed` ends with the error of a disk."""

    def __init__(
        self,
        storage: StorageMode,
        listeners: Listeners,
        context: BrokerContext,
        transport: TransportContext,
    ) -> None:
        self.failed = storage.failed
        self.blacklist = transport.blacklist
        self._storage = storage
        self._listeners = listeners
        self._context = context
        self._transport = transport

    @classmethod
    async def open(
        cls,
        folder: Path,
        settings: Settings,
        listeners: Listeners,
        stack: AsyncExitStack,
        disk: Disk | None = None,
    ) -> RunningBroker:
        """Open the store; `stack` closes what outlives the broker. Raises StoreError."""
        file = await FileRegistry.open(folder, disk)
        stack.push_async_callback(file.close)
        storage = await open_storage(folder, settings, file, disk)
        coordination = open_coordination(settings, file)
        stack.push_async_callback(coordination.coordinator.close)
        counters = NodeCounters(time.monotonic)
        counters.observe(partial(own_samples, without_password(settings.text("backend.url"))))
        transport, registry = TransportContext(), coordination.registry
        transport.options = TransportOptions.from_settings(settings)
        if listeners.serves_network:
            registry = await _control_access(transport, registry, counters, settings, stack)
        authorizer: Authorizer | None = transport.authorizer
        if authorizer is None and storage.topics is not None and _restricts(settings):
            authorizer, registry = await _authorize_http(registry, settings)
        leases = _leases(storage.boot, settings, coordination.coordinator, counters)
        administration = storage.administration(leases, counters)
        transcoder = Transcoder(ENTRY_FORMATS)
        stack.callback(transcoder.close)
        nats = None
        if storage.topics is not None:
            nats = NatsServer(settings, storage.topics, counters, registry, transcoder, authorizer)
        audit = None if storage.topics is None else AuditLog(folder, storage.topics.now_ms)
        context = BrokerContext(
            settings=settings,
            server_version=f"dragoman {build_id()}",
            topics=storage.topics,
            schemas=storage.schemas,
            refusal=storage.refusal,
            leases=leases,
            counters=counters,
            registry=registry,
            rpc=NodeRpc(leases, registry, counters, administration, storage.refusal, transcoder),
            transcoder=transcoder,
            compactor=storage.compactor,
            nats=nats,
            transactions=await _transactions(storage.topics, leases, counters),
            audit=audit,
        )
        context.rpc.nats = nats
        if storage.topics is not None:
            groups, opener = TopicSubscriptions(storage.topics), EntryOpener(transcoder)
            later = asyncio.get_running_loop().call_later
            # A node with a log has no other registry than its own.
            version_of = file.cached_version
            context.rpc.polls = PollEngine(
                leases, groups, opener, later, time.monotonic, version_of
            )
        store = None if storage.topics is None else storage.topics.store
        backups = await Backups.open(folder, file, store, time.time)  # noqa: TID251 - its clock
        context.rpc.backups = backups
        counters.observe(backups.collect)
        if nats is not None:
            join_streams(nats, storage.schemas, leases, folder)
            await nats.streams.load()
            nats.api.audit = audit
        counters.watch("router_broker_connections", lambda: len(transport.connections))
        await stack.enter_async_context(storage.maintained())
        return cls(storage, listeners, context, transport)

    async def record(self, folder: Path) -> Recorder | None:
        """Record what the broker does from now on, None: it has no log; `stop` ends it."""
        context, listeners = self._context, self._listeners
        if context.topics is None or context.audit is None:
            return None
        recorder = Recorder(context.topics, context.nats, context.counters, listeners.connected)
        context.rpc.calls += (ActivityCalls(recorder, listeners, context.audit),)
        if context.transactions is not None:
            context.rpc.calls += (TransactionCalls(context.topics, context.transactions),)
        await recorder.start(folder)
        return recorder

    async def serve(self, folder: Path) -> None:
        """Serve the listeners, and the folder's socket."""
        await self._listeners.start(self._context, self._transport, node_socket.listen(folder))

    @property
    def connections(self) -> int:
        """Return how many clients are connected."""
        return self._listeners.connections

    async def drain(self) -> None:
        """Answer what clients sent, as long as the store can, for DRAIN_SECONDS at most."""
        self._context.ending.set()
        draining = asyncio.create_task(self._listeners.drain(self._storage.stored))
        waits: set[asyncio.Future[Any]] = {draining, self.failed}
        await asyncio.wait(waits, timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()

    async def close(self) -> None:
        """Close all connections, then the store."""
        self._context.ending.set()
        await self._listeners.close()
        if (polls := self._context.rpc.polls) is not None:
            polls.close()
        if (producers := self._context.transactions) is not None:
            await producers.transactions.close()
        if (nats := self._context.nats) is not None:
            nats.other_dialects.close()
            await nats.restores.close()
            await nats.snapshots.close()
            await nats.api.close()
            await nats.streams.close()
            await nats.consumers.close_all()
        await self._storage.close()


async def _transactions(
    topics: Topics | None, leases: Leases, counters: NodeCounters
) -> TransactionalProducers | None:
    """Return the transactions of a log, with what was open before; raise StoreError."""
    if topics is None:
        return None
    transactions = TransactionCoordinator(topics, leases.forget)
    await transactions.load()
    producers = TransactionalProducers(topics, transactions)
    producers.load()
    counters.watch("router_transactions_open", lambda: len(transactions.open))
    counters.watch("router_transactions_oldest_seconds", transactions.oldest_seconds)
    counters.watch("router_transactions_timed_out_total", lambda: transactions.timed_out)
    return producers


def _leases(
    boot: int, settings: Settings, coordinator: Coordinator, counters: NodeCounters
) -> Leases:
    idle, later = settings.seconds("consume.idle"), asyncio.get_running_loop().call_later
    return Leases(boot, idle, coordinator, counters, time.monotonic, later)


def _restricts(settings: Settings) -> bool:
    """Return whether clients of HTTP reach streams, and have different rights."""
    enforced = settings.text("acl.enforce") == "true"
    return settings.flag("jetstream.enabled") and (requires_authentication(settings) or enforced)


async def _authorize_http(
    registry: AsyncRegistry, settings: Settings
) -> tuple[Authorizer, AsyncRegistry]:
    """Authorize the principals of HTTP requests; return the registry to use."""
    owners = TopicRightsRegistry(registry)
    authorizer = Authorizer(settings, owners, time.monotonic, whole_topics=True)
    if not authorizer.enforced:
        return authorizer, registry
    await owners.load()
    return authorizer, owners


async def _control_access(
    transport: TransportContext,
    registry: AsyncRegistry,
    counters: NodeCounters,
    settings: Settings,
    stack: AsyncExitStack,
) -> AsyncRegistry:
    """Authenticate and authorize the clients of the network; return the registry to use."""
    owners = TopicRightsRegistry(registry)
    authorizer = ListenerAuthorizer(settings, owners, counters, time.time, time.monotonic)  # noqa: TID251 - the clock that is passed around
    stack.callback(authorizer.close)
    if authorizer.enforced:
        await owners.load()
        registry = owners
    blacklist = BrokerBlacklist(registry)
    stack.callback(blacklist.stop)
    await blacklist.start()
    transport.authorizer, transport.blacklist = authorizer, blacklist
    return registry


async def own_samples(backend: str) -> list[Sample]:
    """Return what the broker shows of itself: its build, and what it takes of the machine."""
    build = {
        "version": VERSION,
        "build": build_id(),
        "python": platform.python_version(),
        "backend": backend,
    }
    found: list[Sample] = [
        ("router_build_info", tuple(build.items()), 1.0),
        ("router_broker_start_time_seconds", (), _STARTED),
    ]
    try:
        # Open files are counted one by one.
        taken = await asyncio.to_thread(Resources.now)
    except OSError as error:  # no descriptor is free to look with
        _log.warning("what this process takes is not seen", reason=failure_text(error))
        return found
    own = (("process", "broker"),)
    return [
        *found,
        ("router_process_cpu_seconds_total", own, taken.cpu_seconds),
        *((name, own, value) for name, value in taken.gauges()),
    ]
