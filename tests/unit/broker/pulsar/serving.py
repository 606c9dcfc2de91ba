"""What connections in memory are made of: a broker's context, and that of its transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from router.broker.consume.membership.leases import CallLater, Leases
from router.broker.context import BrokerContext
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.node.rpc import NodeRpc
from router.broker.pulsar.session import sessions
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.schemas import BrokerSchemas
from router.broker.topics.topics import Topics
from router.broker.transactions import TransactionalProducers, TransactionCoordinator
from router.broker.transport.connection import ClientConnection
from router.broker.transport.context import TransportContext
from router.coordination.opening import SingleNode
from router.settings import Settings, load

NO_SETTINGS = load(None, {}, {})


@dataclass
class Context:
    """What all connections of one listener in memory share."""

    broker: BrokerContext
    transport: TransportContext
    members: dict[ClientConnection, None] = field(default_factory=dict)
    open_sessions: Callable[[BrokerContext], Callable[[ClientConnection], Any]] = sessions

    def __post_init__(self) -> None:
        self._open_session = self.open_sessions(self.broker)

    @property
    def topics(self) -> Topics:
        """The topics that are served."""
        assert self.broker.topics is not None
        return self.broker.topics

    def connection(self) -> ClientConnection:
        """A connection that is not made yet."""
        return ClientConnection(self.transport, self._open_session, self.members, "test")


def context_of(
    topics: Topics | None,
    registry: FileRegistry,
    later: CallLater,
    transport: TransportContext,
    settings: Settings = NO_SETTINGS,
) -> Context:
    """Return the context of a broker with these topics, or of one without a log."""
    counters = NodeCounters(lambda: 1_000.0)
    boot = 1 if topics is None else topics.store.boot
    leases = Leases(boot, 5.0, SingleNode(), counters, lambda: 1_000.0, later)
    administration = None if topics is None else TopicAdmin(topics, counters, leases)
    transcoder = Transcoder(ENTRY_FORMATS)
    transactions = None
    if topics is not None:
        opened = TransactionCoordinator(topics, leases.forget)
        transactions = TransactionalProducers(topics, opened)
    broker = BrokerContext(
        settings=settings,
        server_version="dragoman test",
        topics=topics,
        schemas=BrokerSchemas(),
        refusal="elsewhere",
        leases=leases,
        counters=counters,
        registry=registry,
        rpc=NodeRpc(leases, registry, counters, administration, "elsewhere", transcoder),
        transcoder=transcoder,
        transactions=transactions,
    )
    return Context(broker, transport)
