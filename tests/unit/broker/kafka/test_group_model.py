"""Any order of joins, syncs, heartbeats, departures, restarts and time keeps a group's promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.broker.kafka.group_records import GroupRecord
from router.broker.kafka.group_values import (
    GroupCaller,
    GroupLimits,
    GroupState,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from router.broker.kafka.groups import KafkaGroup
from router.wire.kafka.error_codes import ErrorCode

SESSION = 10.0
REBALANCE = 30.0
INITIAL = 3.0
MEMBERS = 4
PROTOCOLS = ("range", "sticky", "robin")


@dataclass(eq=False)
class Client:
    """A member's client: it joins, syncs what it was given, and knows nothing else."""

    instance: str | None
    id_required: bool
    protocols: tuple[str, ...]
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    members: tuple[str, ...] = ()
    assignment: bytes | None = None
    waits: str = ""
    since: float = 0.0


@dataclass(eq=False)
class Waiter:
    """A request of a client that waits for its answer."""

    client: Client
    kind: str
    since: float
    answers: list[Any] = field(default_factory=list)


class GroupModel(RuleBasedStateMachine):
    """Clients of one group, and what each of them was told."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = count(1)
        self.now = 0.0
        self.delay = 0.0
        self.group = self.new_group()
        self.stored: bytes | None = None
        self.clients: list[Client] = []
        self.waiters: list[Waiter] = []

    def new_group(self) -> KafkaGroup[Waiter]:
        """Return an empty group."""
        return KafkaGroup(
            lambda client: f"{client}-{next(self._ids)}", self.delay, GroupLimits(members=MEMBERS)
        )

    @initialize(delay=st.sampled_from([0.0, INITIAL]))
    def begin(self, delay: float) -> None:
        self.delay = delay
        self.group = self.new_group()

    @rule()
    def restart(self) -> None:
        """The broker is killed: requests that wait are lost, and the group is as it was stored."""
        for waiter in self.waiters:
            waiter.client.waits = ""
        self.waiters.clear()
        self.group = self.new_group()
        if self.stored is not None:
            self.group.restore(GroupRecord.load(self.stored), self.now)
            assert self.group.state is GroupState.STABLE

    @rule(
        instance=st.sampled_from([None, None, "a", "b"]),
        id_required=st.booleans(),
        protocols=st.lists(st.sampled_from(PROTOCOLS), min_size=1, unique=True),
    )
    def come(self, instance: str | None, id_required: bool, protocols: list[str]) -> None:
        client = Client(instance, id_required, tuple(protocols))
        self.clients.append(client)
        self._join(client)

    @precondition(lambda self: self._idle())
    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        self._join(data.draw(st.sampled_from(self._idle())))

    @precondition(lambda self: self._idle())
    @rule(data=st.data(), protocols=st.lists(st.sampled_from(PROTOCOLS), min_size=1, unique=True))
    def join_with_other_protocols(self, data: st.DataObject, protocols: list[str]) -> None:
        client = data.draw(st.sampled_from(self._idle()))
        client.protocols = tuple(protocols)
        self._join(client)

    @precondition(lambda self: self._idle())
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        self._sync(data.draw(st.sampled_from(self._idle())))

    def _sync(self, client: Client) -> None:
        waiter = self._wait(client, "sync")
        given = {one: f"{client.generation}:{one}".encode() for one in client.members}
        request = SyncRequest(
            GroupCaller(client.member_id, client.instance, client.generation),
            assignments=given if client.leads else {},
        )
        self.group.sync(request, waiter, self.now)
        self._deliver()

    @precondition(lambda self: self._idle())
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self._idle()))
        caller = GroupCaller(client.member_id, client.instance, client.generation)
        error = self.group.heartbeat(caller, self.now)
        current = client.generation == self.group.generation
        if error is ErrorCode.NONE:
            assert current
            assert self.group.state is not GroupState.PREPARING
        if client.generation >= 0 and not current:
            assert self.group.check_commit(caller, self.now) is not ErrorCode.NONE

    @precondition(lambda self: self._idle())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self._idle()))
        self.clients.remove(client)
        self.group.leave(GroupCaller(client.member_id, client.instance), self.now)
        assert client.member_id not in self.group.members or client.instance is not None
        self._deliver()

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def lose_connection(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.waiters))
        self.waiters.remove(waiter)
        waiter.client.waits = ""
        self.group.abandon(waiter, self.now)
        self._deliver()

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.group.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.group.tick(self.now)
            self._deliver()
            following = self.group.next_deadline()
            assert following is None or following > self.now
        self.now = end

    @invariant()
    def a_waiting_request_has_a_deadline(self) -> None:
        assert not self.waiters or self.group.next_deadline() is not None
        for waiter in self.waiters:
            assert self.now - waiter.since <= 2 * REBALANCE + SESSION

    @invariant()
    def an_empty_group_has_no_members(self) -> None:
        group = self.group
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        assert len(group.members) <= MEMBERS
        waiting = {waiter for waiter in self.waiters if waiter.kind == "join"}
        parked = {member.joining for member in group.members.values()} - {None}
        assert waiting == parked

    @invariant()
    def members_of_a_settled_group_speak_its_protocol(self) -> None:
        group = self.group
        if group.state in {GroupState.COMPLETING, GroupState.STABLE}:
            assert group.protocol is not None
            assert group.leader in group.members
            assert all(member.speaks(group.protocol) for member in group.members.values())

    @invariant()
    def members_of_a_stable_group_have_their_assignments(self) -> None:
        group = self.group
        if group.state is not GroupState.STABLE:
            return
        for client in self.clients:
            current = client.generation == group.generation and client.member_id in group.members
            if current and client.assignment is not None:
                # A static member that came back has what its earlier self was given.
                owner = client.assignment.decode().partition(":")[2]
                assert owner == client.member_id or client.instance is not None

    def _idle(self) -> list[Client]:
        return [client for client in self.clients if not client.waits]

    def _wait(self, client: Client, kind: str) -> Waiter:
        client.waits = kind
        waiter = Waiter(client, kind, self.now)
        self.waiters.append(waiter)
        return waiter

    def _join(self, client: Client) -> None:
        request = JoinRequest(
            client.member_id,
            client.instance,
            "client",
            "host",
            SESSION,
            REBALANCE,
            "consumer",
            tuple((name, f"{name} data".encode()) for name in client.protocols),
            client.id_required,
        )
        self.group.join(request, self._wait(client, "join"), self.now)
        self._deliver()

    def _deliver(self) -> None:
        # As the coordinator does it: what is answered is stored.
        record = self.group.record()
        if record is not None:
            self.stored = record.dump()
        elif self.group.state is GroupState.EMPTY:
            self.stored = None
        for waiter, result in self.group.answers():
            assert waiter in self.waiters, "an answer is given once, to a request that waits"
            self.waiters.remove(waiter)
            client = waiter.client
            client.waits = ""
            if isinstance(result, JoinResult):
                assert waiter.kind == "join"
                self._joined(client, result)
            else:
                assert waiter.kind == "sync"
                self._synced(client, result)

    def _joined(self, client: Client, result: JoinResult) -> None:
        if result.error is ErrorCode.MEMBER_ID_REQUIRED:
            assert client.id_required
            client.member_id = result.member_id
        elif result.error is ErrorCode.UNKNOWN_MEMBER_ID:
            client.member_id = ""
        if result.error is not ErrorCode.NONE:
            client.generation, client.leads = -1, False
            return
        assert result.generation == self.group.generation
        assert result.protocol in client.protocols
        client.member_id, client.generation = result.member_id, result.generation
        client.leads = result.leader == result.member_id
        client.members = tuple(member.member_id for member in result.members)
        client.assignment = None
        if client.leads:
            assert set(client.members) == set(self.group.members)
            assert client.member_id in client.members

    def _synced(self, client: Client, result: SyncResult) -> None:
        if result.error is not ErrorCode.NONE:
            return
        assert client.generation == self.group.generation
        assert self.group.state is GroupState.STABLE
        client.assignment = result.assignment
        if client.instance is None and result.assignment:
            assert result.assignment == f"{client.generation}:{client.member_id}".encode()


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
