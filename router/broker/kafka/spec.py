"""The settings of the Kafka listener: where it listens, and which address clients are sent to."""

from __future__ import annotations

from typing import Final

from router.broker.transport.listening import Endpoint, ListenerSpec

KAFKA: Final = ListenerSpec(
    name="kafka",
    protocol="Kafka",
    endpoints=(
        Endpoint("kafka", "broker.kafka"),
        Endpoint("kafka+ssl", "broker.kafka_tls", tls=True),
    ),
    sessions="router.broker.kafka.session:sessions",
    advertised="broker.kafka_advertised",
)
