"""The client of the Pulsar protocol, and the backend on it: Apache Pulsar, or a broker of ours."""

from __future__ import annotations

import time

from router.backends import Backend, Node
from router.backends.pulsar.address import Address
from router.backends.pulsar.backend import PulsarBackend
from router.backends.pulsar.credentials import Credentials
from router.backends.pulsar.routes import Lookups
from router.settings import Settings

__all__ = ["Address", "PulsarBackend", "open_backend", "wall_ms"]


def open_backend(url: str, settings: Settings, node: Node | None) -> Backend:
    """Return the backend at `pulsar://host:port[,host:port][/?admin=http://…]`.

    Nothing is connected before the first call. Raises SettingError for a URL that is none, and for
    credentials (pulsar.*) that cannot be used.
    """
    # HTTP's client takes long to import, and the embedded broker's clients do without.
    from router.backends.pulsar.service import ServiceAdmin  # noqa: PLC0415

    del node
    address = Address.parse(url)
    https = address.admin.startswith("https:")
    credentials = Credentials.of(settings, tls=address.tls or https)
    routes = Lookups(address, credentials)
    admin = ServiceAdmin(routes, address.admin, credentials)
    return PulsarBackend(routes, admin, wall_ms, settings.number("consume.max_bytes"))


def wall_ms() -> int:
    """Return the time of day in milliseconds since 1970, as messages carry it."""
    return time.time_ns() // 1_000_000
