"""The settings of the Pulsar listener: where it listens, and where lookups send clients."""

from __future__ import annotations

from typing import Final

from router.broker.transport.advertised import Advertised
from router.broker.transport.listening import Endpoint, ListenerSpec
from router.settings import Settings

SCHEME: Final = "pulsar"
ADVERTISED: Final = "broker.advertised"


def advertised(settings: Settings) -> Advertised:
    """Return the URLs that lookups answer; raise SettingError."""
    return Advertised.parse(settings.text(ADVERTISED), ADVERTISED, SCHEME)


def _check(settings: Settings) -> None:
    advertised(settings)


PULSAR: Final = ListenerSpec(
    name="pulsar",
    protocol="Pulsar",
    endpoints=(
        Endpoint(SCHEME, "broker.pulsar"),
        Endpoint(f"{SCHEME}+ssl", "broker.pulsar_tls", tls=True),
    ),
    sessions="router.broker.pulsar.session:sessions",
    check=_check,
    serves_node=True,
)
