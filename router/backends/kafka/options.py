"""What settings say to the Kafka backend."""

from __future__ import annotations

from dataclasses import dataclass

from router.settings import Settings


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
            settings.number("consume.max_bytes"),
        )
