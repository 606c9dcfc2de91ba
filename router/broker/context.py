"""What the sessions of every protocol work with: the node's parts, handed to listeners at start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from router.broker.audit import AuditLog
from router.broker.compaction import Compactor
from router.broker.consume.membership.leases import Leases
from router.broker.entries import Transcoder
from router.broker.nats.server import NatsServer
from router.broker.node.counters import NodeCounters
from router.broker.node.rpc import NodeRpc
from router.broker.topics.schemas import BrokerSchemas
from router.broker.topics.topics import Topics
from router.broker.transactions import TransactionalProducers
from router.settings import Settings
from router.sharing.registry import AsyncRegistry


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The parts of a running broker.

    `topics` is None if another server has the messages; requests for messages are then refused with
    the sentence `refusal`. `transcoder` gives entries in the format of a reader; its workers serve
    whatever takes entries apart beside the event loop. `compactor`, `nats`, `transactions` and
    `audit` are None where `topics` is. `ending` is set from when the broker ends: connections
    close, and no client is to blame.
    """

    settings: Settings
    server_version: str
    topics: Topics | None
    schemas: BrokerSchemas
    refusal: str
    leases: Leases
    counters: NodeCounters
    registry: AsyncRegistry
    rpc: NodeRpc
    transcoder: Transcoder
    compactor: Compactor | None = None
    nats: NatsServer | None = None
    transactions: TransactionalProducers | None = None
    audit: AuditLog | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)
