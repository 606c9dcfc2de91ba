"""Leases between nodes: which node may deal out a partition of a subscription to its polls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    """One partition of one subscription; names are full names."""

    topic: str
    subscription: str
    partition: int


class Coordinator(Protocol):
    """The node's part in the coordination of all nodes; spoken to on the broker's event loop."""

    def acquire(self, lease: Lease, held: Callable[[], None]) -> None:
        """Call `held` when the node holds the lease: at once, before returning, if it does."""
        ...

    def release(self, lease: Lease) -> None:
        """Let the lease go: no poll of this node is live in its subscription any more."""
        ...
