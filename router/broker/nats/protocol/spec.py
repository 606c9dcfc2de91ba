"""The settings of the NATS listener: where it listens, and which address clients are shown."""

from __future__ import annotations

from typing import Final

from router.broker.transport.advertised import Advertised
from router.broker.transport.listening import Endpoint, ListenerSpec
from router.settings import Settings

SCHEME: Final = "nats"
ADVERTISED: Final = "broker.nats_advertised"


def advertised(settings: Settings) -> Advertised:
    """Return the addresses that clients are shown; raise SettingError."""
    return Advertised.parse(settings.text(ADVERTISED), ADVERTISED, SCHEME)


def _check(settings: Settings) -> None:
    advertised(settings)


NATS: Final = ListenerSpec(
    name="nats",
    protocol="NATS",
    endpoints=(
        Endpoint(SCHEME, "broker.nats"),
        Endpoint("tls", "broker.nats_tls", tls=True),  # as clients write it
    ),
    sessions="router.broker.nats.session:sessions",
    check=_check,
    greeting="router.broker.nats.session:greetings",
)
