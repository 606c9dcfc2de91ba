"""What all connections of the Pulsar listeners share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from router.broker import descriptors
from router.broker.admin import Admin
from router.broker.pulsar.room import Room
from router.settings import Settings
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.blacklist import Blacklist
    from router.broker.gate import Gate
    from router.broker.leases import Peer
    from router.broker.pulsar.connection import Connection

Handler = Callable[[Frame], None]
"""Handles one command."""


class LeaseTable(Protocol):
    """The node's leases, as the listeners use them."""

    def claim(self, peer: Peer, command: pb.CommandClaim) -> None:
        """Queue a poll and answer it."""
        ...

    def release(self, peer: Peer, command: pb.CommandRelease) -> None:
        """Take partitions back, or end the claim."""
        ...

    def gone(self, peer: Peer) -> None:
        """End all claims of a connection."""
        ...

    def generation(self, topic: str, subscription: str, partition: int) -> int:
        """Return the generation of the newest grant."""
        ...

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop positions left for a next poll."""
        ...


class Traffic(Protocol):
    """What one connection does with messages."""

    def handlers(self) -> Mapping[int, Handler]:
        """Return the commands served."""
        ...

    def read(self) -> None:
        """Learn that all commands of a read are handled."""
        ...

    def gone(self) -> None:
        """Give back all that the client had."""
        ...


class Messages(Protocol):
    """The messages that a broker serves, if it does."""

    def traffic(self, connection: Connection) -> Traffic:
        """Return what a new connection does with messages."""
        ...

    async def settled(self) -> None:
        """Return when all that was sent so far is stored."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """What settings say about connections; `ping` in seconds."""

    server_version: str
    connections: int = 10_000
    ping: float = 30.0

    @classmethod
    def from_settings(cls, settings: Settings, server_version: str) -> ListenerOptions:
        """Return the options that the settings in force ask for."""
        connections = descriptors.for_clients(settings.number("broker.connections"))
        return cls(server_version, connections, settings.seconds("broker.ping"))


@dataclass(slots=True)
class Context:
    """The parts that connections work with.

    `gate` is None where only the node's own socket is served, and everybody trusted. Strangers are
    connections of whom nobody knows yet who they are.
    """

    messages: Messages
    admin: Admin
    leases: LeaseTable
    options: ListenerOptions
    gate: Gate | None = None
    blacklist: Blacklist | None = None
    connections: set[Connection] = field(default_factory=set)
    strangers: dict[Connection, None] = field(default_factory=dict)
    room: Room = field(default_factory=Room)
