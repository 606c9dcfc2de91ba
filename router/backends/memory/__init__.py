"""A store and a node that live in this process's memory: for tests and demonstrations.

They keep every promise of the protocols but durability and sharing: what is published is gone with
the process, and other processes do not see it. `serve` therefore runs one worker with it.
"""

from __future__ import annotations

from router.backends import Backend
from router.backends.memory.store import MemoryBackend
from router.clocks import wall_ms
from router.node import Node
from router.node.memory import MemoryNode
from router.schemas import Strategy
from router.settings import Settings

__all__ = ["MemoryBackend", "MemoryNode", "open_backend", "open_node"]


def open_backend(url: str, settings: Settings, node: Node | None) -> Backend:
    """Return a new, empty store."""
    del url, node
    return MemoryBackend(
        auto_create=settings.flag("topics.auto_create"),
        auto_partitions=settings.number("topics.auto_partitions"),
        compatibility=Strategy(settings.text("schemas.compatibility")),
        wall_ms=wall_ms,
    )


def open_node(settings: Settings) -> MemoryNode:
    """Return a node of its own, without a broker process."""
    return MemoryNode(
        idle=settings.seconds("consume.idle"),
        empty_polls_per_minute=settings.number("consume.empty_polls_per_minute"),
    )
