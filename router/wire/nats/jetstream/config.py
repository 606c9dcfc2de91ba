"""Configurations of streams and consumers: their members, strict reading and JSON.

Members have the names of the JSON and the defaults of an absent member, which are Go's zero values.
Durations are integers of nanoseconds, times are nanoseconds since 1970. `from_json` checks types
alone; which values go together, and what the server fills in, is in `stream_rules` and
`consumer_rules`: store and show only what `checked_stream` and `checked_consumer` return.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from router.wire.nats.jetstream.members import JsonObject, member, reader_of
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

SERVER_METADATA_PREFIX: Final = "_nats."
"""Metadata with this prefix belongs to nats-server: it is dropped when a configuration is read."""


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
_PLACEMENT: Final = ObjectReader({"cluster": text, "tags": array(text, ""), "preferred": text})
_REPUBLISH: Final = ObjectReader({"src": text, "dest": text, "headers_only": boolean})


@dataclass(frozen=True, slots=True)
class ConsumerLimits(JsonObject):
    """The bounds that a stream sets for its consumers; 0 for none."""

    inactive_threshold: int = member(int64, 0)
    max_ack_pending: int = member(int64, 0)

    @classmethod
    def from_json(cls, value: object) -> ConsumerLimits:
        """Return the limits of a decoded JSON object; raises ValueError."""
        return cls(**reader_of(cls)(value))


@dataclass(frozen=True, slots=True)
class StreamConfig(JsonObject):
    """The configuration of a stream.

    The objects that the router refuses (`placement` to `republish`) are kept as they came, so that
    a refusal can name them.
    """

    name: str = member(text, "", always=True)
    description: str = member(text, "")
    subjects: tuple[str, ...] = member(array(text, ""), ())
    retention: Retention = member(choice(Retention), Retention.LIMITS, always=True)
    max_consumers: int = member(int64, 0, always=True)
    max_msgs: int = member(int64, 0, always=True)
    max_bytes: int = member(int64, 0, always=True)
    max_age: int = member(int64, 0, always=True)
    max_msgs_per_subject: int = member(int64, 0, always=True)
    max_msg_size: int = member(int32, 0)
    discard: Discard = member(choice(Discard), Discard.OLD, always=True)
    storage: StorageType = member(choice(StorageType), StorageType.FILE, always=True)
    num_replicas: int = member(int64, 0, always=True)
    no_ack: bool = member(boolean, False)
    duplicate_window: int = member(int64, 0)
    placement: Mapping[str, Any] | None = member(_PLACEMENT, None)
    mirror: Mapping[str, Any] | None = member(_SOURCE, None)
    sources: tuple[Mapping[str, Any], ...] = member(array(_SOURCE, {}), ())
    compression: Compression = member(choice(Compression), Compression.NONE, always=True)
    first_seq: int = member(uint64, 0)
    subject_transform: Mapping[str, Any] | None = member(_TRANSFORM, None)
    republish: Mapping[str, Any] | None = member(_REPUBLISH, None)
    allow_direct: bool = member(boolean, False, always=True)
    mirror_direct: bool = member(boolean, False, always=True)
    discard_new_per_subject: bool = member(boolean, False)
    sealed: bool = member(boolean, False, always=True)
    deny_delete: bool = member(boolean, False, always=True)
    deny_purge: bool = member(boolean, False, always=True)
    allow_rollup_hdrs: bool = member(boolean, False, always=True)
    consumer_limits: ConsumerLimits = member(
        ConsumerLimits.from_json, ConsumerLimits(), always=True
    )
    allow_msg_ttl: bool = member(boolean, False, always=True)
    subject_delete_marker_ttl: int = member(int64, 0)
    allow_msg_counter: bool = member(boolean, False)
    allow_atomic: bool = member(boolean, False)
    allow_msg_schedules: bool = member(boolean, False)
    persist_mode: PersistMode = member(
        choice(PersistMode, **{"": PersistMode.DEFAULT}), PersistMode.DEFAULT
    )
    allow_batched: bool = member(boolean, False)
    metadata: Mapping[str, str] = member(_metadata, default_factory=dict)

    @property
    def marker_seconds(self) -> int:
        """How long delete markers live; 0: the stream makes none."""
        return self.subject_delete_marker_ttl // 1_000_000_000

    @classmethod
    def from_json(cls, value: object) -> StreamConfig:
        """Return the configuration of a decoded JSON object; raises JetStreamError 10025."""
        return cls(**reader_of(cls).read(value))


@dataclass(frozen=True, slots=True)
class ConsumerConfig(JsonObject):
    """The configuration of a consumer: a pull consumer unless `deliver_subject` is set."""

    durable_name: str = member(text, "")
    name: str = member(text, "")
    description: str = member(text, "")
    deliver_policy: DeliverPolicy = member(
        choice(DeliverPolicy, undefined=DeliverPolicy.ALL), DeliverPolicy.ALL, always=True
    )
    opt_start_seq: int = member(uint64, 0)
    opt_start_time: int | None = member(timestamp, None)
    ack_policy: AckPolicy = member(choice(AckPolicy), AckPolicy.NONE, always=True)
    ack_wait: int = member(int64, 0)
    max_deliver: int = member(int64, 0)
    backoff: tuple[int, ...] = member(array(int64, 0), ())
    filter_subject: str = member(text, "")
    filter_subjects: tuple[str, ...] = member(array(text, ""), ())
    replay_policy: ReplayPolicy = member(choice(ReplayPolicy), ReplayPolicy.INSTANT, always=True)
    rate_limit_bps: int = member(uint64, 0)
    sample_freq: str = member(text, "")
    max_waiting: int = member(int64, 0)
    max_ack_pending: int = member(int64, 0)
    flow_control: bool = member(boolean, False)
    headers_only: bool = member(boolean, False)
    max_batch: int = member(int64, 0)
    max_expires: int = member(int64, 0)
    max_bytes: int = member(int64, 0)
    deliver_subject: str = member(text, "")
    deliver_group: str = member(text, "")
    idle_heartbeat: int = member(int64, 0)
    inactive_threshold: int = member(int64, 0)
    num_replicas: int = member(int64, 0, always=True)
    mem_storage: bool = member(boolean, False)
    direct: bool = member(boolean, False)
    sourcing: bool = member(boolean, False)
    metadata: Mapping[str, str] = member(_metadata, default_factory=dict)
    pause_until: int | None = member(timestamp, None)
    priority_groups: tuple[str, ...] = member(array(text, ""), ())
    priority_policy: PriorityPolicy = member(choice(PriorityPolicy), PriorityPolicy.NONE)
    priority_timeout: int = member(int64, 0)

    @classmethod
    def from_json(cls, value: object) -> ConsumerConfig:
        """Return the configuration of a decoded JSON object; raises JetStreamError 10025."""
        return cls(**reader_of(cls).read(value))

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
