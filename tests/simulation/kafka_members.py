"""Members of a Kafka group: they join, read what they are assigned, commit, stall, and go.

A member that stalls for longer than its session goes on as if it were a member still: what it
commits then is of an earlier generation and must be refused.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, NamedTuple

from router.wire.kafka.error_codes import ErrorCode
from tests.simulation.history import GroupPartition, PartitionName
from tests.simulation.kafka_clients import KafkaPeer
from tests.simulation.protocols import Client, frequent
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import GoneError, World

SESSION_SECONDS: Final = 10
REBALANCE_SECONDS: Final = 15
MAX_PAUSE_SECONDS: Final = 3.0
STALL_SECONDS: Final = (8.0, 35.0)


class Membership(NamedTuple):
    """A generation of a group, as one of its members; `partitions` are those that it reads."""

    member: str
    generation: int
    since: float
    partitions: list[int]


class KafkaMember(Client):
    """One member of a group on all partitions of a topic."""

    def __init__(
        self, world: World, name: str, group: str, topic: str, partitions: int, mean: float
    ) -> None:
        super().__init__(world, name, frequent(mean, MAX_PAUSE_SECONDS))
        self._group, self._topic, self._partitions = group, topic, partitions
        self._member, self._heard_at = "", 0.0
        self._before: tuple[Membership, dict[int, tuple[int, int]]] | None = None
        for partition in range(partitions):
            world.history.progress(self._of(partition)).starts_at_zero = True

    def _of(self, partition: int) -> GroupPartition:
        return GroupPartition(PartitionName(f"kafka:{self._topic}", partition), self._group)

    async def work(self) -> None:
        peer = await KafkaPeer.open(self.world)
        while True:
            membership = await self._join(peer)
            if membership is None:
                await asyncio.sleep(self.chance.uniform(0.1, 1))
            else:
                await self._read(peer, membership)

    async def _join(self, peer: KafkaPeer) -> Membership | None:
        protocol = peer.struct(
            "JoinGroupRequest", "JoinGroupRequestProtocol", name="simulated", metadata=b""
        )
        sent_at = CLOCK.now
        joined = await peer.ask(
            "JoinGroup",
            5,
            group_id=self._group,
            session_timeout_ms=SESSION_SECONDS * 1000,
            rebalance_timeout_ms=REBALANCE_SECONDS * 1000,
            member_id=self._member,
            protocol_type="simulated",
            protocols=[protocol],
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member = joined.member_id
            return None
        if not self._goes_on("JoinGroup", joined.error_code):
            return None
        self._member = joined.member_id
        history, generation = self.world.history, joined.generation_id
        history.joined(self._group, generation, sent_at, peer.boot)
        assignments = []
        if joined.leader == joined.member_id:
            members = [one.member_id for one in joined.members]
            assignments = self._assign(peer, members)
        synced = await peer.ask(
            "SyncGroup",
            3,
            group_id=self._group,
            generation_id=generation,
            member_id=self._member,
            assignments=assignments,
        )
        if not self._goes_on("SyncGroup", synced.error_code):
            return None
        partitions = json.loads(bytes(synced.assignment) or b"[]")
        for partition in partitions:
            group = self._of(partition)
            history.assigned(group, generation, joined.leader, self._member, peer.boot)
        history.count("generations joined")
        self._heard_at = CLOCK.now
        return Membership(self._member, generation, CLOCK.now, partitions)

    def _assign(self, peer: KafkaPeer, members: list[str]) -> list[Any]:
        """Return who reads which partitions, by chance."""
        owners = [self.chance.choice(members) for _ in range(self._partitions)]
        return [
            peer.struct(
                "SyncGroupRequest",
                "SyncGroupRequestAssignment",
                member_id=member,
                assignment=json.dumps(
                    [place for place, owner in enumerate(owners) if owner == member]
                ).encode(),
            )
            for member in members
        ]

    def _goes_on(self, request: str, code: int) -> bool:
        """Return whether a request was taken; a member that is none any more begins as another."""
        if code:
            self.world.history.count(f"{request}: {ErrorCode(code).name}")
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member = ""
        return not code

    async def _read(self, peer: KafkaPeer, membership: Membership) -> None:
        """Read until the group begins another generation, or this is no member any more."""
        self.empty_in_quiet = 0
        if self._before is not None and self.chance.random() < 0.3:
            # A request that was sent long ago.
            await self._commits(peer, *self._before)
        asked_at, positions = CLOCK.now, {}
        for partition in membership.partitions:
            positions[partition] = await peer.committed(self._group, self._topic, partition)
        after: dict[int, tuple[int, int]] = {}
        self._before = (membership, after)
        while True:
            found_any = False
            for partition in membership.partitions:
                found = await peer.fetch(self._topic, partition, positions[partition])
                if found:
                    found_any, group = True, self._of(partition)
                    history = self.world.history
                    history.delivered(group, found, asked_at, after.get(partition))
                    after[partition] = found[-1][0].following
                    positions[partition] = after[partition][0]
            if not await self._commits(peer, membership, after):
                return
            sent_at = CLOCK.now
            beat = await peer.ask(
                "Heartbeat",
                3,
                group_id=self._group,
                member_id=membership.member,
                generation_id=membership.generation,
            )
            if not self._goes_on("Heartbeat", beat.error_code):
                return
            self._beat(peer, sent_at)
            quiet = self.world.is_quiet
            self.empty_in_quiet = self.empty_in_quiet + 1 if quiet and not found_any else 0
            if not await self._pause(peer, membership):
                return

    async def _commits(
        self, peer: KafkaPeer, membership: Membership, after: dict[int, tuple[int, int]]
    ) -> bool:
        """Commit some of where it stands; return False if it has to join again."""
        history = self.world.history
        for partition, end in after.items():
            group = self._of(partition)
            behind = history.progress(group).durable_to < end
            if not behind or not (self.world.is_quiet or self.chance.random() < 0.5):
                continue
            history.acknowledging(group, end)
            sent_at = CLOCK.now
            code = await peer.commit(
                self._group,
                self._topic,
                partition,
                end[0],
                member_id=membership.member,
                generation_id_or_member_epoch=membership.generation,
            )
            if not self._goes_on("OffsetCommit", code):
                return False
            self._beat(peer, sent_at)
            generation, since = membership.generation, membership.since
            history.committed(self._group, generation, since, sent_at, peer.boot)
            history.confirmed(group, end, peer.boot)
        return True

    def _beat(self, peer: KafkaPeer, sent_at: float) -> None:
        """Note that a request which was sent at a time was taken from this member."""
        history, heard_at = self.world.history, self._heard_at
        history.beat(self.name, SESSION_SECONDS, heard_at, sent_at, peer.boot)
        self._heard_at = CLOCK.now

    async def _pause(self, peer: KafkaPeer, membership: Membership) -> bool:
        """Work on what was read, stall, or go; return False if it has left the group."""
        fate = 1.0 if self.world.is_quiet else self.chance.random()
        if fate < 0.02:
            await asyncio.sleep(self.chance.uniform(*STALL_SECONDS))
        elif fate < 0.03:
            member = peer.struct("LeaveGroupRequest", "MemberIdentity", member_id=membership.member)
            await peer.ask("LeaveGroup", 3, group_id=self._group, members=[member])
            self._member = ""
            await self.world.pause(self.chance, 10 * self.mean)
            return False
        elif fate < 0.04:
            peer.stream.close()
            raise GoneError
        else:
            await self.pause()
        return True
