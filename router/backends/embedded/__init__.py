"""The backend on the node's own broker process, which is started when nobody serves the folder."""

from __future__ import annotations

from pathlib import Path

from router.backends import Backend, Node
from router.backends.embedded.node import BrokerNode
from router.backends.embedded.spawn import Spawner
from router.backends.pulsar import PulsarBackend, wall_ms
from router.backends.pulsar.admin import BrokerAdmin
from router.backends.pulsar.link import Link
from router.backends.pulsar.routes import OneBroker
from router.settings import Settings, variable

__all__ = ["BrokerNode", "open_backend", "open_node"]


def open_backend(url: str, settings: Settings, node: Node | None) -> Backend:
    """Return the backend of the data folder; it shares the node's connection, if that has one.

    Nothing is connected or started before the first call.
    """
    del url
    most = settings.number("consume.max_bytes")
    if isinstance(node, BrokerNode):
        return PulsarBackend(OneBroker(node.link), BrokerAdmin(node.link), wall_ms, most)
    link = _link(settings)
    return PulsarBackend(OneBroker(link, own=True), BrokerAdmin(link), wall_ms, most)


def open_node(settings: Settings) -> BrokerNode:
    """Return the node of the data folder: its broker is dialled, or else started, when needed."""
    return BrokerNode(_link(settings), settings.number("consume.empty_polls_per_minute"))


def _link(settings: Settings) -> Link:
    folder = Path(settings.text("data.dir")).absolute()
    variables = {variable(name): value.text for name, value in settings.values.items()}
    variables[variable("data.dir")] = str(folder)
    return Link(Spawner(folder, variables, spawn=settings.flag("broker.spawn")).dial)
