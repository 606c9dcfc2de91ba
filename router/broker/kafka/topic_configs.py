"""Which of Kafka's configs of topics and brokers there are here, their values, and which change.

A config of a topic that has a policy here (`Policies`) can be set; the others say how the router
works, and only their own value is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from router.broker.kafka.context import KafkaContext
from router.broker.storage import TopicRecord
from router.broker.topics.namespaces import MAX_BOUND
from router.errors.quoting import quoted
from router.settings import Settings

NO_BOUND: Final = -1


class ConfigType(IntEnum):
    """The types of values, by Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class ConfigSource(IntEnum):
    """Where a value comes from, by Kafka's numbers."""

    TOPIC = 1
    DEFAULT = 5


class InvalidConfigError(ValueError):
    """A config cannot have the value that is asked for; the text says why."""


@dataclass(frozen=True, slots=True)
class Config:
    """A config: its default by the settings, and the policy that a topic may have instead."""

    name: str
    type: ConfigType
    documentation: str
    default: Callable[[Settings], object]
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


def _max_batch(settings: Settings) -> int:
    return settings.number("broker.kafka_max_batch")


def _retention_ms(settings: Settings) -> int:
    return max(NO_BOUND, round(settings.seconds("retention.time") * 1000))


def _retention_bytes(settings: Settings) -> int:
    return max(NO_BOUND, settings.number("retention.size"))


TOPIC_CONFIGS: Final = {
    config.name: config
    for config in (
        Config(
            "cleanup.policy",
            ConfigType.LIST,
            "Messages are deleted by time and size; topics are not compacted.",
            lambda _: "delete",
        ),
        Config(
            "compression.type",
            ConfigType.STRING,
            "Batches keep the compression of their producer.",
            lambda _: "producer",
        ),
        Config(
            "max.message.bytes",
            ConfigType.INT,
            "Maximum size of a batch.",
            _max_batch,
        ),
        Config(
            "message.timestamp.type",
            ConfigType.STRING,
            "Records keep the time that their producer gave them.",
            lambda _: "CreateTime",
        ),
        Config(
            "min.insync.replicas",
            ConfigType.INT,
            "There is one replica; a record is answered when it is on disk.",
            lambda _: 1,
        ),
        Config(
            "retention.bytes",
            ConfigType.LONG,
            "Size up to which each partition keeps messages; -1: no bound.",
            _retention_bytes,
            "retention_bytes",
        ),
        Config(
            "retention.ms",
            ConfigType.LONG,
            "Time for which messages are kept; -1: no bound.",
            _retention_ms,
            "retention_ms",
        ),
        Config(
            "segment.bytes",
            ConfigType.INT,
            "Size at which a partition starts a new segment file.",
            lambda settings: settings.number("storage.segment"),
        ),
    )
}
BROKER_CONFIGS: Final = {
    config.name: config
    for config in (
        Config(
            "auto.create.topics.enable",
            ConfigType.BOOLEAN,
            "Whether the first use of a topic creates it.",
            lambda settings: str(settings.flag("topics.auto_create")).lower(),
        ),
        Config(
            "default.replication.factor",
            ConfigType.INT,
            "There is one replica.",
            lambda _: 1,
        ),
        Config(
            "log.retention.bytes",
            ConfigType.LONG,
            "Size up to which each partition keeps messages; -1: no bound.",
            _retention_bytes,
        ),
        Config(
            "log.retention.ms",
            ConfigType.LONG,
            "Time for which messages are kept; -1: no bound.",
            _retention_ms,
        ),
        Config(
            "message.max.bytes",
            ConfigType.INT,
            "Maximum size of a batch.",
            _max_batch,
        ),
        Config(
            "num.partitions",
            ConfigType.INT,
            "Number of partitions of a topic that is created without a number.",
            lambda settings: max(1, settings.number("topics.auto_partitions")),
        ),
    )
}


def topic_values(context: KafkaContext, record: TopicRecord) -> list[ConfigValue]:
    """Return all configs of a topic."""
    inherited = context.topics.policies(record)
    found = []
    for config in TOPIC_CONFIGS.values():
        value, source = config.value(context.broker.settings), ConfigSource.DEFAULT
        if config.policy:
            if getattr(record.policies, config.policy) is not None:
                source = ConfigSource.TOPIC
            policy = getattr(inherited, config.policy)
            value = value if policy is None else str(policy)
        found.append(ConfigValue(config, value, source))
    return found


def broker_values(context: KafkaContext) -> list[ConfigValue]:
    """Return all configs of the broker, which are settings of the router."""
    settings = context.broker.settings
    return [
        ConfigValue(config, config.value(settings), ConfigSource.DEFAULT)
        for config in BROKER_CONFIGS.values()
    ]


def policies_of(settings: Settings, given: Iterable[tuple[str, str | None]]) -> Mapping[str, Any]:
    """Return the policies that configs stand for, None: the default; raise InvalidConfigError."""
    found: dict[str, int | None] = {}
    for name, value in given:
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise InvalidConfigError(f"the router has no config {quoted(name)} of a topic")
        if config.policy:
            found[config.policy] = None if value is None else _bound(name, value)
        elif value is not None and value.strip() != (own := config.value(settings)):
            raise InvalidConfigError(
                f"{name} = {quoted(value)}: it is {own} for all topics. {config.documentation}"
            )
    return found


def _bound(name: str, value: str) -> int:
    try:
        bound = int(value)
    except ValueError:
        bound = NO_BOUND - 1
    if not NO_BOUND <= bound <= MAX_BOUND:
        raise InvalidConfigError(
            f"{name} = {quoted(value)}: expected a whole number, or -1 for no bound"
        )
    return bound
