"""Leases with workers, a clock, timers and a coordination that are in the hands of the test."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from router.broker.consume.membership.leases import Leases
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.node.counters import NodeCounters
from router.broker.node.rpc import NodeRpc, NodeSession
from router.broker.node.rpc.limited import ClientRights
from router.coordination import Coordinator, Lease, LeaseListener, RemoteGroup
from router.coordination.opening import SingleNode
from router.sharing.registry import AsyncRegistry
from router.wire import node
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb

TOPIC = "persistent://public/default/t"
IDLE = 5.0


class WithoutPolls:
    """The part of a client of the node protocol that answers of polls use: there are none."""

    writable: bool = True

    def when_writable(self, resume: Callable[[], None]) -> None:
        raise AssertionError(resume)

    def write(self, *parts: bytes) -> None:
        raise AssertionError(parts)


@dataclass(eq=False)
class Worker(WithoutPolls):
    """A client of the node protocol: what it is sent is what a worker would read."""

    name: str = "worker pid 1"
    administers: bool = True
    updates: list[npb.CommandClaimUpdate] = field(default_factory=list)

    def send(self, command: pb.BaseCommand) -> None:
        self.updates.append(node.read(command.extension).claim_update)

    @property
    def rights(self) -> ClientRights:
        raise AssertionError(self)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        raise AssertionError(work)

    def told(self) -> npb.CommandClaimUpdate:
        (update,) = self.updates
        self.updates.clear()
        return update


class Elsewhere:
    """A Coordinator in the hands of the test; without `slow` it holds what is asked for at once."""

    def __init__(self, *, slow: bool = True) -> None:
        self.slow = slow
        self.told: LeaseListener | None = None
        self.leases: set[Lease] = set()
        self.log: list[tuple[str, int | str]] = []
        self.live: set[str] = set()
        self.notes: dict[int, bytes] = {}
        self.holders: dict[int, str] = {}
        self.certain = True
        self.remote = RemoteGroup()
        self.problem: str | None = None

    @property
    def listener(self) -> LeaseListener:
        assert self.told is not None
        return self.told

    def listen(self, listener: LeaseListener) -> None:
        self.told = listener

    def acquire(self, lease: Lease) -> None:
        assert lease not in self.leases, "asked for twice"
        self.leases.add(lease)
        self.log.append(("acquire", lease.partition))
        if not self.slow:
            self.listener.held(lease)

    def release(self, lease: Lease, note: bytes = b"") -> None:
        self.leases.remove(lease)
        self.notes[lease.partition] = note
        self.log.append(("release", lease.partition))

    def join(self, topic: str, subscription: str, consumer: str) -> None:
        assert consumer not in self.live
        self.live.add(consumer)
        self.log.append(("join", consumer))

    def leave(self, topic: str, subscription: str, consumer: str) -> None:
        self.live.remove(consumer)
        self.log.append(("leave", consumer))

    def holder(self, lease: Lease) -> str | None:
        return self.holders.get(lease.partition)

    async def remote_group(self, topic: str, subscription: str) -> RemoteGroup:
        return self.remote

    def is_valid(self) -> bool:
        return self.certain

    def unavailable_reason(self) -> str | None:
        return self.problem

    async def close(self) -> None:
        self.leases.clear()

    def held(self, *partitions: int) -> None:
        for partition in partitions:
            self.listener.held(Lease(TOPIC, "g", partition))

    def lost(self, *partitions: int) -> None:
        for partition in partitions:
            self.listener.lost(Lease(TOPIC, "g", partition))

    def contended(self, *partitions: int) -> None:
        for partition in partitions:
            self.listener.contended(Lease(TOPIC, "g", partition))

    def queued(self, partition: int, holder: str) -> None:
        self.holders[partition] = holder
        self.listener.queued(Lease(TOPIC, "g", partition))

    def remote_members(self, *consumers: str) -> None:
        self.listener.remote_members(TOPIC, "g", frozenset(consumers))

    def took(self) -> list[tuple[str, int | str]]:
        """Return what was asked of it since the last time."""
        log, self.log = self.log, []
        return log


def rpc_of(leases: Leases, counters: NodeCounters) -> NodeRpc:
    """Return what answers commands about leases, and none about the registry or topics."""
    return NodeRpc(
        leases, cast(AsyncRegistry, None), counters, None, "no topics", Transcoder(ENTRY_FORMATS)
    )


class Node:
    """A broker's leases with a clock and timers in the hands of the test."""

    def __init__(self, coordinator: Coordinator | None = None, boot: int = 1) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.single = SingleNode()
        self.counters = NodeCounters(lambda: self.now)
        self.leases = Leases(
            boot, IDLE, coordinator or self.single, self.counters, lambda: self.now, self._later
        )
        self._rpc = rpc_of(self.leases, self.counters)
        self._sessions: dict[Worker, NodeSession] = {}

    def send(self, worker: Worker, **command: Any) -> None:
        """Have the node handle a command of a worker."""
        session = self._sessions.get(worker) or NodeSession(worker, self._rpc)
        self._sessions[worker] = session
        session.handle(Frame(node.extension(**command), b""))

    def gone(self, worker: Worker) -> None:
        """Close a worker's connection, which may be closed already."""
        (self._sessions.get(worker) or NodeSession(worker, self._rpc)).close()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, call))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [call for at, call in self.timers if at <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for call in due:
            call()

    def claim(
        self, worker: Worker, claim: int, consumer: str, partitions: int = 0, limit: int = 0
    ) -> npb.CommandClaimUpdate:
        self.send(
            worker,
            claim=npb.CommandClaim(
                claim_id=claim,
                topic=TOPIC,
                subscription="g",
                consumer=consumer,
                partitions=partitions,
                empty_polls_per_minute=limit,
            ),
        )
        update = worker.updates.pop()
        assert update.claim_id == claim
        return update

    def release(
        self,
        worker: Worker,
        claim: int,
        outcome: npb.CommandRelease.Outcome = npb.CommandRelease.REFUSED,
        pending: int | None = None,
    ) -> None:
        command = npb.CommandRelease(claim_id=claim, outcome=outcome)
        if pending is not None:
            command.pending.add(ledgerId=7, entryId=pending)
        self.send(worker, release=command)

    def give_up(self, worker: Worker, claim: int, *partitions: int) -> None:
        self.send(worker, release=npb.CommandRelease(claim_id=claim, partitions=partitions))

    def generation(self, partition: int = -1) -> int:
        return self.leases.generation(TOPIC, "g", partition)
