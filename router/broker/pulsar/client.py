"""A Pulsar client as the handlers of its commands see it, and the handles that it has open."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from router.broker.consume import (
    ClientConsumer,
    Partition,
    PartitionSubscription,
    Producer,
    Tally,
)
from router.broker.consume.dispatch.non_persistent import (
    NonPersistentPartition,
    NonPersistentSubscription,
)
from router.broker.pulsar.failures import refusal_of
from router.broker.transport.connection import ClientConnection
from router.broker.transport.identity import ConnectionIdentity
from router.model.publish_source import NO_SOURCE
from router.wire import ProtocolError
from router.wire.pulsar import Frame, encode
from router.wire.pulsar import pulsar_pb2 as pb

OURS: Final = "router/"
"""Begins the version of the router's own clients."""
MAX_WAITING_FRAMES: Final = 256

T = TypeVar("T")
AnyPartition = Partition | NonPersistentPartition
AnySubscription = PartitionSubscription | NonPersistentSubscription
Handler = Callable[[Frame], None]
"""Handles one command."""


@dataclass(slots=True, eq=False, kw_only=True)
class PulsarProducer(Producer):
    """A producer with its partition; `append` and `tally` are those of the partition.

    `source`: who publishes, as the entries of a client are kept with it.
    """

    partition: AnyPartition
    ledger_id: int
    append: Callable[..., int]
    tally: Tally
    source: bytes = NO_SOURCE


@dataclass(slots=True, eq=False, kw_only=True)
class AttachedConsumer(ClientConsumer):
    """A consumer with the subscription that it is attached to."""

    subscription: AnySubscription


class PulsarClient:
    """One client: what it said of itself in CONNECT, and the commands it is served.

    `version` is the client's name for its library; it is empty until the client is authenticated.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.identity = connection.identity
        self.version = ""
        self.protocol = 0
        self.wants_broker_entry = False
        self.handlers: dict[int, Handler] = {}

    @property
    def name(self) -> str:
        """Return the client's name for people; a worker of the router is named by its process."""
        peer = self.connection.peer.name
        return f"worker {peer}" if self.ours else f"{self.version or 'a client'} at {peer}"

    @property
    def ours(self) -> bool:
        """Return whether the client is one of the router's own."""
        return self.version.startswith(OURS)

    @property
    def administers(self) -> bool:
        """Return whether the client may administer the node."""
        return self.identity.administers

    @property
    def rights(self) -> ConnectionIdentity:
        """Return what the client may do with topics."""
        return self.identity

    @property
    def writable(self) -> bool:
        """Return whether the connection takes entries and answers of polls now."""
        return self.connection.writable

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when the connection is writable again."""
        self.connection.when_writable(resume)

    def write(self, *parts: bytes) -> None:
        """Send a frame, given in pieces, at the end of this loop iteration."""
        self.connection.write(*parts)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request that has to wait."""
        self.connection.spawn(work)

    def handle(self, frame: Frame) -> None:
        """Handle one command; raise ProtocolError if it must not come now."""
        handler = self.handlers.get(frame.command.type)
        if handler is not None:
            handler(frame)
        elif not self.version:
            raise ProtocolError(
                "the first command must be CONNECT, and the next wait for its answer"
            )
        else:
            self.send(refusal_of(frame.command))

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command at the end of this loop iteration."""
        self.connection.write(encode(command))


class ClientLink:
    """The connection of a client's producers or consumers, as delivery and statistics see it."""

    def __init__(self, client: PulsarClient) -> None:
        self._client = client
        self._connection = client.connection

    @property
    def peer(self) -> str:
        """Return the client's address for people."""
        return self._connection.peer.name

    @property
    def client(self) -> str:
        """Return the client's own name for its library."""
        return self._client.version

    def probe(self, *, soon: bool = False) -> None:
        """Ask the client for an answer."""
        self._connection.probe(soon=soon)


class HandleTable(Generic[T]):
    """A client's producers or consumers by its numbers for them, and frames for those being opened.

    Opening may have to wait for the disk. The frames of a client that sends on without waiting for
    the answer are then handled in order, and its other producers and consumers are not held up. The
    alternative, to stop reading, would let one new topic delay them all.
    """

    def __init__(self, limit: int, handle: Callable[[Frame], None]) -> None:
        self.found: dict[int, T] = {}
        self._opening: dict[int, list[Frame]] = {}
        self._limit = limit
        self._handle = handle

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self.found.values()))

    @property
    def full(self) -> bool:
        """Return whether no more may be opened."""
        return len(self.found) + len(self._opening) >= self._limit

    def defer(self, number: int, frame: Frame) -> bool:
        """Keep a frame for later if its handle is being opened; return whether it is."""
        waiting = self._opening.get(number)
        if waiting is None:
            return False
        if len(waiting) >= MAX_WAITING_FRAMES:
            raise ProtocolError("too many commands for a producer or consumer that is being opened")
        waiting.append(frame)
        return True

    def begin(self, number: int) -> None:
        """Note that a handle is being opened."""
        self._opening[number] = []

    def settle(self, number: int) -> None:
        """Handle the frames that came while a handle was being opened, even if that failed."""
        for frame in self._opening.pop(number, ()):
            self._handle(frame)

    def clear(self) -> None:
        """Drop everything; the connection is closed."""
        self.found.clear()
        self._opening.clear()
