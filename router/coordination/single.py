"""Coordination of a node that is alone: it holds every lease that it asks for, at once."""

from __future__ import annotations

from collections.abc import Callable

from router.coordination import Lease


class SingleNode:
    """A Coordinator with nobody to coordinate with."""

    def __init__(self) -> None:
        self.leases: set[Lease] = set()

    def acquire(self, lease: Lease, held: Callable[[], None]) -> None:
        """Hold the lease."""
        self.leases.add(lease)
        held()

    def release(self, lease: Lease) -> None:
        """Let the lease go."""
        self.leases.discard(lease)
