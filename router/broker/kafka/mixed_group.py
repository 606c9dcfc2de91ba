"""Members of the classic protocol in a consumer group, so that groups migrate while they run.

Theory of operation. A member that joins with a heartbeat of KIP-848 takes over a classic group with
its members, and the members that are left when the last such member is gone are a classic group
again. In between the broker assigns for all, and is to a classic member what its leader and the
other members are in a classic group: the generation is the member's epoch, a heartbeat is answered
REBALANCE_IN_PROGRESS when there is something to give up or to get, a join is the step that the
heartbeat of KIP-848 makes, and a sync returns what the member may use. A join names no leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.broker.kafka.assignors import NOTHING, Assignment
from router.broker.kafka.consumer_group import DEFAULT_LIMITS, ConsumerGroup
from router.broker.kafka.consumer_group_values import (
    JOINING,
    ClassicTerms,
    ConsumerMember,
    Heartbeat,
    MemberState,
    TopicShapes,
)
from router.broker.kafka.consumer_metadata import (
    assigned_partitions,
    owned_partitions,
    topics_of,
    write_assignment,
)
from router.broker.kafka.failures import KafkaError
from router.broker.kafka.group_records import GroupRecord
from router.broker.kafka.group_values import (
    GroupCaller,
    GroupLimits,
    JoinRequest,
    JoinResult,
    KafkaMember,
    Protocols,
    SyncRequest,
    SyncResult,
    W,
)
from router.broker.kafka.groups import KafkaGroup
from router.wire.kafka.error_codes import ErrorCode


class MixedGroup(ConsumerGroup[W]):
    """A consumer group whose members may be of the classic protocol, but for one.

    `new_id` makes an id that no member ever had from a client's name.
    """

    def __init__(
        self,
        catalog: TopicShapes,
        new_id: Callable[[str], str],
        limits: GroupLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(catalog, limits)
        self._new_id = new_id

    @property
    def is_classic(self) -> bool:
        """Return whether there are members, and all are of the classic protocol."""
        return bool(self.members) and all(m.classic is not None for m in self.members.values())

    def take_over(self, group: KafkaGroup[W], now: float) -> None:
        """Go on, as a group that is new here, with the members of a classic group."""
        self.epoch = self.assignment_epoch = group.generation
        for one in group.members.values():
            member = ConsumerMember(
                id=one.id,
                instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                rebalance_seconds=one.rebalance_seconds,
                names=frozenset(topics_of(one, self.protocol_type)),
                epoch=group.generation,
                previous_epoch=group.generation,
                classic=ClassicTerms(one.session_seconds, one.protocols),
                owner=one.owner,
            )
            member.extend(now)
            self._enter(member)
            owned = self._places(assigned_partitions(one.assignment))
            self._own(member, owned - self._owners.keys(), NOTHING)
            member.target = member.assigned
        self._look(changed=True)

    def classic_record(self) -> GroupRecord:
        """Return the members as those of a classic group that has just rebalanced."""
        members = tuple(
            KafkaMember[W](
                id=one.id,
                instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                session_seconds=one.classic.session_seconds,
                rebalance_seconds=one.rebalance_seconds,
                protocols=one.classic.protocols,
                deadline=one.deadline,
                assignment=write_assignment(self._assigned_by_name(one)),
                answered=True,
                owner=one.owner,
            )
            for one in self.members.values()
            if one.classic is not None
        )
        protocol = self._protocol(members[0].protocols)
        leader = members[0].id
        # Not the epoch of what is not assigned yet: members of the last one learn of the rebalance.
        return GroupRecord(self.assignment_epoch, self.protocol_type, protocol, leader, members)

    def join(self, request: JoinRequest, waiter: W, now: float) -> None:
        """Have a classic member join, for the first time or again; the waiter gets a JoinResult."""
        self.tick(now)
        try:
            result = self._join(request, now)
        except KafkaError as refusal:
            result = JoinResult(refusal.code, request.member_id)
        self._answers.append((waiter, result))

    def sync(self, request: SyncRequest, waiter: W, now: float) -> None:
        """Have a classic member learn its assignment; the waiter gets a SyncResult."""
        error = self._check(request.caller)
        if error is not ErrorCode.NONE:
            self._answers.append((waiter, SyncResult(error)))
            return
        member = self.members[request.caller.member_id]
        member.extend(now)
        result = SyncResult(
            ErrorCode.NONE,
            self.protocol_type,
            request.protocol,
            write_assignment(self._assigned_by_name(member)),
        )
        self._answers.append((waiter, result))

    def heartbeat(self, caller: GroupCaller, now: float) -> ErrorCode:
        """Extend a classic session; REBALANCE_IN_PROGRESS tells the member to join again."""
        error = self._check(caller)
        if error is not ErrorCode.NONE:
            return error
        member = self.members[caller.member_id]
        member.extend(now)
        if self._look(changed=False):
            self.epoch += 1
        lacking = member.target - member.assigned
        released = any(place not in self._owners for place in lacking)
        waits = member.state is MemberState.UNRELEASED and not released
        if member.epoch == self.epoch and (waits or member.state is MemberState.STABLE):
            return ErrorCode.NONE
        member.revoke_deadline = min(member.revoke_deadline, now + member.rebalance_seconds)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(self, caller: GroupCaller, now: float) -> ErrorCode:
        """End a classic membership; a static member may be named by its instance alone."""
        self.tick(now)
        member_id = caller.member_id or self._static.get(caller.instance_id or "", "")
        error = self._check_member(GroupCaller(member_id, caller.instance_id))
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id])
        return error

    def check_commit(self, caller: GroupCaller, now: float) -> ErrorCode:
        """Return whether a caller may commit offsets; a classic member's session is extended."""
        error = self._check(caller)
        member = self.members.get(caller.member_id)
        if error is ErrorCode.NONE and member is not None and member.classic is not None:
            member.extend(now)
        return error

    def check_fetch(self, caller: GroupCaller) -> ErrorCode:
        """Return whether a member may learn the offsets of the group."""
        return self._check(caller)

    def _join(self, request: JoinRequest, now: float) -> JoinResult:
        if not self._limits.allow_session(request.session_seconds):
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        protocol = self._protocol(request.protocols, besides=request.member_id)
        if request.protocol_type != self.protocol_type or not protocol:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id, instance = request.member_id, request.instance_id
        if not member_id:
            member_id = self._new_id(request.client_id if instance is None else instance)
            if instance is None and request.id_required:
                return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        current = self._static.get(instance or "")
        if current is not None and current != member_id and request.member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        beat = Heartbeat(
            member_id=member_id,
            epoch=JOINING,
            client_id=request.client_id,
            client_host=request.client_host,
            match=lambda _: frozenset(),
            owner=request.owner,
            instance_id=instance,
            rebalance_seconds=self._limits.rebalance_within(request.rebalance_seconds),
            names=frozenset(topics_of(request)),
            owned=self._places(owned_partitions(dict(request.protocols)[protocol])),
        )
        member = self.members.get(member_id) if current in {None, member_id} else None
        if member is None:
            fences = current is not None and self.members[current].classic is not None
            member = self._find_joining(beat, fences=fences)
        classic = ClassicTerms(request.session_seconds, request.protocols)
        self._advance(member, beat, now, classic)
        return JoinResult(
            ErrorCode.NONE, member.id, member.epoch, self.protocol_type, protocol, leader=""
        )

    def _check(self, caller: GroupCaller) -> ErrorCode:
        """Return whether a caller is a member of its newest epoch."""
        error = self._check_member(caller)
        if error is not ErrorCode.NONE:
            return error
        member = self.members[caller.member_id]
        if caller.generation == member.epoch:
            return ErrorCode.NONE
        if member.classic is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.ILLEGAL_GENERATION

    def _check_member(self, caller: GroupCaller) -> ErrorCode:
        current = self._static.get(caller.instance_id or "")
        if current is not None and current != caller.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        known = caller.member_id in self.members
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID

    def _protocol(self, protocols: Protocols, besides: str = "") -> str:
        """Return the first of a member's protocols that all classic members speak, "": none."""
        others = [
            {name for name, _ in one.classic.protocols}
            for one in self.members.values()
            if one.classic is not None and one.id != besides
        ]
        return next((n for n, _ in protocols if all(n in spoken for spoken in others)), "")

    def _places(self, partitions: Mapping[str, Sequence[int]]) -> Assignment:
        """Return the partitions of topics that there are."""
        return frozenset(
            (shape.id, number)
            for topic, numbers in partitions.items()
            if (shape := self._catalog.shape(topic)) is not None
            for number in numbers
            if 0 <= number < shape.partitions
        )
