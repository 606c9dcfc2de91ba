"""The settings of the Pulsar listener: where it listens, and where lookups send clients."""

from __future__ import annotations

from typing import Final

from router.broker.transport.listening import Endpoint, ListenerSpec

PULSAR: Final = ListenerSpec(
    name="pulsar",
    protocol="Pulsar",
    endpoints=(
        Endpoint("pulsar", "broker.pulsar"),
        Endpoint("pulsar+ssl", "broker.pulsar_tls", tls=True),
    ),
    sessions="router.broker.pulsar.session:sessions",
    advertised="broker.advertised",
    serves_node=True,
)
