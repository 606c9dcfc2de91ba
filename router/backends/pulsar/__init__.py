"""The client of the Pulsar protocol, and the backend on it: Apache Pulsar, or a broker of ours."""

from __future__ import annotations

import time

from router.backends import Backend
from router.backends.pulsar.address import PulsarAddress
from router.backends.pulsar.backend import PulsarBackend
from router.backends.pulsar.routes import LookupRoutes, recall_nothing
from router.node import Node
from router.pulsar_client.credentials import PulsarCredentials
from router.settings import Settings

__all__ = ["PulsarAddress", "PulsarBackend", "open_backend"]


def open_backend(url: str, settings: Settings, node: Node | None) -> Backend:
    """Return the backend at `pulsar://host:port[,host:port][/?admin=http://…]`.

    Nothing is connected before the first call. Raises SettingError for a URL that is none, and for
    credentials (pulsar.*) that cannot be used.
    """
    # HTTP's client takes long to import, and the embedded broker's clients do without.
    from router.backends.pulsar.rest import RestAdmin  # noqa: PLC0415

    address = PulsarAddress.parse(url)
    administration = address.administration
    https = administration.startswith("https:")
    credentials = PulsarCredentials.from_settings(settings, tls=address.tls or https)
    routes = LookupRoutes(address, credentials)
    recall = recall_nothing if node is None else node.recall
    rest = RestAdmin(administration, routes, credentials, recall) if administration else None
    max_inflated = settings.number("consume.max_bytes")
    backend = PulsarBackend(routes, rest, time.time_ns, max_inflated, recall=recall)
    backend.rest_is_assumed = address.admin is None
    return backend
