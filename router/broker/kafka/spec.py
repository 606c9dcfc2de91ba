"""The settings of the Kafka listener: where it listens, and which address clients are sent to."""

from __future__ import annotations

from typing import Final

from router.broker.transport.advertised import Advertised
from router.broker.transport.listening import Endpoint, ListenerSpec
from router.settings import Settings

SCHEME: Final = "kafka"
ADVERTISED: Final = "broker.kafka_advertised"


def advertised(settings: Settings) -> Advertised:
    """Return the addresses that clients are sent to; raise SettingError."""
    return Advertised.parse(settings.text(ADVERTISED), ADVERTISED, SCHEME)


def _check(settings: Settings) -> None:
    advertised(settings)


KAFKA: Final = ListenerSpec(
    name="kafka",
    protocol="Kafka",
    endpoints=(
        Endpoint(SCHEME, "broker.kafka"),
        Endpoint(f"{SCHEME}+ssl", "broker.kafka_tls", tls=True),
    ),
    sessions="router.broker.kafka.session:sessions",
    check=_check,
)
