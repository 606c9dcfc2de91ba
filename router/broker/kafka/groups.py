"""Kafka's classic group protocol as a pure state machine: members join, sync, beat and leave.

Theory of operation. A group is empty, or it prepares a rebalance (all members are to join again),
or it completes one (all have joined, the leader's assignment is waited for), or it is stable. Each
time all have joined, or their time is over, a new generation begins; requests that name another
one are refused. A request that waits is a *waiter* of its member: no task and no thread stands
behind it. `answers()` returns the waiters that got their result since its last call.

There is no clock and no I/O here. The time is an argument, `next_deadline()` says when `tick` has
something to do at the earliest, and ids of members come from a function. Heartbeats only move
deadlines on, so that a timer which fires early costs a look at the members and nothing else.

A stable group has a record (`record`) from which a later broker goes on (`restore`): with the same
generation, members and assignments, so that no member learns of the restart. A rebalance that was
under way is forgotten: its members join again by themselves. Answers depend on the record, so they
are sent when it is on disk (`held_groups.py`).

Differences from Apache Kafka: a member that left before its client received its id is forgotten at
once, because its connection is known to be closed; Apache Kafka waits five minutes. A static member
that did not join a rebalance keeps its session, not the shorter time for a sync. A record holds all
protocols that a member offers, at Apache Kafka the chosen one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, Generic

from router.broker.kafka.consumer_metadata import assigned_partitions, topics_of
from router.broker.kafka.group_members import KafkaGroupMembers
from router.broker.kafka.group_records import GroupRecord
from router.broker.kafka.group_values import (
    GroupCaller,
    GroupLimits,
    GroupState,
    JoinedMember,
    JoinRequest,
    JoinResult,
    KafkaMember,
    MemberTopics,
    SyncRequest,
    SyncResult,
    W,
)
from router.wire.kafka.error_codes import ErrorCode

_REBALANCING: Final = ErrorCode.REBALANCE_IN_PROGRESS
DEFAULT_LIMITS: Final = GroupLimits()


class KafkaGroup(Generic[W]):
    """One group. Times are seconds of one clock that only goes forward.

    `new_id` makes an id that no member ever had from a client's name. `initial_delay` is the time
    for which a group that was empty waits for more members than the first.
    """

    def __init__(
        self,
        new_id: Callable[[str], str],
        initial_delay: float,
        limits: GroupLimits = DEFAULT_LIMITS,
    ) -> None:
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self._new_id = new_id
        self._initial_delay = initial_delay
        self._limits = limits
        self._membership: KafkaGroupMembers[W] = KafkaGroupMembers(limits)
        self.members = self._membership.members
        self._pending = self._membership.pending
        self._join_deadline = self._sync_deadline = 0.0
        # Of a group that was empty: the time that its first rebalance may still be put off.
        self._initial_left: float | None = None
        self._arrived = False
        self._answers: list[tuple[W, JoinResult | SyncResult]] = []

    @property
    def protocol_type(self) -> str:
        """Return what kind of group it is: "consumer" for consumers."""
        return self._membership.protocol_type

    @property
    def size_bytes(self) -> int:
        """Return about what its members take with their metadata and assignments."""
        return self._membership.size_bytes

    @property
    def unused(self) -> bool:
        """Return whether there is neither a member nor an id that one may come with."""
        return not self.members and not self._pending

    @property
    def revision(self) -> tuple[int, GroupState, tuple[str, ...]]:
        """Return another value after each change of members or assignments."""
        return self.generation, self.state, tuple(self.members)

    @property
    def storable(self) -> bool:
        """Return whether what a later broker goes on with is as the group is now."""
        return self.state in {GroupState.STABLE, GroupState.EMPTY}

    def readings(self) -> Iterator[MemberTopics] | None:
        """Return what each member reads, None: as before, while a rebalance is prepared."""
        return (
            None
            if self.state is GroupState.PREPARING
            else map(self._reading, self.members.values())
        )

    def recorder(self) -> Callable[[], bytes | None]:
        """Return what makes the bytes of which a later broker goes on, as they are now."""
        record = self.record()
        value = None if record is None else record.dump()
        return lambda: value

    def answers(self) -> list[tuple[W, JoinResult | SyncResult]]:
        """Return the waiters that have a result since the last call, each once."""
        found, self._answers = self._answers, []
        return found

    def record(self) -> GroupRecord | None:
        """Return what a later broker goes on with, as long as nothing changes; None: not stable."""
        if self.state is not GroupState.STABLE or self.protocol is None or self.leader is None:
            return None
        members = tuple(self.members.values())
        return GroupRecord(self.generation, self.protocol_type, self.protocol, self.leader, members)

    def restore(self, record: GroupRecord, now: float) -> None:
        """Go on, as a group that is new here, where the broker before stored the record."""
        self.state, self.generation = GroupState.STABLE, record.generation
        self.protocol, self.leader = record.protocol, record.leader
        self._membership.restore(record, now)

    def join(self, request: JoinRequest, waiter: W, now: float) -> None:
        """Join, for the first time or again; the waiter gets a JoinResult."""
        self.tick(now)
        error = self._membership.check_join(request)
        if error is not ErrorCode.NONE:
            self._answers.append((waiter, JoinResult(error, request.member_id)))
        elif not request.member_id:
            self._join_first(request, waiter, now)
        elif self._pending.pop(request.member_id, None) is not None:
            self._add(request.member_id, request, waiter, now)
        else:
            self._rejoin(self.members[request.member_id], request, waiter, now)

    def sync(self, request: SyncRequest, waiter: W, now: float) -> None:
        """Request an assignment, the leader with those of all; the waiter gets a SyncResult."""
        error = self._check_sync(request)
        if error is not ErrorCode.NONE:
            self._answers.append((waiter, SyncResult(error)))
            return
        member = self.members[request.caller.member_id]
        member.synced = True
        member.extend(now)
        self._answer_sync(member, SyncResult(_REBALANCING))
        member.syncing = waiter
        if self.state is GroupState.COMPLETING and member.id == self.leader:
            for other in self.members.values():
                other.assignment = request.assignments.get(other.id, b"")
            self.state = GroupState.STABLE
        if self.state is GroupState.STABLE:
            self._answer_syncs(now)

    def heartbeat(self, caller: GroupCaller, now: float) -> ErrorCode:
        """Extend a session; REBALANCE_IN_PROGRESS tells the member to join again."""
        error = self._check_generation(caller)
        if error is ErrorCode.NONE:
            self.members[caller.member_id].extend(now)
            if self.state is GroupState.PREPARING:
                return _REBALANCING
        return error

    def leave(self, caller: GroupCaller, now: float) -> ErrorCode:
        """End a membership; a static member may be named by its instance alone."""
        member_id = caller.member_id
        if self._pending.pop(member_id, None) is not None:
            self._try_complete_join(now)
            return ErrorCode.NONE
        if caller.instance_id is not None and not member_id:
            member_id = self._membership.static_id(caller.instance_id) or ""
        error = self._membership.check(replace(caller, member_id=member_id))
        if error is ErrorCode.NONE:
            self._remove([self.members[member_id]], now)
        return error

    def check_commit(self, caller: GroupCaller, now: float) -> ErrorCode:
        """Return whether offsets may be committed; a member's session is extended.

        Without a generation they may be as long as the group is empty.
        """
        if caller.generation < 0 and not self.members:
            return ErrorCode.NONE
        if caller.generation < 0 and not caller.member_id and caller.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._check_generation(caller)
        if error is ErrorCode.NONE:
            self.members[caller.member_id].extend(now)
            if self.state is GroupState.COMPLETING:
                return _REBALANCING
        return error

    def abandon(self, waiter: W, now: float) -> None:
        """Drop a waiter whose connection is closed; its member has one session to come back."""
        for member in self.members.values():
            if member.joining is not waiter and member.syncing is not waiter:
                continue
            member.joining = member.syncing = None
            member.extend(now)
            if not member.answered and member.instance_id is None:
                self._remove([member], now)
            return

    def dissolve(self) -> None:
        """Answer all waiters that their members have to join again."""
        for member in self.members.values():
            self._answer_waiters(member, _REBALANCING)

    def tick(self, now: float) -> None:
        """Do what is due: end sessions and rebalances."""
        for member_id in [one for one, deadline in self._pending.items() if deadline <= now]:
            del self._pending[member_id]
        ended = [m for m in self.members.values() if m.deadline <= now and not m.waits]
        if self._syncs_awaited() and self._sync_deadline <= now:
            ended += [m for m in self.members.values() if not m.synced and m not in ended]
        self._remove(ended, now)
        self._try_complete_join(now)

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` may have something to do, if there is one."""
        deadlines = [member.deadline for member in self.members.values() if not member.waits]
        deadlines += self._pending.values()
        if self.state is GroupState.PREPARING:
            deadlines.append(self._join_deadline)
        elif self._syncs_awaited():
            deadlines.append(self._sync_deadline)
        return min(deadlines, default=None)

    def _reading(self, member: KafkaMember[W]) -> MemberTopics:
        assigned = assigned_partitions(member.assignment)
        topics = topics_of(member, self.protocol_type)
        read = {topic: assigned.get(topic, ()) for topic in topics}
        return MemberTopics(member.id, member.client_id, member.client_host, read)

    def _syncs_awaited(self) -> bool:
        settled = self.state in {GroupState.COMPLETING, GroupState.STABLE}
        return settled and not all(member.synced for member in self.members.values())

    def _check_generation(self, caller: GroupCaller) -> ErrorCode:
        error = self._membership.check(caller)
        if error is ErrorCode.NONE and caller.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self._check_generation(request.caller)
        if error is not ErrorCode.NONE:
            return error
        named = (request.protocol_type or self.protocol_type, request.protocol or self.protocol)
        if named != (self.protocol_type, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING:
            return _REBALANCING
        if sum(map(len, request.assignments.values())) > self._limits.metadata_bytes:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _join_first(self, request: JoinRequest, waiter: W, now: float) -> None:
        instance = request.instance_id
        if self._membership.static_id(instance) is not None:
            self._replace_static(request, waiter, now)
            return
        member_id = self._new_id(request.client_id if instance is None else instance)
        if instance is None and request.id_required:
            self._pending[member_id] = now + request.session_seconds
            result = JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
            self._answers.append((waiter, result))
        else:
            self._add(member_id, request, waiter, now)

    def _add(self, member_id: str, request: JoinRequest, waiter: W, now: float) -> None:
        member = self._membership.add(member_id, request, now)
        member.joining = waiter
        if self.state is GroupState.PREPARING:
            self._arrived = True
            self._try_complete_join(now)
        else:
            self.rebalance(now)

    def _rejoin(self, member: KafkaMember[W], request: JoinRequest, waiter: W, now: float) -> None:
        member.extend(now)
        same = member.protocols == request.protocols
        follows = self.state is GroupState.STABLE and member.id != self.leader
        if same and (follows or self.state is GroupState.COMPLETING):
            self._answers.append((waiter, self._join_result(member)))
            return
        self._membership.update(member, request)
        self._await_join(member, waiter, now)

    def _await_join(self, member: KafkaMember[W], waiter: W, now: float) -> None:
        self._answer_join(member, JoinResult(_REBALANCING, member.id))
        member.joining = waiter
        if self.state is GroupState.PREPARING:
            self._try_complete_join(now)
        else:
            self.rebalance(now)

    def _replace_static(self, request: JoinRequest, waiter: W, now: float) -> None:
        """Give a static member that came back another id; the earlier one is fenced."""
        instance = request.instance_id or ""
        before = self.members[self._membership.static_id(instance) or ""]
        self._membership.remove(before)
        self._answer_waiters(before, ErrorCode.FENCED_INSTANCE_ID)
        member = self._membership.add(self._new_id(instance), request, now)
        member.assignment, member.synced = before.assignment, before.synced
        led = self.leader == before.id
        if led:
            self.leader = member.id
        if (
            self.state is not GroupState.STABLE
            or self._membership.choose_protocol() != self.protocol
        ):
            self._await_join(member, waiter, now)
            return
        member.answered = True
        result = self._join_result(member)
        if led and request.may_skip_assignment:
            result = replace(result, skip_assignment=True)
        elif led:
            # A client that knows no such answer does not assign if another member leads.
            result = replace(result, leader=before.id, members=())
        self._answers.append((waiter, result))

    def _remove(self, members: Iterable[KafkaMember[W]], now: float) -> None:
        """End memberships, and have the others join again."""
        removed = False
        for member in members:
            removed = True
            self._membership.remove(member)
            if self.leader == member.id:
                self.leader = None
            self._answer_waiters(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if not removed:
            return
        if self.state is GroupState.PREPARING:
            self._try_complete_join(now)
        else:
            self.rebalance(now)

    def rebalance(self, now: float) -> None:
        """Have all members join again."""
        for member in self.members.values():
            if member.syncing is not None:
                self._answer_sync(member, SyncResult(_REBALANCING))
                member.extend(now)
            if self.state is GroupState.COMPLETING:
                member.assignment = b""
        wait = self._membership.rebalance_seconds
        self._initial_left = None
        if self.state is GroupState.EMPTY:
            delay = min(self._initial_delay, wait)
            self._initial_left, wait = wait - delay, delay
        self._arrived = False
        self._join_deadline = now + wait
        self.state = GroupState.PREPARING
        self._try_complete_join(now)

    def _try_complete_join(self, now: float) -> None:
        if self.state is not GroupState.PREPARING:
            return
        all_joined = all(member.joining is not None for member in self.members.values())
        if now < self._join_deadline and self.members:
            if self._initial_left is not None or not all_joined or self._pending:
                return
        elif self._arrived and self._initial_left and self._initial_delay:
            more = min(self._initial_delay, self._initial_left)
            self._initial_left -= more
            self._arrived = False
            self._join_deadline = now + more
            return
        self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Begin the next generation with the members that joined; others were too late."""
        late = [member for member in self.members.values() if member.joining is None]
        for member in late:
            if member.instance_id is None:
                self._membership.remove(member)
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined:
            # Static members keep their place until their sessions end.
            self._join_deadline = now + self._membership.rebalance_seconds
            return
        self.generation += 1
        self._initial_left = None
        if not joined:
            self.state, self.protocol, self.leader = GroupState.EMPTY, None, None
            return
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        self.protocol = self._membership.choose_protocol()
        self.state = GroupState.COMPLETING
        self._sync_deadline = now + self._membership.rebalance_seconds
        for member in joined:
            member.synced, member.answered = False, True
            member.extend(now)
            self._answer_join(member, self._join_result(member))

    def _answer_syncs(self, now: float) -> None:
        for member in self.members.values():
            if member.syncing is not None:
                result = SyncResult(
                    ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment
                )
                self._answer_sync(member, result)
                member.extend(now)

    def _answer_waiters(self, member: KafkaMember[W], error: ErrorCode) -> None:
        self._answer_join(member, JoinResult(error, member.id))
        self._answer_sync(member, SyncResult(error))

    def _answer_join(self, member: KafkaMember[W], result: JoinResult) -> None:
        if member.joining is not None:
            self._answers.append((member.joining, result))
            member.joining = None

    def _answer_sync(self, member: KafkaMember[W], result: SyncResult) -> None:
        if member.syncing is not None:
            self._answers.append((member.syncing, result))
            member.syncing = None

    def _join_result(self, member: KafkaMember[W]) -> JoinResult:
        protocol = self.protocol or ""
        listed = self.members.values() if member.id == self.leader else ()
        members = tuple(JoinedMember(m.id, m.instance_id, m.metadata(protocol)) for m in listed)
        return JoinResult(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            protocol,
            self.leader or "",
            members=members,
        )
