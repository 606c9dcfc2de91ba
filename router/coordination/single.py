"""Coordination of a node that is alone: it holds every lease that it asks for, at once."""

from __future__ import annotations

from router.coordination import Lease, Listener, RemoteGroup


class SingleNode:
    """A Coordinator with nobody to coordinate with."""

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        self._listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        """Tell this listener from now on."""
        self._listener = listener

    def acquire(self, lease: Lease) -> None:
        """Hold the lease, before this returns."""
        self.leases.add(lease)
        if self._listener is not None:
            self._listener.held(lease)

    def release(self, lease: Lease, note: bytes = b"") -> None:
        """Let the lease go."""
        del note
        self.leases.discard(lease)

    def join(self, topic: str, subscription: str, consumer: str) -> None:
        """Do nothing: nobody else wants to know."""

    def leave(self, topic: str, subscription: str, consumer: str) -> None:
        """Do nothing: nobody else wants to know."""

    def holder(self, lease: Lease) -> str | None:
        """Return None: there is no other node."""
        del lease
        return None

    async def look(self, topic: str, subscription: str) -> RemoteGroup:
        """Return nothing: there is no other node."""
        return RemoteGroup()

    def sure(self) -> bool:
        """Return True: nobody else could hold it."""
        return True

    def trouble(self) -> str | None:
        """Return None: there is nothing to reach."""
        return None

    async def close(self) -> None:
        """Let everything go."""
        self.leases.clear()
