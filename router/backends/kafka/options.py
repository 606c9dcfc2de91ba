"""What settings say to the Kafka backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router.settings import Settings

MIN_INFLATED_BYTES: Final = 5 * 1024 * 1024
"""A batch of so many bytes is inflated however little a poll may answer: Kafka compresses several
messages together, and more of them than were sent together."""


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The settings that the Kafka backend reads."""

    tenant: str
    namespace: str
    group: str
    replicas: int
    fenced_by_kafka: bool
    consumers: int
    consumer_idle: float
    auto_create: bool
    auto_partitions: int
    compatibility: str
    max_inflated: int

    @classmethod
    def of(cls, settings: Settings) -> KafkaOptions:
        """Read them."""
        return cls(
            settings.text("names.tenant"),
            settings.text("names.namespace"),
            settings.text("kafka.group"),
            settings.number("kafka.replicas"),
            settings.text("kafka.fencing") == "transactions",
            settings.number("kafka.consumers"),
            settings.seconds("kafka.consumer_idle"),
            settings.flag("topics.auto_create"),
            settings.number("topics.auto_partitions"),
            settings.text("schemas.compatibility"),
            max(settings.number("consume.max_bytes"), MIN_INFLATED_BYTES),
        )
