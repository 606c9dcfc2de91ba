"""Leases between nodes: which node may deal out a partition of a subscription to its polls.

A node's broker process talks to a Coordinator on its event loop, and hears of changes through the
one Listener. All nodes that share a coordination also share its Registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    """One partition of one subscription; names are full names."""

    topic: str
    subscription: str
    partition: int


@dataclass(frozen=True, slots=True)
class RemoteGroup:
    """A subscription on the other nodes.

    `members` are their live consumer ids, each with its node. `queues` are the nodes that hold or
    wait for a lease by partition, the holder first; "" is this node.
    """

    members: tuple[tuple[str, str], ...] = ()
    queues: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


class LeaseListener(Protocol):
    """The node's leases, as the coordination tells them of changes, on the broker's event loop."""

    def held(self, lease: Lease, note: bytes = b"") -> None:
        """Hear that the node holds a lease that it asked for, and what the last holder left."""
        ...

    def lost(self, lease: Lease) -> None:
        """Hear that a lease may be held no more: who reads under it must not acknowledge.

        The lease stays asked for: `held` follows when it is certain again.
        """
        ...

    def contended(self, lease: Lease) -> None:
        """Hear that another node queues for a lease that this node holds."""
        ...

    def queued(self, lease: Lease) -> None:
        """Hear that another node holds a lease asked for here: `Coordinator.holder` names it."""
        ...

    def remote_members(self, topic: str, subscription: str, consumers: frozenset[str]) -> None:
        """Hear which consumer ids of a subscription are live on other nodes now."""
        ...

    def availability_changed(self) -> None:
        """Hear that what `Coordinator.unavailable_reason` says has changed."""
        ...


class Coordinator(Protocol):
    """The node's part in the coordination of all nodes; spoken to on the broker's event loop.

    No call waits or raises; what a call leads to comes through the Listener.
    """

    def listen(self, listener: LeaseListener) -> None:
        """Tell this listener from now on; called once, before anything else."""
        ...

    def acquire(self, lease: Lease) -> None:
        """Ask for a lease: `held` is called when the node has it, perhaps before this returns."""
        ...

    def release(self, lease: Lease, note: bytes = b"") -> None:
        """Let a lease go, or stop asking for it.

        A short note is handed to the next holder, if one comes soon; it may be lost.
        """
        ...

    def join(self, topic: str, subscription: str, consumer: str) -> None:
        """Tell the other nodes that a consumer id is live here; joins are not counted."""
        ...

    def leave(self, topic: str, subscription: str, consumer: str) -> None:
        """Tell the other nodes that a consumer id is live here no more."""
        ...

    def holder(self, lease: Lease) -> str | None:
        """Return the name of the other node that holds a lease, as far as it is known."""
        ...

    async def remote_group(self, topic: str, subscription: str) -> RemoteGroup:
        """Return a subscription as the other nodes have it at this moment; empty in trouble."""
        ...

    def is_valid(self) -> bool:
        """Return whether what is held is certainly held at this moment, whatever stood still."""
        ...

    def unavailable_reason(self) -> str | None:
        """Return a sentence while the coordination cannot be reached."""
        ...

    async def close(self) -> None:
        """Give everything back and end."""
        ...
