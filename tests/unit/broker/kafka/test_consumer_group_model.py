"""Any order of heartbeats, departures, lost answers, time and restarts keeps a group's promises.

Of a consumer group (KIP-848) with members of both protocols, by what these were answered: a
partition has one owner at a time, epochs do not go back, and once heartbeats go through each has
an owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.broker.kafka.assignors import NOTHING, Assignment
from router.broker.kafka.consumer_group_records import ConsumerGroupRecord
from router.broker.kafka.consumer_group_values import (
    AWAY,
    JOINING,
    LEAVING,
    SESSION_SECONDS,
    Heartbeat,
    HeartbeatResult,
    TopicShape,
)
from router.broker.kafka.consumer_metadata import assigned_partitions
from router.broker.kafka.group_values import (
    GroupCaller,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from router.broker.kafka.mixed_group import MixedGroup
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.grouping import subscription

REBALANCE = 60.0
"""Longer than a session: a client whose answers are lost does not use partitions for so long."""
TOPICS = ("a", "b", "c")
REJOIN = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
}


@dataclass
class Topics:
    """The topics of a broker: how many partitions each has."""

    version: int = 0
    partitions: dict[str, int] = field(default_factory=lambda: {"a": 3, "b": 2})

    def shape(self, name: str) -> TopicShape | None:
        found = self.partitions.get(name)
        return None if found is None else TopicShape(name.encode().ljust(16, b"\0"), found)

    def match(self, pattern: str) -> frozenset[str]:
        return frozenset(name for name in self.partitions if name in pattern)


@dataclass(eq=False)
class Client:
    """A client of the protocol: it gives up at once what it is not assigned any more, or later.

    `heard_at` is the time of its last answer: it uses nothing when its session is over. After an
    answer that it `missed` it says all that there is. A `classic` one gives up all to join again.
    """

    member_id: str
    instance_id: str | None
    names: frozenset[str]
    pattern: str
    assignor: str | None
    epoch: int = JOINING
    owned: Assignment = NOTHING
    wanted: Assignment = NOTHING
    classic: bool = False
    heard_at: float = 0.0
    missed: bool = False
    epochs: list[int] = field(default_factory=list)


class ConsumerGroupModel(RuleBasedStateMachine):
    """Clients of one group, and what each of them was answered."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = count(1)
        self.now = 0.0
        self.topics = Topics()
        self.group = self.new_group()
        self.clients: list[Client] = []
        self.group_epoch = 0

    def new_group(self) -> MixedGroup[Client]:
        """Return an empty group."""
        return MixedGroup(self.topics, lambda client: f"{client}-{next(self._ids)}")

    @rule(
        names=st.sets(st.sampled_from(TOPICS)).map(frozenset),
        pattern=st.sampled_from(["", "", "ab", "abc"]),
        instance=st.sampled_from([None, None, "i", "j"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    @precondition(lambda self: len(self.clients) < 5)
    def come(self, names: Any, pattern: str, instance: str | None, assignor: str | None) -> None:
        client = Client(f"m{next(self._ids)}", instance, names, pattern, assignor)
        self.clients.append(client)
        self.beat(client)

    @rule(names=st.sets(st.sampled_from(TOPICS)).map(frozenset))
    @precondition(lambda self: len(self.clients) < 5)
    def a_classic_one_comes(self, names: frozenset[str]) -> None:
        client = Client("", None, names, "", None, classic=True)
        self.clients.append(client)
        self.beat(client)

    @rule(data=st.data(), lost=st.booleans(), slow=st.booleans())
    @precondition(lambda self: self.clients)
    def one_beats(self, data: st.DataObject, *, lost: bool, slow: bool) -> None:
        self.beat(data.draw(st.sampled_from(self.clients)), lost=lost, slow=slow)

    @rule(data=st.data(), names=st.sets(st.sampled_from(TOPICS)).map(frozenset))
    @precondition(lambda self: self.clients)
    def one_reads_others(self, data: st.DataObject, names: frozenset[str]) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.names = names
        self.beat(client, full=True)

    @rule(data=st.data(), away=st.booleans())
    @precondition(lambda self: self.clients)
    def one_leaves(self, data: st.DataObject, *, away: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        away = away and client.instance_id is not None
        if client.classic:
            self.group.leave(GroupCaller(client.member_id), self.now)
            return
        self.send(client, epoch=AWAY if away else LEAVING)

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def one_dies(self, data: st.DataObject) -> None:
        """It uses its partitions no more, and the group learns of it by the end of its session."""
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def a_topic_grows(self, topic: str, more: int) -> None:
        self.topics.partitions[topic] = min(6, self.topics.partitions.get(topic, 0) + more)
        self.topics.version += 1

    @rule(seconds=st.sampled_from([1.0, 5.0, 30.0, SESSION_SECONDS]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for client in self.clients:
            if client.heard_at + SESSION_SECONDS <= self.now or not client.owned <= client.wanted:
                self.rejoin(client)
        self.group.tick(self.now)

    @rule()
    def restart(self) -> None:
        """The broker is killed: the group is as it was stored before its last answer."""
        record = self.group.recorder()()
        self.group = self.new_group()
        if record is None:
            self.group_epoch = 0
        else:
            self.group.restore(ConsumerGroupRecord.load(record), self.now)

    @rule()
    def all_settle(self) -> None:
        """All clients beat until nothing changes; those that are gone lose their sessions."""
        for _ in range(10):
            self.now += SESSION_SECONDS / 3
            self.group.tick(self.now)
            for client in list(self.clients):
                for _ in range(3):
                    self.beat(client)
        for client in self.clients:
            if client.epoch == JOINING:  # another one has its instance
                assert client.instance_id is not None
        live = [one for one in self.clients if one.epoch != JOINING]
        assert self.group.state == ("Stable" if live else "Empty")
        read = set[bytes]().union(*map(self.ids, live))
        shapes = [self.topics.shape(name) for name in self.topics.partitions]
        every = [(s.id, n) for s in shapes if s and s.id in read for n in range(s.partitions)]
        assert sorted(place for one in live for place in one.owned) == sorted(every)
        assert {one.epoch for one in live} <= {self.group.epoch}
        for one in live:
            assert {topic for topic, _ in one.owned} <= self.ids(one)

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        owned = [place for client in self.clients for place in client.owned]
        assert len(owned) == len(set(owned))

    @invariant()
    def epochs_do_not_go_back(self) -> None:
        if not self.group.members:
            self.group_epoch = self.group.epoch
        assert self.group.epoch >= self.group_epoch
        assert self.group.assignment_epoch <= self.group.epoch
        self.group_epoch = self.group.epoch
        for client in self.clients:
            assert client.epochs == sorted(client.epochs)

    def ids(self, client: Client) -> set[bytes]:
        """Return the ids of the topics that a client reads, of those that there are."""
        names = client.names | self.topics.match(client.pattern)
        return {shape.id for name in names if (shape := self.topics.shape(name)) is not None}

    def beat(
        self, client: Client, *, full: bool = False, lost: bool = False, slow: bool = False
    ) -> None:
        """Send a heartbeat; a slow client goes on to use what it is to give up."""
        if client.classic:
            self.beat_classic(client, full=full, lost=lost)
            return
        joins = client.epoch == JOINING
        result = self.send(client, full=full or joins or client.missed)
        client.missed = lost
        if lost:
            return
        if result.error in REJOIN:
            self.rejoin(client)
            return
        assert result.error is ErrorCode.NONE, result
        client.heard_at, client.epoch = self.now, result.epoch
        client.epochs.append(result.epoch)
        if result.assignment is not None:
            client.wanted = result.assignment
        client.owned = (client.owned & client.wanted) if not slow else client.owned
        if client.owned <= client.wanted:
            client.owned = client.wanted

    def beat_classic(self, client: Client, *, full: bool, lost: bool) -> None:
        """Send a classic heartbeat; join if that is its answer, or the client reads others."""
        caller = GroupCaller(client.member_id, None, client.epoch)
        error = self.group.heartbeat(caller, self.now)
        if lost:
            return
        client.heard_at = self.now
        if error is ErrorCode.NONE and not full:
            return
        if error not in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}:
            client.member_id = ""
        self.rejoin(client)
        protocols = (("range", subscription(*client.names)),)
        request = JoinRequest(
            client.member_id, None, "c", "h", SESSION_SECONDS, REBALANCE, "consumer", protocols
        )
        self.group.join(request, client, self.now)
        ((_, joined),) = self.group.answers()
        assert isinstance(joined, JoinResult)
        assert joined.error is ErrorCode.NONE
        client.member_id, client.epoch = joined.member_id, joined.generation
        client.epochs.append(joined.generation)
        caller = GroupCaller(client.member_id, None, client.epoch)
        self.group.sync(SyncRequest(caller, "consumer", "range"), client, self.now)
        ((_, synced),) = self.group.answers()
        assert isinstance(synced, SyncResult)
        assert synced.error is ErrorCode.NONE
        client.owned = client.wanted = frozenset(
            (shape.id, number)
            for topic, partitions in assigned_partitions(synced.assignment).items()
            if (shape := self.topics.shape(topic)) is not None
            for number in partitions
        )

    def rejoin(self, client: Client) -> None:
        """Lose all partitions, and join again."""
        client.epoch, client.owned, client.wanted = JOINING, NOTHING, NOTHING
        client.epochs.clear()
        client.heard_at = self.now

    def send(
        self, client: Client, *, epoch: int | None = None, full: bool = False
    ) -> HeartbeatResult:
        request = Heartbeat(
            member_id=client.member_id,
            epoch=client.epoch if epoch is None else epoch,
            client_id="c",
            client_host="h",
            match=self.topics.match,
            instance_id=client.instance_id,
            rebalance_seconds=REBALANCE if full else None,
            names=client.names if full else None,
            pattern=client.pattern if full else None,
            assignor=client.assignor if full else None,
            owned=client.owned,
        )
        self.group.beat(request, client, self.now)
        ((waiter, result),) = self.group.answers()
        assert waiter is client
        assert isinstance(result, HeartbeatResult)
        return result


TestConsumerGroupModel = ConsumerGroupModel.TestCase
TestConsumerGroupModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
