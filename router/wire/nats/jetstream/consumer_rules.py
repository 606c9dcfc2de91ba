"""Which consumer configurations are allowed, and what is filled in; the rules of nats-server 2.15.

`addressed_consumer` compares a request with its subject, `checked_consumer` checks the
configuration against its stream and fills in defaults, `check_new_consumer` has the rules of
work-queue streams for a new consumer, `check_consumer_update` says what may change. What depends on
the other consumers of the stream (limits, uniqueness on a work queue) is checked where they are
kept.

Refused although nats-server takes it: the members that servers use to copy streams (`direct`,
`sourcing`, the ack policy `flow_control`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.policies import (
    AckPolicy,
    DeliverPolicy,
    PriorityPolicy,
    Retention,
)
from router.wire.nats.jetstream.requests import ConsumerCreateRequest
from router.wire.nats.jetstream.stream_rules import (
    MAX_DESCRIPTION_BYTES,
    MAX_METADATA_BYTES,
    MAX_NAME_BYTES,
    MAX_SUBJECTS,
    is_valid_name,
    metadata_bytes,
)
from router.wire.nats.subjects import is_subset, is_valid

_MILLISECOND_NS: Final = 1_000_000
_SECOND_NS: Final = 1000 * _MILLISECOND_NS
_ACK_WAIT_NS: Final = 30 * _SECOND_NS
_SHORTEST_HEARTBEAT_NS: Final = 100 * _MILLISECOND_NS
_INACTIVE_THRESHOLD_NS: Final = 5 * _SECOND_NS
_MAX_WAITING: Final = 512
_MAX_ACK_PENDING: Final = 1000
_MAX_INT64: Final = (1 << 63) - 1
_PINNED_NS: Final = 120 * _SECOND_NS
_GROUP_NAME: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_SAMPLE_FREQUENCY: Final = re.compile(r"[+-]?\d{1,19}")
_NOT_NEGATIVE: Final = (
    *("max_waiting", "max_batch", "max_expires", "max_bytes"),
    *("idle_heartbeat", "inactive_threshold", "priority_timeout"),
)

_Rule = Callable[[ConsumerConfig, StreamConfig], Any]
_Rules = Sequence[tuple[_Rule, ErrorCode]]

_REPLICAS: Final[_Rules] = (
    (
        lambda c, stream: c.num_replicas > stream.num_replicas,
        ErrorCode.CONSUMER_REPLICAS_EXCEEDS_STREAM,
    ),
    (lambda c, _: c.num_replicas < 0, ErrorCode.REPLICAS_COUNT_CANNOT_BE_NEGATIVE),
    (lambda c, _: any(wait < 0 for wait in c.backoff), ErrorCode.CONSUMER_BACKOFF_NEGATIVE),
    (lambda c, _: c.ack_wait < 0, ErrorCode.CONSUMER_ACK_WAIT_NEGATIVE),
    (
        lambda c, _: c.max_deliver != -1 and len(c.backoff) > c.max_deliver,
        ErrorCode.CONSUMER_MAX_DELIVER_BACKOFF,
    ),
)

_PUSH: Final[_Rules] = (
    (
        lambda c, _: not {"*", ">"}.isdisjoint(c.deliver_subject.split(".")),
        ErrorCode.CONSUMER_DELIVER_TO_WILDCARDS,
    ),
    (lambda c, _: not is_valid(c.deliver_subject), ErrorCode.CONSUMER_INVALID_DELIVER_SUBJECT),
    (
        lambda c, stream: any(is_subset(c.deliver_subject, subject) for subject in stream.subjects),
        ErrorCode.CONSUMER_DELIVER_CYCLE,
    ),
    (lambda c, _: c.max_waiting, ErrorCode.CONSUMER_PUSH_MAX_WAITING),
    (
        lambda c, _: c.max_ack_pending > 0 and c.ack_policy is AckPolicy.NONE,
        ErrorCode.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED,
    ),
    (
        lambda c, _: 0 < c.idle_heartbeat < _SHORTEST_HEARTBEAT_NS,
        ErrorCode.CONSUMER_SMALL_HEARTBEAT,
    ),
)

_PULL: Final[_Rules] = (
    (
        lambda c, stream: (
            c.ack_policy is AckPolicy.NONE and stream.retention is Retention.WORK_QUEUE
        ),
        ErrorCode.CONSUMER_PULL_REQUIRES_ACK,
    ),
    (lambda c, _: c.rate_limit_bps, ErrorCode.CONSUMER_PULL_WITH_RATE_LIMIT),
    (lambda c, _: c.idle_heartbeat, ErrorCode.CONSUMER_HB_REQUIRES_PUSH),
    (lambda c, _: c.flow_control, ErrorCode.CONSUMER_FC_REQUIRES_PUSH),
    (
        lambda c, _: 0 < c.max_expires < _MILLISECOND_NS,
        ErrorCode.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL,
    ),
)

# What is set beside a deliver policy although it starts elsewhere, and what is missing.
_STARTS: Final[dict[DeliverPolicy, str]] = {
    DeliverPolicy.ALL: "all",
    DeliverPolicy.LAST: "last",
    DeliverPolicy.LAST_PER_SUBJECT: "last per subject",
    DeliverPolicy.NEW: "new",
    DeliverPolicy.BY_START_SEQUENCE: "by start sequence",
    DeliverPolicy.BY_START_TIME: "by start time",
}

_GROUPS: Final[_Rules] = (
    (
        lambda c, _: c.flow_control and not c.idle_heartbeat,
        ErrorCode.CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS,
    ),
    (
        lambda c, _: c.durable_name and c.name and c.name != c.durable_name,
        ErrorCode.CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH,
    ),
)

_UPDATES: Final[Sequence[tuple[str, str]]] = (
    ("deliver_policy", "deliver policy can not be updated"),
    ("mem_storage", "storage type can not be updated"),
    ("opt_start_seq", "start sequence can not be updated"),
    ("opt_start_time", "start time can not be updated"),
    ("ack_policy", "ack policy can not be updated"),
    ("replay_policy", "replay policy can not be updated"),
    ("idle_heartbeat", "heart beats can not be updated"),
    ("flow_control", "flow control can not be updated"),
)


def addressed_consumer(subject: str, request: ConsumerCreateRequest) -> ConsumerConfig:
    """Return the configuration of a request, with the name that its subject gives it.

    `subject` is what follows `$JS.API.`: `CONSUMER.CREATE.<stream>[.<name>[.<filter>]]` or
    `CONSUMER.DURABLE.CREATE.<stream>.<name>`. The name is empty if the consumer needs a new one.
    Raises JetStreamError 10056, 10127, 10016 to 10020, 10131, 10137 or 10074.
    """
    tokens = subject.split(".")
    is_durable_form = tokens[1] == "DURABLE"
    if is_durable_form and len(tokens) != 5:
        raise error(ErrorCode.CONSUMER_DURABLE_NAME_NOT_IN_SUBJECT)
    stream, *rest = tokens[3:] if is_durable_form else tokens[2:]
    config = request.config
    name = rest[0] if rest else config.name
    if stream != request.stream_name:
        raise error(ErrorCode.STREAM_MISMATCH)
    if "/" in name or "\\" in name:
        raise error(ErrorCode.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS)
    _check_durable(config, name, is_durable_form=is_durable_form, is_named=bool(rest))
    _check_filter(config, ".".join(rest[1:]))
    if config.num_replicas > 1:
        raise error(ErrorCode.STREAM_REPLICAS_NOT_SUPPORTED)
    return replace(config, name=name)


def checked_consumer(
    config: ConsumerConfig, stream: StreamConfig, *, pedantic: bool = False
) -> ConsumerConfig:
    """Return a configuration that its stream allows, defaults filled in.

    `pedantic` refuses values that would be replaced by another one. Raises JetStreamError with the
    code of the first rule that is broken.
    """
    config = _with_defaults(config, stream, pedantic=pedantic)
    _check_names(config)
    _check(_REPLICAS, config, stream)
    if len(config.description.encode()) > MAX_DESCRIPTION_BYTES:
        raise error(ErrorCode.CONSUMER_DESCRIPTION_TOO_LONG, max=MAX_DESCRIPTION_BYTES)
    _check(_PUSH if config.is_push else _PULL, config, stream)
    _check_limits(config, stream)
    _check_filters(config)
    _check_start(config)
    _check_sampling(config)
    _check(_GROUPS, config, stream)
    if metadata_bytes(config.metadata) > MAX_METADATA_BYTES:
        raise error(ErrorCode.CONSUMER_METADATA_LENGTH, limit=f"{MAX_METADATA_BYTES // 1024}KB")
    _check_priority(config)
    _check_refused(config)
    if not config.is_durable and config.inactive_threshold <= 0:
        config = replace(config, inactive_threshold=_INACTIVE_THRESHOLD_NS)
    return config


def check_new_consumer(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Check what a work-queue stream demands of a new consumer; raises JetStreamError."""
    if len((config.durable_name or config.name).encode()) > MAX_NAME_BYTES:
        raise error(ErrorCode.CONSUMER_NAME_TOO_LONG, max=MAX_NAME_BYTES)
    if stream.retention is not Retention.WORK_QUEUE:
        return
    if config.ack_policy is not AckPolicy.EXPLICIT:
        raise error(ErrorCode.CONSUMER_WQ_REQUIRES_EXPLICIT_ACK)
    if config.deliver_policy is not DeliverPolicy.ALL:
        raise error(ErrorCode.CONSUMER_WQ_CONSUMER_NOT_DELIVER_ALL)


def check_consumer_update(old: ConsumerConfig, new: ConsumerConfig, *, is_bound: bool) -> None:
    """Check that a consumer may change so; both are as `checked_consumer` returns them.

    `is_bound` says whether a client subscribes the old deliver subject. Raises JetStreamError 10012
    or 10013.
    """
    for member, sentence in _UPDATES:
        if getattr(old, member) != getattr(new, member):
            raise _refused(sentence)
    if old.deliver_subject != new.deliver_subject:
        if not old.is_push:
            raise _refused("can not update pull consumer to push based")
        if not new.is_push:
            raise _refused("can not update push consumer to pull based")
        if is_bound:
            raise error(ErrorCode.CONSUMER_NAME_EXIST)
    if old.max_waiting != new.max_waiting:
        raise _refused("max waiting can not be updated")


def is_group_name(name: str) -> bool:
    """Return whether a priority group may have this name."""
    return _GROUP_NAME.fullmatch(name) is not None


def _refused(sentence: str) -> JetStreamError:
    return error(ErrorCode.CONSUMER_CREATE, err=sentence)


def _check(rules: _Rules, config: ConsumerConfig, stream: StreamConfig) -> None:
    for is_broken, code in rules:
        if is_broken(config, stream):
            raise error(code)


def _check_durable(
    config: ConsumerConfig, name: str, *, is_durable_form: bool, is_named: bool
) -> None:
    if is_durable_form and not config.durable_name:
        raise error(ErrorCode.CONSUMER_DURABLE_NAME_NOT_SET)
    if is_named and config.durable_name and config.durable_name != name:
        raise error(ErrorCode.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT)
    if not is_named and config.durable_name:
        raise error(ErrorCode.CONSUMER_EPHEMERAL_WITH_DURABLE_NAME)


def _check_filter(config: ConsumerConfig, filter_in_subject: str) -> None:
    if not filter_in_subject:
        return
    if config.filter_subjects:
        raise error(ErrorCode.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED)
    if config.filter_subject != filter_in_subject:
        raise error(ErrorCode.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH)


def _with_defaults(
    config: ConsumerConfig, stream: StreamConfig, *, pedantic: bool
) -> ConsumerConfig:
    if pedantic:
        _check_pedantic(config, stream)
    changes: dict[str, Any] = {name: 0 for name in _NOT_NEGATIVE if getattr(config, name) < 0}
    changes["max_deliver"] = config.max_deliver if config.max_deliver > 0 else -1
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT and config.priority_timeout <= 0:
        changes["priority_timeout"] = _PINNED_NS
    config = replace(config, **changes)
    return replace(
        config,
        max_waiting=config.max_waiting or (0 if config.is_push else _MAX_WAITING),
        ack_wait=_ack_wait(config),
        max_ack_pending=_max_ack_pending(config, stream),
        inactive_threshold=config.inactive_threshold or stream.consumer_limits.inactive_threshold,
    )


def _ack_wait(config: ConsumerConfig) -> int:
    if config.backoff:
        return config.backoff[0]
    if not config.ack_wait and config.ack_policy in (AckPolicy.EXPLICIT, AckPolicy.ALL):
        return _ACK_WAIT_NS
    return config.ack_wait


def _max_ack_pending(config: ConsumerConfig, stream: StreamConfig) -> int:
    given = max(config.max_ack_pending, -1) or stream.consumer_limits.max_ack_pending
    if not given and config.ack_policy is not AckPolicy.NONE:
        return _MAX_ACK_PENDING
    return given


def _check_pedantic(config: ConsumerConfig, stream: StreamConfig) -> None:
    limits = stream.consumer_limits
    for is_replaced, sentence in (
        (config.max_deliver < -1, "max_deliver must be set to -1"),
        (config.max_ack_pending < -1, "max_ack_pending must be set to -1"),
        *((getattr(config, name) < 0, f"{name} must not be negative") for name in _NOT_NEGATIVE),
        (
            config.backoff and config.ack_wait != config.backoff[0],
            "first backoff value has to equal batch AckWait",
        ),
        (
            not config.max_ack_pending and limits.max_ack_pending > 0,
            "max_ack_pending must be set if it's configured in stream limits",
        ),
        (
            not config.inactive_threshold and limits.inactive_threshold > 0,
            "inactive_threshold must be set if it's configured in stream limits",
        ),
    ):
        if is_replaced:
            raise error(ErrorCode.PEDANTIC, err=sentence)


def _check_names(config: ConsumerConfig) -> None:
    for kind, name in (("name", config.name), ("durable name", config.durable_name)):
        if name and not is_valid_name(name):
            raise error(
                ErrorCode.STREAM_INVALID_CONFIG,
                err=f"consumer {kind} can not contain '.', '*', '>', '\\', '/'",
            )


def _check_limits(config: ConsumerConfig, stream: StreamConfig) -> None:
    limits = stream.consumer_limits
    if 0 < limits.max_ack_pending < config.max_ack_pending:
        raise error(ErrorCode.CONSUMER_MAX_PENDING_ACK_EXCESS, limit=limits.max_ack_pending)
    if 0 < limits.inactive_threshold < config.inactive_threshold:
        raise error(
            ErrorCode.CONSUMER_INACTIVE_THRESHOLD_EXCESS,
            limit=f"{limits.inactive_threshold / _SECOND_NS:g}s",
        )


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise error(ErrorCode.CONSUMER_DUPLICATE_FILTER_SUBJECTS)
    if "" in config.filter_subjects:
        raise error(ErrorCode.CONSUMER_EMPTY_FILTER)
    if len(filters := config.filters) > MAX_SUBJECTS:
        raise error(ErrorCode.STREAM_INVALID_CONFIG, err=f"more than {MAX_SUBJECTS} filters")
    for place, subject in enumerate(filters):
        if not is_valid(subject):
            raise error(ErrorCode.STREAM_INVALID_CONFIG, err="malformed subject")
        for other_place, other in enumerate(filters):
            if place != other_place and is_subset(subject, other):
                raise error(ErrorCode.CONSUMER_OVERLAPPING_SUBJECT_FILTERS)


def _check_start(config: ConsumerConfig) -> None:
    policy = config.deliver_policy
    for is_set, is_due, name in (
        (config.opt_start_seq > 0, policy is DeliverPolicy.BY_START_SEQUENCE, "sequence"),
        (config.opt_start_time is not None, policy is DeliverPolicy.BY_START_TIME, "time"),
    ):
        if is_set and not is_due:
            raise error(
                ErrorCode.CONSUMER_INVALID_POLICY,
                err=f"consumer delivery policy is deliver {_STARTS[policy]}, "
                f"but optional start {name} is also set",
            )
        if is_due and not is_set:
            raise _not_set(policy, f"start {name}")
    if policy is DeliverPolicy.LAST_PER_SUBJECT and not config.filters:
        raise _not_set(policy, "filter subject")


def _not_set(policy: DeliverPolicy, name: str) -> JetStreamError:
    return error(
        ErrorCode.CONSUMER_INVALID_POLICY,
        err=f"consumer delivery policy is deliver {_STARTS[policy]}, "
        f"but optional {name} is not set",
    )


def _check_sampling(config: ConsumerConfig) -> None:
    if not config.sample_freq:
        return
    percent = config.sample_freq.removesuffix("%")
    if (
        not percent.isascii()
        or _SAMPLE_FREQUENCY.fullmatch(percent) is None
        or not 0 <= int(percent) <= _MAX_INT64
    ):
        raise error(ErrorCode.CONSUMER_INVALID_SAMPLING, err="a percentage from 0 on is expected")


def _check_priority(config: ConsumerConfig) -> None:
    if config.priority_policy is not PriorityPolicy.NONE:
        if config.is_push:
            raise error(ErrorCode.CONSUMER_PUSH_WITH_PRIORITY_GROUP)
        if not config.priority_groups:
            raise error(ErrorCode.CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP)
        for group in config.priority_groups:
            if not group:
                raise error(ErrorCode.CONSUMER_EMPTY_GROUP_NAME)
            if not is_group_name(group):
                raise error(ErrorCode.CONSUMER_INVALID_GROUP_NAME)
        return
    if config.priority_groups:
        raise error(ErrorCode.CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE)
    if config.priority_timeout:
        raise error(ErrorCode.CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY_NONE)


def _check_refused(config: ConsumerConfig) -> None:
    if config.ack_policy is AckPolicy.FLOW_CONTROL:
        raise _refused("the ack policy flow_control is not supported")
    if config.direct or config.sourcing:
        raise _refused("direct and sourcing consumers are not supported")
