"""Which stream configurations are allowed, and what is filled in; the rules of nats-server 2.15.

`check_stream_create` and `check_stream_update` take a request as it came, `checked_stream_update`
compares with what is stored. What only the streams beside it show (overlapping subjects, limits of
the account) is checked where streams are kept.

Refused although nats-server takes it, with its code 10052: mirrors, sources, transforms,
republishing, counters and schedules of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.policies import Discard, PersistMode, Retention, StorageType
from router.wire.nats.jetstream.requests import StreamConfigRequest
from router.wire.nats.subjects import is_subset, is_valid, overlaps

MAX_NAME_BYTES: Final = 255
"""How long the name of a stream or consumer may be."""

MAX_SUBJECTS: Final = 500
"""Of a stream, and filters of a consumer: each is compared with all others."""
MAX_FIRST_SEQUENCE: Final = 1 << 53
"""Of a new stream; JSON has exact numbers up to there."""
MAX_DESCRIPTION_BYTES: Final = 4 * 1024
"""How long a description may be."""

MAX_METADATA_BYTES: Final = 128 * 1024
"""How long keys and values of metadata may be together."""

MAX_REPLICAS: Final = 5
"""More replicas are refused with another code than two to five."""

_MILLISECOND_NS: Final = 1_000_000
_SECOND_NS: Final = 1000 * _MILLISECOND_NS
_DUPLICATE_WINDOW_NS: Final = 120 * _SECOND_NS
_SHORTEST_NS: Final = 100 * _MILLISECOND_NS
_UNLIMITED: Final = (
    *("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers"),
)
_NOT_IN_NAMES: Final = frozenset(" \t\r\n\f.*>\\/")

# What the API itself uses: a stream may store it only if it acknowledges nothing, since a publish
# acknowledgement would be taken for a reply of the API. The second of a pair is excepted.
_RESERVED: Final = (
    ("$JS.>", "$JS.EVENT.>", "jetstream"),
    ("$JSC.>", "$JS.EVENT.>", "jetstream"),
    ("$NRG.>", "$JS.EVENT.>", "jetstream"),
    ("$SYS.>", "$SYS.ACCOUNT.>", "system"),
)

_Rules = Sequence[tuple[Callable[[StreamConfig], Any], str]]

_BEFORE_DEFAULTS: Final[_Rules] = (
    (
        lambda c: not is_valid_name(c.name),
        "stream name is required and can not contain '.', '*', '>', '\\', '/'",
    ),
    (
        lambda c: len(c.name.encode()) > MAX_NAME_BYTES,
        f"stream name is too long, maximum allowed is {MAX_NAME_BYTES}",
    ),
    (
        lambda c: len(c.description.encode()) > MAX_DESCRIPTION_BYTES,
        f"stream description is too long, maximum allowed is {MAX_DESCRIPTION_BYTES}",
    ),
    (
        lambda c: metadata_bytes(c.metadata) > MAX_METADATA_BYTES,
        f"stream metadata exceeds maximum size of {MAX_METADATA_BYTES} bytes",
    ),
    (lambda c: c.num_replicas > MAX_REPLICAS, f"maximum replicas is {MAX_REPLICAS}"),
)

_TIMES: Final[_Rules] = ((lambda c: c.max_age < 0, "max age can not be negative"),)

_LIMITS: Final[_Rules] = (
    (lambda c: c.duplicate_window < 0, "duplicates window can not be negative"),
    (
        lambda c: 0 < c.max_age < c.duplicate_window,
        "duplicates window can not be larger then max age",
    ),
    (lambda c: c.deny_purge and c.allow_rollup_hdrs, "roll-ups require the purge permission"),
    (
        lambda c: c.discard_new_per_subject and c.discard is not Discard.NEW,
        "discard new per subject requires discard new policy to be set",
    ),
    (
        lambda c: c.discard_new_per_subject and c.max_msgs_per_subject <= 0,
        "discard new per subject requires max msgs per subject > 0",
    ),
    (
        lambda c: 0 < c.subject_delete_marker_ttl < _SECOND_NS,
        "subject delete marker TTL must be at least 1 second",
    ),
    (
        lambda c: c.subject_delete_marker_ttl < 0,
        "subject delete marker TTL must not be negative",
    ),
)

_PEDANTIC_MARKERS: Final[_Rules] = (
    (
        lambda c: c.subject_delete_marker_ttl and not c.allow_msg_ttl,
        "subject delete marker cannot be set if message TTLs are disabled",
    ),
    (
        lambda c: c.subject_delete_marker_ttl and not c.allow_rollup_hdrs,
        "subject delete marker cannot be set if roll-ups are disabled",
    ),
)

_PERSISTENCE: Final[_Rules] = (
    (
        lambda c: c.persist_mode is PersistMode.ASYNC and c.storage is not StorageType.FILE,
        "async persist mode is only supported on file storage",
    ),
    (
        lambda c: c.persist_mode is PersistMode.ASYNC and c.num_replicas > 1,
        "async persist mode is not supported on replicated streams",
    ),
    (
        lambda c: c.persist_mode is PersistMode.ASYNC and c.allow_atomic,
        "async persist mode is not supported with atomic batch publish",
    ),
)

_MIRRORS: Final[Sequence[tuple[Callable[[StreamConfig], Any], ErrorCode]]] = (
    (lambda c: c.mirror is not None and c.first_seq, ErrorCode.MIRROR_WITH_FIRST_SEQ),
    (lambda c: c.mirror is not None and c.subjects, ErrorCode.MIRROR_WITH_SUBJECTS),
    (lambda c: c.mirror is not None and c.sources, ErrorCode.MIRROR_WITH_SOURCES),
    (
        lambda c: c.mirror is not None and _is_local_and_wrong(c.mirror),
        ErrorCode.MIRROR_INVALID_STREAM_NAME,
    ),
    (
        lambda c: not all(is_valid_name(source.get("name", "")) for source in c.sources),
        ErrorCode.SOURCE_INVALID_STREAM_NAME,
    ),
)

_REFUSED: Final[_Rules] = (
    (
        lambda c: c.mirror is not None and c.subject_delete_marker_ttl,
        "subject delete markers forbidden on mirrors",
    ),
    (lambda c: c.mirror is not None, "mirrors are not supported"),
    (lambda c: c.sources, "sources are not supported"),
    (lambda c: c.subject_transform is not None, "subject_transform is not supported"),
    (lambda c: c.republish is not None, "republish is not supported"),
    (lambda c: c.first_seq > MAX_FIRST_SEQUENCE, f"first_seq is at most {MAX_FIRST_SEQUENCE}"),
    (lambda c: c.allow_msg_counter, "allow_msg_counter is not supported"),
    (lambda c: c.allow_msg_schedules, "allow_msg_schedules is not supported"),
)

_AFTER_SUBJECTS: Final[_Rules] = (
    (
        lambda c: c.placement is not None and c.placement.get("preferred"),
        "preferred server not permitted in placement",
    ),
)

_ON_CREATE: Final[_Rules] = (
    (lambda c: c.sealed, "stream configuration for create can not be sealed"),
    (
        lambda c: c.mirror_direct and c.mirror is None,
        "stream has no mirror but does have mirror direct",
    ),
)

_UPDATES: Final[Sequence[tuple[Callable[[StreamConfig, StreamConfig], bool], str]]] = (
    (lambda old, new: new.name != old.name, "stream configuration name must match original"),
    (
        lambda old, new: new.storage is not old.storage,
        "stream configuration update can not change storage type",
    ),
    (
        lambda old, new: (
            new.retention is not old.retention
            and Retention.WORK_QUEUE in (old.retention, new.retention)
        ),
        "stream configuration update can not change retention policy to/from workqueue",
    ),
    (
        lambda old, new: old.sealed and not new.sealed,
        "stream configuration update can not unseal a sealed stream",
    ),
    (
        lambda old, new: old.deny_delete and not new.deny_delete,
        "stream configuration update can not cancel deny message deletes",
    ),
    (
        lambda old, new: old.deny_purge and not new.deny_purge,
        "stream configuration update can not cancel deny purge",
    ),
    (
        lambda old, new: old.allow_msg_ttl and not new.allow_msg_ttl,
        "message TTL status can not be disabled",
    ),
    (
        lambda old, new: old.persist_mode is not new.persist_mode,
        "stream configuration update can not change persist mode",
    ),
)


def is_valid_name(name: str) -> bool:
    """Return whether a stream or consumer may have this name, its length apart."""
    return bool(name) and _NOT_IN_NAMES.isdisjoint(name)


def metadata_bytes(metadata: Any) -> int:
    """Return how long keys and values of metadata are together."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())


def check_stream_create(name: str, request: StreamConfigRequest) -> StreamConfig:
    """Return the configuration of STREAM.CREATE with `name` in its subject, defaults filled in.

    Raises JetStreamError 10056, 10128, 10052, 10133, 10074, or the code of a wrong mirror.
    """
    config = request.config
    if config.name != name:
        raise error(ErrorCode.STREAM_MISMATCH)
    if "/" in name or "\\" in name:
        raise error(ErrorCode.STREAM_NAME_CONTAINS_PATH_SEPARATORS)
    _check(_ON_CREATE, config)
    return checked_stream(config, pedantic=request.pedantic)


def check_stream_update(name: str, request: StreamConfigRequest) -> StreamConfig:
    """Return the configuration of STREAM.UPDATE with `name` in its subject, defaults filled in.

    Whether the stream may change so is another question (`checked_stream_update`). Raises
    JetStreamError 10056, 10052, 10133 or 10074.
    """
    config = checked_stream(request.config, pedantic=request.pedantic)
    if config.name != name:
        raise error(ErrorCode.STREAM_MISMATCH)
    return config


def checked_stream(config: StreamConfig, *, pedantic: bool = False) -> StreamConfig:
    """Return a configuration that is allowed, defaults filled in.

    `pedantic` refuses values that would be replaced by another one. Raises JetStreamError 10052,
    10133, 10074 or 10157.
    """
    _check(_BEFORE_DEFAULTS, config)
    if config.num_replicas < 0:
        raise error(ErrorCode.REPLICAS_COUNT_CANNOT_BE_NEGATIVE)
    config = _with_limits(config, pedantic=pedantic)
    _check(_TIMES, config)
    _check_not_short("max_age", "max age", config.max_age)
    config = _with_duplicate_window(config, pedantic=pedantic)
    _check(_LIMITS, config)
    config = _with_markers(config, pedantic=pedantic)
    _check(_PERSISTENCE, config)
    _check_not_short("duplicate_window", "duplicates window", config.duplicate_window)
    for is_broken, code in _MIRRORS:
        if is_broken(config):
            raise error(code)
    _check(_REFUSED, config)
    config = _with_subjects(config)
    _check(_AFTER_SUBJECTS, config)
    if config.num_replicas > 1:
        raise error(ErrorCode.STREAM_REPLICAS_NOT_SUPPORTED)
    return config


def checked_stream_update(
    old: StreamConfig, new: StreamConfig, *, pedantic: bool = False
) -> StreamConfig:
    """Return the configuration that replaces `old`, defaults filled in.

    A stream that is sealed loses its age limit and takes no message, deletion or purge. Raises
    JetStreamError 10052, 10133, 10074 or 10157.
    """
    config = checked_stream(new, pedantic=pedantic)
    for is_broken, sentence in _UPDATES:
        if is_broken(old, config):
            raise _invalid(sentence)
    if config.sealed:
        config = replace(
            config,
            max_age=0,
            discard=Discard.NEW,
            deny_delete=True,
            deny_purge=True,
            allow_rollup_hdrs=False,
        )
    return config


def _invalid(sentence: str) -> JetStreamError:
    return error(ErrorCode.STREAM_INVALID_CONFIG, err=sentence)


def _check(rules: _Rules, config: StreamConfig) -> None:
    for is_broken, sentence in rules:
        if is_broken(config):
            raise _invalid(sentence)


def _check_not_short(member: str, name: str, time_ns: int) -> None:
    """Raise JetStreamError 10052 for a time of less than 100 ms: seconds were meant, probably."""
    if 0 < time_ns < _SHORTEST_NS:
        raise _invalid(
            f"{name} needs to be >= 100ms: {member} is in nanoseconds, and {time_ns} of them are"
            f" {time_ns / _MILLISECOND_NS:g}ms; {time_ns} seconds are {time_ns * _SECOND_NS}"
        )


def _is_local_and_wrong(mirror: Mapping[str, Any]) -> bool:
    return "external" not in mirror and not is_valid_name(mirror.get("name", ""))


def _with_limits(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    limits: dict[str, Any] = {}
    for name in _UNLIMITED:
        value = getattr(config, name)
        if pedantic and value < -1:
            raise error(ErrorCode.PEDANTIC, err=f"{name} must be set to -1")
        limits[name] = value if value > 0 else -1
    # An object without members says nothing, and is not shown.
    placement = config.placement or None
    return replace(config, num_replicas=config.num_replicas or 1, placement=placement, **limits)


def _with_duplicate_window(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    if config.duplicate_window or config.mirror is not None or config.sources:
        return config
    window = _DUPLICATE_WINDOW_NS
    if 0 < config.max_age < window:
        if pedantic:
            raise error(ErrorCode.PEDANTIC, err="duplicate window cannot be bigger than max age")
        window = config.max_age
    return replace(config, duplicate_window=window)


def _with_markers(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    """Allow what delete markers need: a time to live, and rollups."""
    if not config.subject_delete_marker_ttl:
        return config
    if pedantic:
        _check(_PEDANTIC_MARKERS, config)
    deny_purge = config.deny_purge and config.allow_rollup_hdrs
    return replace(config, allow_msg_ttl=True, allow_rollup_hdrs=True, deny_purge=deny_purge)


def _with_subjects(config: StreamConfig) -> StreamConfig:
    if not config.subjects:
        return replace(config, subjects=(config.name,))
    if len(config.subjects) > MAX_SUBJECTS:
        raise _invalid(f"a stream has at most {MAX_SUBJECTS} subjects")
    for place, subject in enumerate(config.subjects):
        _check_subject(config, subject)
        for later in config.subjects[place + 1 :]:
            if overlaps(subject, later):
                raise _invalid(f'subject "{subject}" overlaps with "{later}"')
    return config


def _check_subject(config: StreamConfig, subject: str) -> None:
    if not is_valid(subject):
        raise _invalid("invalid subject")
    if config.no_ack:
        return
    if subject == ">":
        raise _invalid("capturing all subjects requires no-ack to be true")
    for reserved, excepted, owner in _RESERVED:
        if overlaps(subject, reserved) and not is_subset(subject, excepted):
            raise _invalid(f"subjects that overlap with {owner} api require no-ack to be true")
