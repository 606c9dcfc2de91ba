"""Workers of nodes that poll Kafka under leases, as `router.backends.kafka.consumer` commits.

A worker claims what its consumer id is assigned, opens a consumer on each partition that is granted
and reads from what the group has committed. Before a commit it has its grant confirmed by its
broker, and compares what the group has committed with what it knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from router.model import PollOutcome, Position
from router.wire import node as node_protocol
from router.wire.node import node_pb2 as npb
from router.wire.node.conversions import OUTCOMES, from_message_id, to_message_id
from router.wire.pulsar import pulsar_pb2 as pb
from tests.simulation.fronts import TOPIC, FrontNode, Grant, Kafka
from tests.simulation.history import GroupPartition, PartitionName, Place
from tests.simulation.protocols import Client
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import GoneError, PulsarPeer

MAX_RETAINED_SECONDS: Final = 3.0
LEDGER: Final = 1


@dataclass
class Opened:
    """A consumer of a partition under a grant: where it reads, and what it knows as committed."""

    generation: int
    opened_at: float
    position: int
    committed: set[int]
    is_fenced: bool = False
    after: tuple[int, int] | None = None


class LeaseWorker(Client):
    """A worker of a node that polls as one consumer id of a group, one poll after the other."""

    def __init__(
        self, node: FrontNode, kafka: Kafka, number: int, group: str, consumer: str, mean: float
    ) -> None:
        super().__init__(node.world, f"{node.name}-w{number}", mean)
        self._node, self._kafka, self._group, self._consumer = node, kafka, group, consumer
        self._claim = 0
        self._opened: dict[int, Opened] = {}
        self._revoked: set[int] = set()
        self._is_recalled = False
        self._answers: dict[int, str] = {}
        self.is_stopped = False

    @property
    def has_work(self) -> bool:
        return not self.is_stopped

    def _at(self, partition: int) -> GroupPartition:
        return GroupPartition(PartitionName(TOPIC, partition), self._group)

    async def work(self) -> None:
        peer = await PulsarPeer.open(self.world, self._node.name)
        try:
            while not self.is_stopped:
                await self._poll(peer)
                await self.world.pause(self.chance, self.mean)
                if self.chance.random() < 0.02:
                    raise GoneError
        finally:
            peer.stream.close()
            self._forget()

    def _forget(self) -> None:
        for partition in list(self._opened):
            self._close(partition)
        self._revoked.clear()
        self._answers.clear()
        self._is_recalled = False

    def _close(self, partition: int) -> None:
        self._opened.pop(partition, None)
        self._revoked.discard(partition)
        self.world.history.release(self._at(partition), self.name)

    async def _poll(self, peer: PulsarPeer) -> None:
        """Claim, read, acknowledge and release; and once more under a claim that is retained."""
        self._claim = peer.next_id()
        claim = npb.CommandClaim(
            claim_id=self._claim,
            topic=TOPIC,
            subscription=self._group,
            consumer=self._consumer,
            partitions=len(self._kafka.logs),
        )
        peer.stream.write(node_protocol.frame(claim=claim))
        seconds = 0.5 if self.world.is_quiet else self.chance.choice((0.1, 1.0, 5.0, 20.0))
        found = await self._read(peer, seconds)
        while found and not self.world.is_quiet and self.chance.random() < 0.5:
            if not await self._acknowledge_all(peer, found) or not await self._retain(peer):
                found = {}
                break
            found = await self._read(peer, self.chance.choice((0.1, 1.0, 5.0)))
        await self._end(peer, found)

    async def _read(self, peer: PulsarPeer, seconds: float) -> dict[int, int]:
        """Return the offsets behind what was delivered, by partition; none: the time is over."""
        until = CLOCK.now + seconds
        while True:
            found: dict[int, int] = {}
            for partition in sorted(self._opened):
                if (end := await self._take(partition)) is not None:
                    found[partition] = end
            self._give_up(peer, self._revoked - found.keys())
            if found:
                return found
            if not await self._update(peer, until - CLOCK.now):
                return {}

    def _give_up(self, peer: PulsarPeer, partitions: set[int]) -> None:
        given = {p: self._opened[p].generation for p in sorted(partitions) if p in self._opened}
        for partition in given:
            self._close(partition)
        if given:
            release = npb.CommandRelease(
                claim_id=self._claim, partitions=given, generations=given.values()
            )
            peer.stream.write(node_protocol.frame(release=release))

    async def _update(self, peer: PulsarPeer, seconds: float) -> bool:
        """Take one update of the claim, or look for messages again; False: the time is over."""
        if seconds <= 0:
            return False
        try:
            frame = await peer.frame(min(seconds, 0.5), closes=False)
        except TimeoutError:
            return True
        if frame.command.type != pb.BaseCommand.EXTENSION:
            return True
        command = node_protocol.read(frame.command.extension)
        if command.WhichOneof("body") == "claim_update":
            return await self._updated(peer, command.claim_update)
        return True

    async def _updated(self, peer: PulsarPeer, update: npb.CommandClaimUpdate) -> bool:
        if update.claim_id != self._claim:
            return True
        if update.HasField("code"):
            self.world.history.count(f"claim: {update.code}")
            return False
        for partition in update.withdrawn:
            self._close(partition)
        self._revoked |= set(update.revoked) & self._opened.keys()
        self._is_recalled = self._is_recalled or update.recalled
        for grant in update.granted:
            await self._open(peer, grant)
        return True

    async def _open(self, peer: PulsarPeer, grant: npb.Grant) -> None:
        """Open a consumer where the group is, and acknowledge what the id's last poll left."""
        partition, opened_at = grant.partition, CLOCK.now
        self._close(partition)
        committed = await self._committed(partition)
        one = Opened(grant.generation, opened_at, committed, {committed})
        self._opened[partition] = one
        if grant.HasField("pending"):
            self.world.history.count("positions handed over")
            await self._acknowledge(peer, partition, from_message_id(grant.pending).entry + 1)
            one.position = max(one.position, from_message_id(grant.pending).entry + 1)

    async def _committed(self, partition: int) -> int:
        kafka, of = self._kafka, (self._group, partition)
        committed: int = await kafka.ask(self._node, lambda: kafka.committed.get(of, 0))
        return committed

    async def _take(self, partition: int) -> int | None:
        """Deliver what comes next of a partition; return the offset behind it, None: nothing."""
        one = self._opened[partition]
        limit = 1000 if self.world.is_quiet else self.chance.choice((1, 3, 10, 100))
        start, log = one.position, self._kafka.logs[partition]
        names = await self._kafka.ask(self._node, lambda: log[start : start + limit])
        if not names or self._opened.get(partition) is not one or one.is_fenced:
            return None
        history, at = self.world.history, self._at(partition)
        messages = [(Place(start + place), name) for place, name in enumerate(names)]
        history.delivered(at, messages, one.opened_at, one.after)
        one.position = start + len(names)
        one.after = messages[-1][0].following
        # After a pause it may be another's by now: then this cannot acknowledge it.
        grant = Grant(self._node, self._group, partition, one.generation)
        grant.check()
        if grant.is_open:
            history.hold(at, self.name, grant)
        return one.position

    async def _acknowledge_all(self, peer: PulsarPeer, ends: dict[int, int]) -> bool:
        return all([await self._acknowledge(peer, one, end) for one, end in ends.items()])

    async def _acknowledge(self, peer: PulsarPeer, partition: int, target: int) -> bool:
        """Commit an offset if the grant is confirmed and the group is where it was."""
        one, history, kafka = self._opened.get(partition), self.world.history, self._kafka
        if one is None or one.is_fenced:
            return False
        history.acknowledging(self._at(partition), (target, 0))
        since = CLOCK.now
        ref = npb.ConfirmLease(
            topic=TOPIC,
            subscription=self._group,
            partition=partition,
            generation=one.generation,
        )
        if await self._ask(peer, confirm=ref):
            history.count("not confirmed")
            one.is_fenced = True
            return False
        current = await self._committed(partition)
        if current not in one.committed:
            history.count("moved by another")
            one.is_fenced = True
            return False
        if target <= current:
            return True
        one.committed = {current, target}
        grant = Grant(self._node, self._group, partition, one.generation)
        if await kafka.ask(self._node, lambda: kafka.commit(grant, target, since)):
            history.confirmed(self._at(partition), (target, 0), history.boot)
            one.committed = {target}
            return True
        return False

    async def _ask(self, peer: PulsarPeer, **body: Any) -> str:
        """Return the code of a request's failure, "": there is none; take updates meanwhile.

        An update may have the worker ask something else: that one may read the answer of this one.
        """
        request_id = peer.next_id()
        request = npb.CommandAdmin(request_id=request_id, **body)
        peer.stream.write(node_protocol.frame(admin=request))
        while request_id not in self._answers:
            frame = await peer.frame()
            if frame.command.type != pb.BaseCommand.EXTENSION:
                continue
            command = node_protocol.read(frame.command.extension)
            kind = command.WhichOneof("body")
            if kind == "claim_update":
                await self._updated(peer, command.claim_update)
            elif kind == "admin_response":
                self._answers[command.admin_response.request_id] = command.admin_response.code
        return self._answers.pop(request_id)

    async def _retain(self, peer: PulsarPeer) -> bool:
        """Keep the claim until the id's next poll; return whether that poll goes on with it."""
        self._give_up(peer, set(self._revoked))
        retain = npb.CommandRetain(claim_id=self._claim)
        peer.stream.write(node_protocol.frame(retain=retain))
        until = CLOCK.now + self.chance.uniform(0.1, MAX_RETAINED_SECONDS)
        while not self._is_recalled and await self._update(peer, until - CLOCK.now):
            pass
        self._is_recalled = False
        if self.chance.random() < 0.3 or not self._opened:
            return False
        peer.stream.write(
            node_protocol.frame(retain=npb.CommandRetain(claim_id=self._claim, in_use=True))
        )
        return True

    async def _end(self, peer: PulsarPeer, found: dict[int, int]) -> None:
        """Acknowledge what was delivered, or leave that to the next poll, and release the claim."""
        release = npb.CommandRelease(claim_id=self._claim, outcome=OUTCOMES[PollOutcome.EMPTY])
        if found:
            if self.chance.random() < 0.3:
                await self.world.pause(self.chance, 1.0)
            fate = 1.0 if self.world.is_quiet else self.chance.random()
            if fate < 0.05:
                raise GoneError
            release.outcome = OUTCOMES[PollOutcome.REFUSED if fate < 0.1 else PollOutcome.DELIVERED]
            if 0.1 <= fate < 0.4:
                for partition, end in found.items():
                    if partition in self._opened:
                        self.world.history.acknowledging(self._at(partition), (end, 0))
                        position = Position(LEDGER, end - 1, partition)
                        release.pending.append(to_message_id(position))
            elif fate >= 0.4:
                await self._acknowledge_all(peer, found)
        self._forget()
        peer.stream.write(node_protocol.frame(release=release))
