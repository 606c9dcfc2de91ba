"""The backend on the node's own broker process, which is started if no broker serves the folder."""

from __future__ import annotations

import time

from router.backends import Backend
from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.routes import OneBroker
from router.node import Node
from router.node.client import BrokerNode
from router.node.spawn import open_link
from router.settings import Settings


def open_backend(url: str, settings: Settings, node: Node | None) -> Backend:
    """Return the backend of the data folder; it shares the node's connection, if that has one.

    Nothing is connected or started before the first call.
    """
    del url
    shared = isinstance(node, BrokerNode)
    link = node.link if isinstance(node, BrokerNode) else open_link(settings)
    routes = OneBroker(link, own=not shared)
    return PulsarBackend(routes, None, time.time_ns, settings.number("consume.max_bytes"))
