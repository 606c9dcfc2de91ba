"""The router's vocabulary: frozen values whose docstrings define the words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from router.errors import BadNameError
from router.errors.quoting import quoted
from router.model.policies import Policies

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
CONSUMER_NAME: Final = re.compile(r"[A-Za-z0-9._:@~+-]{1,249}")
PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"
"""The domains of topics."""
NO_PROPERTIES: Final[Mapping[str, str]] = {}
NOT_PARTITIONED: Final = -1
UNDECODED: Final = "router-undecoded"
"""A property: the value is not what was sent, but an `encrypted` body, one `chunk` of a larger
message, the bytes of a `body` or a whole `entry` that cannot be taken apart, or a body that is
`oversized`, still compressed."""
OVERSIZED: Final = "oversized"
REPLAYED: Final = "router-replayed"
"""A property: the archived message that this one is a replay of."""

REQUEST_PRODUCER: Final = "idempotency:"
"""Begins the names of producers that stand for one request; brokers take them from routers only."""

_FULL = re.compile(r"(persistent|non-persistent)://([^/]+)/([^/]+)/(.+)")
PARTITION_INFIX: Final = "-partition-"
"""Between topic and index in the name of a partition."""
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,5})")
_SEGMENT = re.compile(r"[A-Za-z0-9._=:-]{1,249}")


def check_name(name: str, kind: str) -> str:
    """Return a topic's local name if it is allowed, else raise BadNameError."""
    if not NAME.fullmatch(name) or name in {".", ".."}:
        raise BadNameError(f"{kind} name {quoted(name)}: allowed are 1 to 249 of A-Z a-z 0-9 . _ -")
    return name


def check_consumer_name(name: str, kind: str) -> str:
    """Return a group's or consumer's name if it is allowed, else raise BadNameError."""
    if not CONSUMER_NAME.fullmatch(name) or name in {".", ".."}:
        raise BadNameError(
            f"{kind} name {quoted(name)}: allowed are 1 to 249 of A-Z a-z 0-9 . _ - : @ ~ +"
        )
    return name


def check_namespace(text: str) -> tuple[str, str]:
    """Return tenant and namespace of a `tenant/namespace`; raise BadNameError."""
    tenant, _, namespace = text.partition("/")
    if not (_is_segment(tenant) and _is_segment(namespace)):
        raise BadNameError(f"{quoted(text)} is no namespace")
    return tenant, namespace


def partition_name(topic: str, index: int) -> str:
    """Return the name of one partition of a topic, full or local as the topic's."""
    return f"{topic}{PARTITION_INFIX}{index}"


def _is_segment(text: str) -> bool:
    return _SEGMENT.fullmatch(text) is not None and text not in {".", ".."}


MAX_CACHED_CHARACTERS: Final = 256
"""Of the name of a topic that is kept as it was read."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic, in Pulsar's four parts; DMaaP and Kafka know it by `local`."""

    tenant: str
    namespace: str
    local: str
    domain: str = PERSISTENT

    @classmethod
    def parse(cls, text: str, tenant: str = "public", namespace: str = "default") -> TopicName:
        """Read a local name, `tenant/namespace/local` or a full name; raise BadNameError."""
        read = _read_topic if len(text) > MAX_CACHED_CHARACTERS else _cached_topic
        return read(text, tenant, namespace)

    @classmethod
    def from_segments(cls, domain: str, *segments: str) -> TopicName:
        """Return the topic that tenant, namespace and local name are of; raise BadNameError."""
        for segment in segments:
            if "/" in segment:
                raise BadNameError(f"{quoted(segment)}: a name in a path holds no slash")
        return cls.parse(f"{domain}://{'/'.join(segments)}")

    def partition(self, index: int) -> TopicName:
        """Return the name of one partition; itself where index is NOT_PARTITIONED."""
        if index == NOT_PARTITIONED:
            return self
        local = partition_name(self.local, index)
        return TopicName(self.tenant, self.namespace, local, self.domain)

    def parent(self) -> tuple[TopicName, int] | None:
        """Return the topic and the index that a partition's name stands for; None: it is none."""
        # Asked of every topic: the pattern alone would take a microsecond.
        found = _PARTITION.fullmatch(self.local) if PARTITION_INFIX in self.local else None
        if found is None:
            return None
        return TopicName(self.tenant, self.namespace, found[1], self.domain), int(found[2])

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"


def _read_topic(text: str, tenant: str, namespace: str) -> TopicName:
    if full := _FULL.fullmatch(text):
        domain, tenant, namespace, local = full.groups()
    else:
        domain, local = PERSISTENT, text
        if text.count("/") == 2:
            tenant, namespace, local = text.split("/")
    for part in (tenant, namespace):
        if not _is_segment(part):
            raise BadNameError(f"topic name {quoted(text)}: tenant or namespace is not allowed")
    return TopicName(tenant, namespace, check_name(local, "topic"), domain)


# Requests name the same topics again and again; only short names, so that the memory has a bound.
_cached_topic = lru_cache(maxsize=8_192)(_read_topic)


LOCAL_CLUSTER: Final = "__local__"
"""What Pulsar's clients write for a message that is not to be replicated."""


class Message(NamedTuple):
    """What a publisher hands over: a value with an optional key; times in ms since 1970.

    `deliver_at`: shared subscriptions get it then at the earliest. `sequence` is the publisher's
    own number for it, carried along. `schema_version` says which schema of the topic it was written
    by, empty: none. `null`: there is no value, which is not the same as an empty one.
    `replicate_to` are the clusters that it is meant for: none means all, LOCAL_CLUSTER no other.

    A tuple, because batches make and read them by the hundred, at a third of a dataclass's cost.
    """

    value: bytes
    key: bytes | None = None
    properties: Mapping[str, str] = NO_PROPERTIES
    event_time: int | None = None
    deliver_at: int | None = None
    sequence: int | None = None
    schema_version: bytes = b""
    null: bool = False
    replicate_to: tuple[str, ...] = ()

    def size(self) -> int:
        """Return the bytes that count against limits: value, key and properties."""
        size = len(self.value) + len(self.key or b"")
        if self.properties:
            size += sum(len(k) + len(v) for k, v in self.properties.items())
        return size


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a message is stored: ledger, entry, and index inside a batch entry (-1: no batch).

    `batch_size` counts the entry's messages where it is known (0: unknown), and says how much of an
    entry an acknowledgement inside of it leaves. `epoch` changes with each reset of the
    subscription that it was received for (0: unknown): an acknowledgement of before is refused.
    Neither is part of the identity.
    """

    ledger: int
    entry: int
    partition: int = NOT_PARTITIONED
    batch_index: int = -1
    batch_size: int = field(default=0, compare=False)
    epoch: int = field(default=0, compare=False)

    def may_be_of(self, partition: int) -> bool:
        """Tell whether a message of this partition can have such a position."""
        return self.partition == partition and self.ledger >= 0 and self.entry >= 0


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it comes back from a backend; `publish_time` in milliseconds since 1970.

    `publish_time` is when it was stored; without a broker that says so, when it was published.
    `oversized`: the value is a body as it is stored, compressed, since without its compression it
    is larger than any answer.
    """

    message: Message
    position: Position
    publish_time: int
    redelivery_count: int = 0
    oversized: bool = False


VALUE_OF: Final[Callable[[Stored], bytes]] = attrgetter("message.value")
"""Returns the value of a stored message."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A named cursor on a topic; DMaaP says consumer group, JetStream says consumer."""

    topic: TopicName
    name: str


@dataclass(frozen=True, slots=True)
class ConsumerId:
    """The name under which a consumer polls for a group."""

    subscription: Subscription
    name: str


@dataclass(frozen=True, slots=True)
class Grant:
    """A partition of a subscription that a claim holds, and under which generation."""

    subscription: Subscription
    partition: int
    generation: int


@dataclass(frozen=True, slots=True)
class CursorState:
    """Where a subscription stands on one partition.

    Everything up to and including `mark_delete` is acknowledged (None: nothing is), and so are the
    `acknowledged` ranges behind it, ends included. A position without an index is the whole batch.
    `backlog` counts the messages that are left. `used_ms`: when it was read or acknowledged last,
    in ms since 1970; 0: not known. `owner`: a JetStream consumer or the like, "": subscribers.
    """

    partition: int
    mark_delete: Position | None
    acknowledged: tuple[tuple[Position, Position], ...] = ()
    backlog: int = 0
    used_ms: int = 0
    owner: str = ""


class SchemaType(IntEnum):
    """What a schema describes; the numbers are those of the Pulsar protocol."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


@dataclass(frozen=True, slots=True)
class Schema:
    """What the values of a topic look like: a type, and its definition where the type needs one.

    `data` is the definition (JSON and AVRO: an Avro schema as JSON text; KEY_VALUE: the lengths and
    definitions of key and value, as Pulsar lays them out). `version` is opaque, as the store gave
    it (Pulsar: 8 bytes, a big-endian number from 0); empty: not stored.
    """

    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)
    name: str = ""
    version: bytes = b""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request; the anonymous one has no name.

    `key`: known by the signature of the API key of that name; `admin`: that key is `admin`.
    `unproven`: why the signature of an anonymous client is refused, "": it has none.
    """

    name: str = ""
    key: bool = False
    admin: bool = False
    unproven: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as administration sees it; partitions = 0: not partitioned.

    `internal`: it belongs to the store itself, and every call that names it is refused.
    """

    topic: TopicName
    partitions: int = 0
    policies: Policies = field(default_factory=Policies)
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)
    created_ms: int = 0
    internal: bool = False


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """What one partition holds: entries from `first_entry` on, and the next one is `next_entry`.

    `messages` are those that are left, `deleted` those from `first_entry` on that were deleted, the
    last ones included: `next_entry` never becomes less. `undecided` ones from `next_entry` on are
    stored and not shown yet, because of transactions, where a store counts them. Rates are of what
    is stored in a second; 0 where the store does not measure them.
    """

    partition: int
    ledger: int = 0
    first_entry: int = 0
    next_entry: int = 0
    messages: int = 0
    bytes: int = 0
    producers: int = 0
    deleted: int = 0
    undecided: int = 0
    message_rate: float = 0.0
    byte_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """Where one subscription stands on one partition; backlog in messages.

    `last_used_ms`: when it was read or acknowledged last, in ms since 1970; 0: not known.
    """

    name: str
    partition: int
    backlog: int
    consumers: int = 0
    durable: bool = True
    last_used_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic with its partitions and subscriptions."""

    info: TopicInfo
    partitions: tuple[PartitionStats, ...]
    subscriptions: tuple[SubscriptionStats, ...]


class PollOutcome(Enum):
    """How a poll ended, for the limit on empty polls; refused polls do not count."""

    REFUSED = "refused"
    EMPTY = "empty"
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer id that is live in a group.

    `node` is the other node that it polls at, "": this one. Its waiting `polls` and the times are
    known for this node alone: how long its first poll waits, or how long ago its last one ended.
    Of a member of a Kafka group `consumer` is its member id, `client` its client id and address.
    """

    consumer: str
    node: str = ""
    polls: int = 0
    polling_ms: int | None = None
    idle_ms: int | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLease:
    """Which node holds a partition of a group; `waiting` nodes queue for it.

    "" is this node, None: no node. `consumer` is the id whose poll reads it at this node now.
    """

    partition: int
    node: str | None = ""
    consumer: str | None = None
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The polls of a group on all nodes.

    `cut`: there are more than an answer holds. `unavailable_reason`: why other nodes are not known
    at present.
    """

    members: tuple[Member, ...] = ()
    leases: tuple[PartitionLease, ...] = ()
    cut: bool = False
    unavailable_reason: str | None = None
