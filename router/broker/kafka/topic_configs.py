"""Which of Kafka's configs topics and brokers have here, their values, and how they change.

Theory of operation. A config of a topic is one of three kinds. One that has a policy here
(`Policies`) holds. One that only says how Apache Kafka should store, such as the size of a segment,
is accepted within Kafka's limits, kept as a property of the topic and described with the value that
it was given; it has no effect, other than `max.message.bytes`. All others say how the router works:
their own value is accepted, and another one is refused, since a client that asks for it expects
another behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import Any, Final

from router.broker.kafka.context import NODE_ID, KafkaContext
from router.broker.kafka.failures import ErrorCode, KafkaError
from router.broker.storage import TopicRecord
from router.broker.topics.namespaces import check_policies
from router.errors import BadRequestError
from router.errors.quoting import quoted
from router.model import NO_PROPERTIES
from router.model.policies import CLEANUP_POLICIES, LONG_MAX, Policies
from router.settings import Settings

PROPERTY_PREFIX: Final = "kafka."
"""Of the properties of a topic that keep the values of configs without an effect."""
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
NO_BOUND: Final = -1
INT_MAX: Final = 2**31 - 1
_DAY_MS: Final = 86_400_000
_NO_EFFECT: Final = "Kept and described; it has no effect here."


class ConfigType(IntEnum):
    """The types of values, by Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Where a value comes from, by Kafka's numbers."""

    TOPIC = 1
    DEFAULT = 5


class InvalidConfigError(KafkaError):
    """A config cannot have the value that is requested; the sentence says why."""

    def __init__(self, sentence: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, sentence)


Default = Callable[[Settings], object]
Read = Callable[[str, Settings], Any]
"""Reads a value; raises ValueError, with a text that says what is expected, unless it can be."""


@dataclass(frozen=True, slots=True)
class Config:
    """A config: its default by the settings, and how other values are read, None: there are none.

    `policy` is the policy that holds its value; without one the value is kept as a property.
    """

    name: str
    type: ConfigType
    documentation: str
    default: Default
    read: Read | None = None
    policy: str = ""

    def value(self, settings: Settings) -> str:
        """Return the default as Kafka writes it."""
        return str(self.default(settings))


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """What a config is for a topic or broker."""

    config: Config
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Policies and properties of a topic that configs stand for; None: it has none of its own."""

    policies: Mapping[str, Any]
    properties: Mapping[str, str | None]

    def over(self, policies: Policies) -> Policies:
        """Return changed policies; raise InvalidConfigError if they contradict each other."""
        changed = replace(policies, **self.policies)
        try:
            check_policies(asdict(changed))
        except BadRequestError as error:
            raise InvalidConfigError(str(error)) from None
        return changed


def _write(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _always(value: object) -> Default:
    return lambda _: value


def _whole(least: int, limit: int = LONG_MAX) -> Read:
    """Return what reads a whole number within two bounds."""

    def read(text: str, _: Settings) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= limit:
            raise ValueError(f"a whole number from {least} to {limit}")
        return value

    return read


def _level(least: int, limit: int) -> Read:
    """Return what reads a level of compression; -1 is Kafka's default of gzip."""
    return _whole(min(least, -1), limit)


def _ratio(text: str, _: Settings) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1")
    return value


def _flag(text: str, _: Settings) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def _text(text: str, _: Settings) -> str:
    return text


def _cleanup(text: str, _: Settings) -> str:
    value = ",".join(dict.fromkeys(part.strip() for part in text.split(",")))
    if value not in CLEANUP_POLICIES:
        raise ValueError(" or ".join(CLEANUP_POLICIES[:3]))
    return value


def _max_batch(settings: Settings) -> int:
    return settings.number("broker.kafka_max_batch")


def _batch(text: str, settings: Settings) -> int:
    """Return a size of batches, which a topic may have up to the broker's."""
    value: int = _whole(0, _max_batch(settings))(text, settings)
    return value


def _retention_ms(settings: Settings) -> int:
    return max(NO_BOUND, round(settings.seconds("retention.time") * 1000))


def _retention_bytes(settings: Settings) -> int:
    return max(NO_BOUND, settings.number("retention.size"))


_BOUND: Final = _whole(NO_BOUND)
_T: Final = ConfigType


def _policy(
    policy: str, kind: ConfigType, read: Read, default: Default, documentation: str
) -> Config:
    return Config(policy.replace("_", "."), kind, documentation, default, read, policy)


def _kept(name: str, kind: ConfigType, read: Read, default: object) -> Config:
    """Return a config that is accepted and has no effect."""
    return Config(name, kind, _NO_EFFECT, default if callable(default) else _always(default), read)


def _fixed(name: str, kind: ConfigType, default: object, documentation: str) -> Config:
    return Config(name, kind, documentation, default if callable(default) else _always(default))


_TOPIC_CONFIGS: Final = (
    _policy(
        "cleanup_policy",
        _T.LIST,
        _cleanup,
        _always("delete"),
        "delete: messages go by time and size; compact: the newest of each key stays.",
    ),
    _policy(
        "delete_retention_ms",
        _T.LONG,
        _whole(0),
        _always(_DAY_MS),
        "Time for which a compacted topic keeps a null value after it was cleaned.",
    ),
    _policy(
        "max_compaction_lag_ms",
        _T.LONG,
        _whole(1),
        _always(LONG_MAX),
        "Time after which a message is cleaned at the latest.",
    ),
    _policy(
        "min_cleanable_dirty_ratio",
        _T.DOUBLE,
        _ratio,
        _always(0.5),
        "Share of a partition that is not cleaned yet, from which on it is cleaned.",
    ),
    _policy(
        "min_compaction_lag_ms",
        _T.LONG,
        _whole(0),
        _always(0),
        "Time for which a message is not cleaned.",
    ),
    _policy(
        "retention_bytes",
        _T.LONG,
        _BOUND,
        _retention_bytes,
        "Size up to which each partition keeps messages; -1: no bound.",
    ),
    _policy(
        "retention_ms",
        _T.LONG,
        _BOUND,
        _retention_ms,
        "Time for which messages are kept; -1: no bound.",
    ),
    _fixed(
        "compression.type", _T.STRING, "producer", "Batches keep the compression of their producer."
    ),
    _fixed(
        "message.timestamp.type",
        _T.STRING,
        "CreateTime",
        "Records keep the time that their producer gave them.",
    ),
    _fixed(
        "min.insync.replicas",
        _T.INT,
        1,
        "There is one replica; a record is answered when it is on disk.",
    ),
    _fixed("remote.storage.enable", _T.BOOLEAN, "false", "There is no remote storage."),
    _kept("compression.gzip.level", _T.INT, _level(1, 9), -1),
    _kept("compression.lz4.level", _T.INT, _level(1, 17), 9),
    _kept("compression.zstd.level", _T.INT, _level(-131_072, 22), 3),
    _kept("file.delete.delay.ms", _T.LONG, _whole(0), 60_000),
    _kept("flush.messages", _T.LONG, _whole(1), LONG_MAX),
    _kept("flush.ms", _T.LONG, _whole(0), LONG_MAX),
    _kept("follower.replication.throttled.replicas", _T.LIST, _text, ""),
    _kept("index.interval.bytes", _T.INT, _whole(0, INT_MAX), 4096),
    _kept("leader.replication.throttled.replicas", _T.LIST, _text, ""),
    _kept("local.retention.bytes", _T.LONG, _whole(-2), -2),
    _kept("local.retention.ms", _T.LONG, _whole(-2), -2),
    Config(
        MAX_MESSAGE_BYTES,
        _T.INT,
        "Maximum size of a batch of Kafka clients, up to that of the broker.",
        _max_batch,
        _batch,
    ),
    _kept("message.timestamp.after.max.ms", _T.LONG, _whole(0), LONG_MAX),
    _kept("message.timestamp.before.max.ms", _T.LONG, _whole(0), LONG_MAX),
    _kept("preallocate", _T.BOOLEAN, _flag, "false"),
    _kept("remote.log.copy.disable", _T.BOOLEAN, _flag, "false"),
    _kept("remote.log.delete.on.disable", _T.BOOLEAN, _flag, "false"),
    _kept(
        "segment.bytes",
        _T.INT,
        _whole(14, INT_MAX),
        lambda settings: settings.number("storage.segment"),
    ),
    _kept("segment.index.bytes", _T.INT, _whole(4, INT_MAX), 10_485_760),
    _kept("segment.jitter.ms", _T.LONG, _whole(0), 0),
    _kept("segment.ms", _T.LONG, _whole(1), 7 * _DAY_MS),
    _kept("unclean.leader.election.enable", _T.BOOLEAN, _flag, "false"),
)
TOPIC_CONFIGS: Final = {
    config.name: config for config in sorted(_TOPIC_CONFIGS, key=lambda config: config.name)
}
BROKER_CONFIGS: Final = {
    config.name: config
    for config in (
        _fixed(
            "auto.create.topics.enable",
            _T.BOOLEAN,
            lambda settings: _write(settings.flag("topics.auto_create")),
            "Whether the first use of a topic creates it.",
        ),
        _fixed("default.replication.factor", _T.INT, 1, "There is one replica."),
        _fixed("delete.topic.enable", _T.BOOLEAN, "true", "Topics can be deleted."),
        _fixed("log.cleanup.policy", _T.LIST, "delete", "Of a topic that has no other."),
        _fixed(
            "log.retention.bytes",
            _T.LONG,
            _retention_bytes,
            "Size up to which each partition keeps messages; -1: no bound.",
        ),
        _fixed(
            "log.retention.ms",
            _T.LONG,
            _retention_ms,
            "Time for which messages are kept; -1: no bound.",
        ),
        _fixed("message.max.bytes", _T.INT, _max_batch, "Maximum size of a batch."),
        _fixed("node.id", _T.INT, NODE_ID, "The number of the only broker."),
        _fixed(
            "num.partitions",
            _T.INT,
            lambda settings: max(1, settings.number("topics.auto_partitions")),
            "Number of partitions of a topic that is created without a number.",
        ),
    )
}


def max_batch_bytes(record: TopicRecord, limit: int) -> int:
    """Return the size up to which a topic takes batches; `limit`: that of the broker."""
    own = record.properties.get(PROPERTY_PREFIX + MAX_MESSAGE_BYTES, "")
    # A property may be set to anything over other protocols.
    return min(limit, int(own)) if own.isdecimal() else limit


def topic_values(context: KafkaContext, record: TopicRecord) -> list[ConfigValue]:
    """Return all configs of a topic."""
    return [_value(context, record, config) for config in TOPIC_CONFIGS.values()]


def _value(context: KafkaContext, record: TopicRecord, config: Config) -> ConfigValue:
    if config.policy:
        applied = getattr(context.topics.policies(record), config.policy)
        own = getattr(record.policies, config.policy) is not None
        value = None if applied is None else _write(applied)
    else:
        value = record.properties.get(PROPERTY_PREFIX + config.name) if config.read else None
        own = value is not None
    if value is None:
        value = config.value(context.broker.settings)
    return ConfigValue(config, value, ConfigSource.TOPIC if own else ConfigSource.DEFAULT)


def broker_values(context: KafkaContext) -> list[ConfigValue]:
    """Return all configs of the broker, which are settings of the router."""
    settings = context.broker.settings
    return [
        ConfigValue(config, config.value(settings), ConfigSource.DEFAULT)
        for config in BROKER_CONFIGS.values()
    ]


def config_change(settings: Settings, given: Iterable[tuple[str, str | None]]) -> ConfigChange:
    """Return what configs stand for, None: the default; raise InvalidConfigError."""
    policies: dict[str, Any] = {}
    properties: dict[str, str | None] = {}
    for name, value in given:
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise InvalidConfigError(f"the router has no config {quoted(name)} of a topic")
        found = None if value is None else _read(config, value.strip(), settings)
        if config.policy:
            policies[config.policy] = found
        elif config.read is not None:
            properties[PROPERTY_PREFIX + name] = None if found is None else _write(found)
    return ConfigChange(policies, properties)


def _read(config: Config, value: str, settings: Settings) -> Any:
    if config.read is None:
        if value != (own := config.value(settings)):
            raise InvalidConfigError(
                f"{config.name} = {quoted(value)}: it is {own} for all topics. "
                f"{config.documentation}"
            )
        return value
    try:
        return config.read(value, settings)
    except ValueError as error:
        raise InvalidConfigError(f"{config.name} = {quoted(value)}: expected {error}") from None


def given_properties(change: ConfigChange) -> Mapping[str, str]:
    """Return the properties that a new topic has."""
    found = {name: value for name, value in change.properties.items() if value is not None}
    return found or NO_PROPERTIES
