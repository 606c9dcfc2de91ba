"""The backend on the node's own broker process, which is started if no broker serves the folder."""

from __future__ import annotations

import time
from typing import Any

from router.backends import Backend
from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.polls import BrokerPolls
from router.backends.pulsar.routes import OneBroker
from router.node import Node
from router.node.client import BrokerNode
from router.node.spawn import open_link
from router.settings import Settings


class EmbeddedBackend(PulsarBackend):
    """The backend on a broker of this node, which serves polls itself."""

    def __init__(self, *parts: Any, polls: BrokerPolls) -> None:
        super().__init__(*parts)
        self.poll = polls.poll


def open_backend(url: str, settings: Settings, node: Node | None) -> Backend:
    """Return the backend of the data folder; it shares the node's connection, if that has one.

    Nothing is connected or started before the first call.
    """
    del url
    shared = isinstance(node, BrokerNode)
    link = node.link if isinstance(node, BrokerNode) else open_link(settings)
    routes = OneBroker(link, own=not shared)
    polls = BrokerPolls(link, settings.number("consume.empty_polls_per_minute"))
    max_inflated = settings.number("consume.max_bytes")
    return EmbeddedBackend(routes, None, time.time_ns, max_inflated, polls=polls)
