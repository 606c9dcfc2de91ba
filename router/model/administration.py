"""The vocabulary of administration as values: namespaces; cursors, clients, entries of topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from router.model import NO_PROPERTIES, Position, Schema
from router.model.policies import Policies

SUBSCRIPTION_OWNER: Final = "router.owner"
"""A property of a subscription that is kept for something else than its subscribers."""


INHERITED: Final = (
    *("retention_ms", "retention_bytes", "backlog_bytes", "deduplication", "ttl_seconds"),
    *("max_producers", "max_consumers", "max_consumers_per_subscription"),
    "compaction_threshold",
)
"""Policies that topics have of their own, or from their namespace."""


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """What topics inherit; None: as settings say. Milliseconds and bytes, -1: no bound."""

    retention_ms: int | None = None
    retention_bytes: int | None = None
    backlog_bytes: int | None = None
    deduplication: bool | None = None
    schema_compatibility: str | None = None
    schema_validation_enforced: bool | None = None
    schema_auto_update: bool | None = None
    auto_create: bool | None = None
    auto_partitions: int | None = None
    ttl_seconds: int | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    max_consumers_per_subscription: int | None = None
    compaction_threshold: int | None = None

    def over(self, own: Policies) -> Policies:
        """Return the policies of a topic with these of its own."""
        inherited = {name: getattr(self, name) for name in INHERITED if getattr(own, name) is None}
        return replace(own, **inherited)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant; roles and clusters are kept for clients that read them, and mean nothing here."""

    name: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace, by its name as `tenant/namespace`."""

    name: str
    created_ms: int = 0
    policies: NamespacePolicies = field(default_factory=NamespacePolicies)


@dataclass(slots=True)
class ClientInfo:
    """A producer or a consumer of a partition, and its connection.

    `subscription` is None of producers, and `access` of consumers: how a producer shares the
    partition, numbered as in the Pulsar protocol. `dropped` counts the messages that a consumer of
    a topic that is not persistent missed. `messages` and `bytes` are what a client sent or was sent
    since it connected, rates are of a second.
    """

    partition: int
    name: str
    id: int
    connected_ms: int
    metadata: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)
    address: str = ""
    version: str = ""
    subscription: str | None = None
    permits: int = 0
    unacked: int = 0
    dropped: int = 0
    access: int | None = None
    messages: int = 0
    bytes: int = 0
    message_rate: float = 0.0
    byte_rate: float = 0.0
    redelivery_rate: float = 0.0
    ack_rate: float = 0.0


class EntryRange(NamedTuple):
    """Entries of a partition, ends included."""

    first: int
    last: int


@dataclass(slots=True)
class PartialEntry:
    """An entry that is acknowledged in part; `messages` = 0: how many it has is not known."""

    entry: int
    ack_set: Sequence[int]
    messages: int = 0


@dataclass(slots=True)
class CursorDescription:
    """Where a subscription stands on a partition; `mark_delete` = -1: nothing is acknowledged.

    `cut`: there are more `acknowledged` ranges or `partial` entries. `type` is in Pulsar's words,
    None: there are no consumers. `earliest_ms`: when the first message of the backlog was stored,
    where that was requested and there is one. `…_out`: what consumers were sent since the partition
    was loaded.
    """

    partition: int
    subscription: str
    ledger_id: int
    mark_delete: int
    acknowledged: tuple[EntryRange, ...] = ()
    partial: Sequence[PartialEntry] = ()
    cut: bool = False
    durable: bool = True
    unacked: int = 0
    type: str | None = None
    replicated: bool = False
    backlog: int = 0
    created_ms: int | None = None
    last_used_ms: int | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)
    earliest_ms: int | None = None
    messages_out: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class EntryChoice:
    """Which entry of a partition is read: exactly one of the first four says where it is.

    The entry of a number, or the nth (from 1) that a subscription did not acknowledge, from the
    earliest on, or from the latest back.
    """

    entry: int | None = None
    subscription: str | None = None
    earliest: bool = False
    latest: bool = False
    nth: int = 1


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry of a partition; `payload`: its metadata too, as the Pulsar protocol has them.

    Where messages of it are deleted, the payload has the others, and the id is of the last of them.
    """

    message_id: Position
    payload: bytes
    timestamp_ms: int
    index: int


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a topic's schema."""

    version: int
    schema: Schema
    created_ms: int


class JournalCut(NamedTuple):
    """Journal files by number, both included; of the last one so many bytes count."""

    first: int
    last: int
    size: int


@dataclass(frozen=True, slots=True)
class BackupCut:
    """A state of a data folder that the broker holds for a backup; journal None: it has no log."""

    id: int
    journal: JournalCut | None
