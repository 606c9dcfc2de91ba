"""Several nodes' Leases over a simulated coordination: time, delays and faults are up to chance.

Messages between a node and the service arrive late, in order, or not at all once their connection
broke. A node may stand still: nothing happens in it meanwhile, while the time goes on. The service
forgets a node that it has not heard of for SESSION seconds, with all its entries.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from router.broker.consume.membership.leases import Leases
from router.broker.node.counters import NodeCounters
from router.broker.node.rpc import NodeSession
from router.broker.node.rpc.limited import ClientRights
from router.coordination import Lease, LeaseListener, RemoteGroup
from router.errors import FencedError
from router.wire import node as node_protocol
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.consume.membership.leasing import TOPIC, WithoutPolls, rpc_of

SESSION = 6.0
BEAT = SESSION / 6
SURE = SESSION * 2 / 3
LATE = 0.05
IDLE = 5.0
PARTITIONS = 3


class World:
    """The time, what will happen in it, and the service."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.chance = Random(seed)
        self.now = 0.0
        self._numbers = itertools.count()
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self.queues: dict[Lease, list[tuple[Node, int]]] = {}
        self.ids: set[tuple[Node, str]] = set()
        self.nodes = [Node(self, f"node-{number}") for number in range(nodes)]

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (self.now + seconds, next(self._numbers), call))

    def run(self, until: float, look: Callable[[], None]) -> None:
        while self._coming and self._coming[0][0] <= until:
            self.now, _, call = heapq.heappop(self._coming)
            call()
            look()
        self.now = until

    def expire(self, node: Node) -> None:
        """Forget a node that was silent for too long."""
        if self.now < node.heard_of + SESSION or not node.session_alive:
            return
        node.session_alive = False
        node.broken = node.connection
        for lease in list(self.queues):
            self.queues[lease] = [entry for entry in self.queues[lease] if entry[0] is not node]
            self.tell(lease)
        self.ids = {(other, consumer) for other, consumer in self.ids if other is not node}
        self.tell_ids()

    def enter(self, node: Node, lease: Lease, entry: int) -> None:
        queue = self.queues.setdefault(lease, [])
        if (node, entry) not in queue:
            queue.append((node, entry))
        self.tell(lease)

    def leave(self, node: Node, lease: Lease, entry: int) -> None:
        queue = self.queues.setdefault(lease, [])
        if (node, entry) in queue:
            queue.remove((node, entry))
            self.tell(lease)

    def tell(self, lease: Lease) -> None:
        queue = self.queues[lease]
        for place, (node, entry) in enumerate(queue):
            crowded = len(queue) > 1
            node.hear(lambda n=node, e=entry, p=place, c=crowded: n.stands(lease, e, p, c))  # type: ignore[misc] # defaults

    def tell_ids(self) -> None:
        for node in self.nodes:
            others = frozenset(consumer for other, consumer in self.ids if other is not node)
            node.hear(lambda n=node, o=others: n.listener.remote_members(TOPIC, "g", o))  # type: ignore[misc] # defaults


class Node:
    """A node: its Leases, and its side of the connection, as a Coordinator."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.told: LeaseListener | None = None
        self.entries: dict[Lease, int] = {}
        self.leaving: set[tuple[Lease, int]] = set()
        self.own: set[str] = set()
        self.holds: set[Lease] = set()
        self.connection: object | None = object()
        self.sure_until = 0.0
        self.heard_of = 0.0
        self.session_alive = True
        self.paused_until = 0.0
        self.cut_until = 0.0
        # The connection that lost a message, and so loses all that follow.
        self.broken: object | None = None
        self._arrival = 0.0
        self._numbers = itertools.count(1)
        counters = NodeCounters(lambda: world.now)
        self.leases = Leases(1, IDLE, self, counters, lambda: world.now, self.later)
        self.rpc = rpc_of(self.leases, counters)
        world.later(0.0, self._beat)

    @property
    def listener(self) -> LeaseListener:
        assert self.told is not None
        return self.told

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something in this node, which may stand still when the time comes."""

        def go() -> None:
            if self.world.now < self.paused_until:
                self.world.later(self.paused_until - self.world.now, go)
            else:
                call()

        self.world.later(seconds, go)

    def hear(self, call: Callable[[], None]) -> None:
        """Take a message of the service."""
        connection = self.connection
        if connection is not None and self.session_alive:
            self.later(self._delay(), lambda: call() if self.connection is connection else None)

    def say(self, call: Callable[[], None]) -> None:
        """Send a message to the service; the network loses it when it is cut."""
        connection = self.connection
        if connection is None:
            return

        def arrive() -> None:
            if self.world.now < self.cut_until:
                self.broken = connection
            elif self.connection is connection is not self.broken:
                self.heard_of = self.world.now
                self.world.later(SESSION, lambda: self.world.expire(self))
                call()

        self.world.later(self._delay(), arrive)

    def _delay(self) -> float:
        # In order: nothing arrives before what was sent before it.
        at = max(self._arrival, self.world.now + self.world.chance.uniform(0.001, LATE))
        self._arrival = at + 1e-6
        return at - self.world.now

    def _beat(self) -> None:
        sent = self.world.now

        def answer() -> None:
            self.sure_until = max(self.sure_until, sent + SURE)

        self.say(lambda: self.hear(answer))
        if self.connection is not None and self.broken is self.connection:
            self.down()
        if self.connection is None and self.world.now >= self.cut_until:
            self.up()
        self.later(BEAT, self._beat)

    def down(self) -> None:
        self.connection = None
        lost, self.holds = self.holds, set()
        for lease in lost:
            self.listener.lost(lease)
        self.listener.availability_changed()

    def up(self) -> None:
        """Connect again, in a new session if the old one is over: say all that is wished for."""
        self.connection = object()
        self.heard_of = self.world.now  # the service answered
        if not self.session_alive:
            self.session_alive = True
            self.leaving.clear()
        self.sure_until = self.world.now + BEAT / 2
        for lease, entry in self.entries.items():
            self.say(lambda x=lease, e=entry: self.world.enter(self, x, e))  # type: ignore[misc] # defaults
        for lease, entry in self.leaving:
            self.say(lambda x=lease, e=entry: self.world.leave(self, x, e))  # type: ignore[misc] # defaults
        self._say_ids()
        self.listener.availability_changed()

    def stands(self, lease: Lease, entry: int, place: int, crowded: bool) -> None:
        if self.entries.get(lease) != entry:
            return
        if place:
            self.listener.queued(lease)
        elif lease not in self.holds:
            self.holds.add(lease)
            self.listener.held(lease)
        if not place and crowded:
            self.listener.contended(lease)

    def listen(self, listener: LeaseListener) -> None:
        self.told = listener

    def acquire(self, lease: Lease) -> None:
        entry = self.entries[lease] = next(self._numbers)
        self.say(lambda: self.world.enter(self, lease, entry))

    def release(self, lease: Lease, note: bytes = b"") -> None:
        entry = self.entries.pop(lease)
        self.holds.discard(lease)
        self.leaving.add((lease, entry))
        self.say(lambda: self.world.leave(self, lease, entry))

    def join(self, topic: str, subscription: str, consumer: str) -> None:
        self.own.add(consumer)
        self._say_ids()

    def leave(self, topic: str, subscription: str, consumer: str) -> None:
        self.own.remove(consumer)
        self._say_ids()

    def _say_ids(self) -> None:
        own = {(self, consumer) for consumer in self.own}

        def tell() -> None:
            self.world.ids = {entry for entry in self.world.ids if entry[0] is not self} | own
            self.world.tell_ids()

        self.say(tell)

    def holder(self, lease: Lease) -> str | None:
        return None

    async def remote_group(self, topic: str, subscription: str) -> RemoteGroup:
        return RemoteGroup()

    def is_valid(self) -> bool:
        return self.connection is not None and self.world.now < self.sure_until

    def unavailable_reason(self) -> str | None:
        return "away" if self.connection is None else None

    async def close(self) -> None:
        pass


@dataclass(eq=False)
class Poller(WithoutPolls):
    """A worker with one claim at a time, which does what updates ask for."""

    node: Node
    consumer: str
    name: str = "worker"
    granted: dict[int, int] = field(default_factory=dict)
    ever: set[int] = field(default_factory=set)
    claim_id: int = 0
    polling: bool = False
    administers: bool = True

    def __post_init__(self) -> None:
        self.session = NodeSession(self, self.node.rpc)

    @property
    def rights(self) -> ClientRights:
        raise AssertionError(self)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        raise AssertionError(work)

    def poll(self) -> None:
        self.claim_id += 1
        self.polling = True
        self.granted, self.ever = {}, set()
        command = npb.CommandClaim(
            claim_id=self.claim_id,
            topic=TOPIC,
            subscription="g",
            consumer=self.consumer,
            partitions=PARTITIONS,
        )
        frame = Frame(node_protocol.extension(claim=command), b"")
        self.node.later(0.0, lambda: self.session.handle(frame))

    def end(self) -> None:
        self.polling = False
        self._release([])
        self.granted = {}

    def send(self, command: pb.BaseCommand) -> None:
        update = node_protocol.read(command.extension).claim_update
        if update.claim_id != self.claim_id or not self.polling:
            return
        for partition in update.withdrawn:
            self.granted.pop(partition, None)
        for grant in update.granted:
            self.granted[grant.partition] = grant.generation
            self.ever.add(grant.partition)
        if revoked := [partition for partition in update.revoked if partition in self.granted]:
            self._release(revoked)

    def _release(self, partitions: list[int]) -> None:
        command = npb.CommandRelease(
            claim_id=self.claim_id,
            partitions=partitions,
            generations=[self.granted.pop(partition) for partition in partitions],
        )
        frame = Frame(node_protocol.extension(release=command), b"")
        self.node.later(0.01, lambda: self.session.handle(frame))

    def may_acknowledge(self, partition: int) -> bool:
        """Ask the node as a worker does before it commits."""
        if partition not in self.granted:
            return False
        try:
            self.node.leases.confirm(TOPIC, "g", partition, self.granted[partition])
        except FencedError:
            return False
        return True
