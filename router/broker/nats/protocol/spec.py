"""The settings of the NATS listener: where it listens, and which address clients are shown."""

from __future__ import annotations

from typing import Final

from router.broker.transport.listening import Endpoint, ListenerSpec

NATS: Final = ListenerSpec(
    name="nats",
    protocol="NATS",
    endpoints=(
        Endpoint("nats", "broker.nats"),
        Endpoint("tls", "broker.nats_tls", tls=True),  # as clients write it
    ),
    sessions="router.broker.nats.opening:sessions",
    advertised="broker.nats_advertised",
    greeting="router.broker.nats.opening:greetings",
)
