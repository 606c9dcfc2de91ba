"""Members of a Kafka group: which partitions they have, and what they may commit.

What a member may not do any more it tries at times: it commits as it was before. One that is not
answered has no partitions from then on, and joins again.
"""

from __future__ import annotations

import itertools
import random
import uuid
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from router.wire.kafka.error_codes import ErrorCode
from tests.histories.kafka_members import LEAVING, MemberConnection
from tests.histories.recording import Output, UnknownOutcomeError
from tests.histories.scenarios import Ports, Scenario, Step, required

PARTITIONS: Final = 3
MEMBERS: Final = 3


@dataclass(frozen=True)
class Membership:
    """A member at one epoch or generation, with its partitions then."""

    member: str
    epoch: int
    partitions: list[int] = field(default_factory=list)


class GroupScenario(Scenario):
    """Members of one group, which read a topic of some partitions, and a client that looks on."""

    model = "group"
    rebalance_ms = 500
    """How long others wait for a member of the classic protocol."""
    Kafka: type[MemberConnection] = MemberConnection

    def __init__(self, ports: Ports, name: str) -> None:
        super().__init__(ports, name)
        self.offsets = itertools.count(1)

    @property
    def group(self) -> str:
        """Return the group's id."""
        return f"g-{self.name}"

    def prepare(self) -> None:
        self.create_topic(PARTITIONS)

    def workers(self) -> list[Step]:
        return [self.member(f"member-{n}").step for n in range(MEMBERS)] + [self._observer()]

    def conclude(self) -> None:
        kafka = self.member_connection()
        for partition in range(PARTITIONS):
            required(self.fetch("last", kafka, partition))

    @abstractmethod
    def member(self, label: str) -> GroupMember:
        """Return a new member."""

    def member_connection(self) -> MemberConnection:
        """Return a new connection."""
        return self._owned.enter_context(closing(self.Kafka(self._ports.kafka)))

    def fetch(self, label: str, kafka: MemberConnection, partition: int) -> Output | None:
        """Record a look at a committed offset."""
        return self.history.record(
            label,
            "fetch",
            lambda: kafka.committed(self.group, self.name, partition),
            partition=partition,
        )

    def _observer(self) -> Step:
        kafka = self.member_connection()

        def step(chance: random.Random) -> None:
            self.fetch("observer", kafka, chance.randrange(PARTITIONS))

        return step


class GroupMember(ABC):
    """One member, by either protocol: `now` is what it is, `before` what it was last."""

    def __init__(self, scenario: GroupScenario, label: str) -> None:
        self.scenario, self.label = scenario, label
        self.kafka = scenario.member_connection()
        self.id = ""
        self.now: Membership | None = None
        self.before: Membership | None = None

    def step(self, chance: random.Random) -> None:
        """Make one operation, or a few."""
        kind, now, before = chance.random(), self.now, self.before
        if now is None:
            self.join(chance)
        elif kind < 0.1:
            self.scenario.fetch(self.label, self.kafka, chance.randrange(PARTITIONS))
        elif kind < 0.25 and before is not None and before.partitions:
            self._commit(before, chance)
        elif kind < 0.3:
            self._leave(now)
        elif kind < 0.6 and now.partitions:
            if not self._commit(now, chance):
                self.lose(now)
        else:
            self.beat(now, chance)

    @abstractmethod
    def join(self, chance: random.Random) -> None:
        """Try to become a member."""

    @abstractmethod
    def beat(self, now: Membership, chance: random.Random) -> None:
        """Send a heartbeat, and do what its answer says."""

    @abstractmethod
    def lose(self, now: Membership) -> None:
        """Be a member no more: the broker said so."""

    @abstractmethod
    def request_leave(self, now: Membership) -> Output:
        """Leave the group."""

    def abandon(self, member: str) -> None:
        """Have no partitions any more, whatever the broker knows."""
        self.scenario.history.record(self.label, "abandon", dict, member=member)
        self.before = self.now = None

    def _leave(self, now: Membership) -> None:
        done = self.scenario.history.record(
            self.label, "leave", lambda: self.request_leave(now), member=now.member
        )
        if done is None:
            self.abandon(now.member)
        else:
            self.before, self.now = now, None
        self.id = ""

    def _commit(self, membership: Membership, chance: random.Random) -> bool:
        """Commit an offset; return False if that is refused."""
        scenario = self.scenario
        offset = next(scenario.offsets)
        member, epoch = membership.member, membership.epoch
        partition = chance.choice(membership.partitions)
        done = scenario.history.record(
            self.label,
            "commit",
            lambda: self.kafka.commit_as(
                scenario.group, scenario.name, member, epoch, partition, offset
            ),
            member=member,
            epoch=epoch,
            partition=partition,
            offset=offset,
        )
        return done is None or "status" not in done


class ClassicMember(GroupMember):
    """Joins with all others at once: a generation has partitions of its own."""

    def join(self, chance: random.Random) -> None:
        scenario, kafka = self.scenario, self.kafka
        if not self.id:
            self.id = kafka.new_member(scenario.group)
        member, rebalance_ms = self.id, scenario.rebalance_ms
        done = scenario.history.record(
            self.label,
            "join",
            lambda: kafka.join(scenario.group, member, PARTITIONS, rebalance_ms, chance),
            member=member,
        )
        if done is None:
            self.abandon(member)
            self.id = ""
        elif "status" not in done:
            self.now = Membership(member, done["epoch"], done["partitions"])
        elif done["reason"] == ErrorCode.UNKNOWN_MEMBER_ID.name:
            self.id = ""

    def beat(self, now: Membership, chance: random.Random) -> None:
        try:
            current = self.kafka.is_current(self.scenario.group, now.member, now.epoch)
        except UnknownOutcomeError:
            return
        if not current:
            self.lose(now)
            self.join(chance)

    def lose(self, now: Membership) -> None:
        self.before, self.now = now, None

    def request_leave(self, now: Membership) -> Output:
        return self.kafka.leave(self.scenario.group, now.member)


class ConsumerMember(GroupMember):
    """Comes to its partitions by heartbeats of its own."""

    def join(self, chance: random.Random) -> None:
        del chance
        self.id = self.id or str(uuid.uuid4())
        self._beat(Membership(self.id, 0))

    def beat(self, now: Membership, chance: random.Random) -> None:
        del chance
        self._beat(now)

    def lose(self, now: Membership) -> None:
        self.abandon(now.member)

    def request_leave(self, now: Membership) -> Output:
        scenario = self.scenario
        return self.kafka.beat(scenario.group, scenario.name, now.member, LEAVING, [])

    def _beat(self, now: Membership) -> None:
        scenario, kafka = self.scenario, self.kafka
        done = scenario.history.record(
            self.label,
            "beat",
            lambda: kafka.beat(
                scenario.group, scenario.name, now.member, now.epoch, now.partitions
            ),
            member=now.member,
            epoch=now.epoch,
            partitions=now.partitions,
        )
        if done is None or "status" in done:
            self.abandon(now.member)
            return
        given = now.partitions if done["partitions"] is None else done["partitions"]
        self.now = Membership(now.member, done["epoch"], given)
        if done["epoch"] != now.epoch and now.epoch:
            self.before = now


class ClassicGroup(GroupScenario):
    """A group of the classic protocol."""

    label = "classic-group"

    def member(self, label: str) -> GroupMember:
        return ClassicMember(self, label)


class ConsumerProtocolGroup(GroupScenario):
    """A group of the consumer protocol (KIP-848)."""

    label = "consumer-group"

    def member(self, label: str) -> GroupMember:
        return ConsumerMember(self, label)
