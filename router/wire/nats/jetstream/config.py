"""Configurations of streams and consumers: their members, strict reading and JSON.

Members have the names of the JSON and the defaults of an absent member, which are Go's zero values.
Durations are integers of nanoseconds, times are nanoseconds since 1970. `from_json` checks types
alone; which values go together, and what the server fills in, is in `stream_rules` and
`consumer_rules`: store and show only what `checked_stream` and `checked_consumer` return.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from router.wire.nats.jetstream.policies import (
    AckPolicy,
    Compression,
    DeliverPolicy,
    Discard,
    PersistMode,
    PriorityPolicy,
    ReplayPolicy,
    Retention,
    StorageType,
)
from router.wire.nats.jetstream.reading import (
    ObjectReader,
    array,
    boolean,
    choice,
    int32,
    int64,
    text,
    text_map,
    timestamp,
    uint64,
)
from router.wire.nats.jetstream.times import format_time

SERVER_METADATA_PREFIX: Final = "_nats."
"""Metadata with this prefix belongs to nats-server: it is dropped when a configuration is read."""


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """The bounds that a stream sets for its consumers; 0 for none."""

    inactive_threshold: int = 0
    max_ack_pending: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the members that are not 0."""
        return {
            name: value
            for name, value in (
                ("inactive_threshold", self.inactive_threshold),
                ("max_ack_pending", self.max_ack_pending),
            )
            if value
        }


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The configuration of a stream.

    The objects that the router refuses (`placement` to `republish`) are kept as they came, so that
    a refusal can name them.
    """

    name: str = ""
    description: str = ""
    subjects: tuple[str, ...] = ()
    retention: Retention = Retention.LIMITS
    max_consumers: int = 0
    max_msgs: int = 0
    max_bytes: int = 0
    max_age: int = 0
    max_msgs_per_subject: int = 0
    max_msg_size: int = 0
    discard: Discard = Discard.OLD
    storage: StorageType = StorageType.FILE
    num_replicas: int = 0
    no_ack: bool = False
    duplicate_window: int = 0
    placement: Mapping[str, Any] | None = None
    mirror: Mapping[str, Any] | None = None
    sources: tuple[Mapping[str, Any], ...] = ()
    compression: Compression = Compression.NONE
    first_seq: int = 0
    subject_transform: Mapping[str, Any] | None = None
    republish: Mapping[str, Any] | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: int = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = PersistMode.DEFAULT
    allow_batched: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object) -> StreamConfig:
        """Return the configuration of a decoded JSON object; raises JetStreamError 10025."""
        return cls(**STREAM_MEMBERS.read(value))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object as the server writes it: some members always, others if set."""
        return _to_json(self, _ALWAYS_IN_STREAMS)


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The configuration of a consumer: a pull consumer unless `deliver_subject` is set."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = DeliverPolicy.ALL
    opt_start_seq: int = 0
    opt_start_time: int | None = None
    ack_policy: AckPolicy = AckPolicy.NONE
    ack_wait: int = 0
    max_deliver: int = 0
    backoff: tuple[int, ...] = ()
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    replay_policy: ReplayPolicy = ReplayPolicy.INSTANT
    rate_limit_bps: int = 0
    sample_freq: str = ""
    max_waiting: int = 0
    max_ack_pending: int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: int = 0
    max_expires: int = 0
    max_bytes: int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: int = 0
    inactive_threshold: int = 0
    num_replicas: int = 0
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    pause_until: int | None = None
    priority_groups: tuple[str, ...] = ()
    priority_policy: PriorityPolicy = PriorityPolicy.NONE
    priority_timeout: int = 0

    @classmethod
    def from_json(cls, value: object) -> ConsumerConfig:
        """Return the configuration of a decoded JSON object; raises JetStreamError 10025."""
        return cls(**CONSUMER_MEMBERS.read(value))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object as the server writes it: some members always, others if set."""
        return _to_json(self, _ALWAYS_IN_CONSUMERS)

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects that the consumer gets; () stands for all."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else ())

    @property
    def is_durable(self) -> bool:
        """Whether the consumer stays when no client uses it."""
        return bool(self.durable_name)

    @property
    def is_push(self) -> bool:
        """Whether messages go to a subject, and not to who pulls."""
        return bool(self.deliver_subject)


def _metadata(value: object) -> dict[str, str]:
    return {
        key: word
        for key, word in text_map(value).items()
        if not key.startswith(SERVER_METADATA_PREFIX)
    }


_EXTERNAL: Final = ObjectReader({"api": text, "deliver": text})
_TRANSFORM: Final = ObjectReader({"src": text, "dest": text})
_SOURCE: Final = ObjectReader(
    {
        "name": text,
        "opt_start_seq": uint64,
        "opt_start_time": timestamp,
        "filter_subject": text,
        "subject_transforms": array(_TRANSFORM, {}),
        "external": _EXTERNAL,
        "consumer": ObjectReader({"name": text, "deliver_subject": text}),
    }
)


def _consumer_limits(value: object) -> ConsumerLimits:
    return ConsumerLimits(**_CONSUMER_LIMITS(value))


_CONSUMER_LIMITS: Final = ObjectReader({"inactive_threshold": int64, "max_ack_pending": int64})

STREAM_MEMBERS: Final = ObjectReader(
    {
        "name": text,
        "description": text,
        "subjects": array(text, ""),
        "retention": choice(Retention),
        **dict.fromkeys(("max_consumers", "max_msgs", "max_bytes", "max_age"), int64),
        "max_msgs_per_subject": int64,
        "max_msg_size": int32,
        "discard": choice(Discard),
        "storage": choice(StorageType),
        "num_replicas": int64,
        "no_ack": boolean,
        "duplicate_window": int64,
        "placement": ObjectReader({"cluster": text, "tags": array(text, ""), "preferred": text}),
        "mirror": _SOURCE,
        "sources": array(_SOURCE, {}),
        "compression": choice(Compression),
        "first_seq": uint64,
        "subject_transform": _TRANSFORM,
        "republish": ObjectReader({"src": text, "dest": text, "headers_only": boolean}),
        **dict.fromkeys(("allow_direct", "mirror_direct", "discard_new_per_subject"), boolean),
        **dict.fromkeys(("sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs"), boolean),
        "consumer_limits": _consumer_limits,
        "allow_msg_ttl": boolean,
        "subject_delete_marker_ttl": int64,
        **dict.fromkeys(("allow_msg_counter", "allow_atomic", "allow_msg_schedules"), boolean),
        "persist_mode": choice(PersistMode, **{"": PersistMode.DEFAULT}),
        "allow_batched": boolean,
        "metadata": _metadata,
    }
)
"""Reads the members of a stream's configuration that are there."""

CONSUMER_MEMBERS: Final = ObjectReader(
    {
        **dict.fromkeys(("durable_name", "name", "description"), text),
        "deliver_policy": choice(DeliverPolicy, undefined=DeliverPolicy.ALL),
        "opt_start_seq": uint64,
        "opt_start_time": timestamp,
        "ack_policy": choice(AckPolicy),
        "ack_wait": int64,
        "max_deliver": int64,
        "backoff": array(int64, 0),
        "filter_subject": text,
        "filter_subjects": array(text, ""),
        "replay_policy": choice(ReplayPolicy),
        "rate_limit_bps": uint64,
        "sample_freq": text,
        "max_waiting": int64,
        "max_ack_pending": int64,
        **dict.fromkeys(("flow_control", "headers_only"), boolean),
        **dict.fromkeys(("max_batch", "max_expires", "max_bytes"), int64),
        **dict.fromkeys(("deliver_subject", "deliver_group"), text),
        **dict.fromkeys(("idle_heartbeat", "inactive_threshold", "num_replicas"), int64),
        **dict.fromkeys(("mem_storage", "direct", "sourcing"), boolean),
        "metadata": _metadata,
        "pause_until": timestamp,
        "priority_groups": array(text, ""),
        "priority_policy": choice(PriorityPolicy),
        "priority_timeout": int64,
    }
)
"""Reads the members of a consumer's configuration that are there."""

_ALWAYS_IN_STREAMS: Final = frozenset(
    (
        *("name", "retention", "max_consumers", "max_msgs", "max_bytes", "max_age"),
        *("max_msgs_per_subject", "discard", "storage", "num_replicas", "compression"),
        *("allow_direct", "mirror_direct", "sealed", "deny_delete", "deny_purge"),
        *("allow_rollup_hdrs", "consumer_limits", "allow_msg_ttl"),
    )
)
_ALWAYS_IN_CONSUMERS: Final = frozenset(
    ("deliver_policy", "ack_policy", "replay_policy", "num_replicas")
)
_TIMES: Final = frozenset({"opt_start_time", "pause_until"})


def _to_json(config: StreamConfig | ConsumerConfig, always: frozenset[str]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for member in fields(config):
        value = getattr(config, member.name)
        if member.name not in always and value == _absent(member):
            continue
        if member.name in _TIMES:
            value = format_time(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, StrEnum):
            value = value.value
        elif isinstance(value, ConsumerLimits):
            value = value.to_json()
        members[member.name] = value
    return members


def _absent(member: Any) -> object:
    factory = member.default_factory
    return member.default if factory is MISSING else factory()
