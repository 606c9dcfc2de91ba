"""Kafka's consumer group protocol (KIP-848) as a pure state machine: members send heartbeats.

Theory of operation. Every change of members, of what they read, or of the topics that they read
makes the group's epoch one greater. The next heartbeat of any member has an assignor make the
target assignment of that epoch. Each member comes to its target by its own heartbeats: it is first
answered an assignment without the partitions that it has to give up, and is of the target's epoch
once it says that it has given them up; it gets those that it lacks as others release them. So no
member waits for all others, and a partition has one owner at a time: one that a member may use, or
has not given up yet, is in `_owners`, and nothing there is given to another.

There is no clock and no I/O here. The time is an argument, and `next_deadline()` says when `tick`
has something to do at the earliest: a session ends, or the time to give up partitions. Answers are
sent when what they depend on is on disk (`held_groups.py`); a later broker goes on from there, and
members learn nothing of the restart.

Differences from Apache Kafka: a group is forgotten with its last member, and its epochs with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic

from router.broker.kafka.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    NOTHING,
    AssignedMember,
    Assignment,
    TopicPartition,
)
from router.broker.kafka.consumer_group_records import ConsumerGroupRecord
from router.broker.kafka.consumer_group_values import (
    AWAY,
    JOINING,
    ClassicTerms,
    ConsumerMember,
    Heartbeat,
    HeartbeatResult,
    MemberState,
    TopicShape,
    TopicShapes,
)
from router.broker.kafka.failures import KafkaError
from router.broker.kafka.group_values import (
    GroupLimits,
    JoinResult,
    MemberTopics,
    SyncResult,
    W,
    size_of,
    size_of_ids,
)
from router.wire.kafka.error_codes import ErrorCode

DEFAULT_LIMITS: Final = GroupLimits()
BYTES_OF_PARTITION: Final = 24
"""About what a partition of a member takes."""
MAX_BYTES_OF_CHARACTER: Final = 3
"""What a character counts of which JSON makes up to six bytes."""


class ConsumerGroup(Generic[W]):
    """One group. Times are seconds of one clock that only goes forward."""

    storable: Final = True
    protocol_type: Final = "consumer"

    def __init__(self, catalog: TopicShapes, limits: GroupLimits = DEFAULT_LIMITS) -> None:
        self.epoch = self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.revision = 0
        self._catalog = catalog
        self._limits = limits
        self._static: dict[str, str] = {}
        self._owners: dict[TopicPartition, str] = {}
        # What members read, as of the last look at a version of the catalog.
        self._shapes: dict[str, TopicShape] = {}
        self._looked_version = -1
        self._answers: list[tuple[W, HeartbeatResult | JoinResult | SyncResult]] = []

    @property
    def unused(self) -> bool:
        """Return whether there is no member."""
        return not self.members

    @property
    def size_bytes(self) -> int:
        """Return about what its members take."""
        return sum(map(_size, self.members.values()))

    @property
    def state(self) -> str:
        """Return the state by Kafka's name."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        return "Stable" if all(map(self._settled, self.members.values())) else "Reconciling"

    @property
    def assignor(self) -> str:
        """Return the name of the assignor that most members ask for."""
        votes = Counter(one.assignor for one in self.members.values() if one.assignor is not None)
        return max(votes, key=lambda name: (votes[name], name), default=DEFAULT_ASSIGNOR)

    def answers(self) -> list[tuple[W, HeartbeatResult | JoinResult | SyncResult]]:
        """Return the waiters that have a result since the last call, each once."""
        found, self._answers = self._answers, []
        return found

    def readings(self) -> Iterator[MemberTopics]:
        """Yield what each member reads."""
        names = self._names()
        for member in self.members.values():
            topics = dict[str, Sequence[int]].fromkeys(member.topics, ())
            read = topics | _by_name(member.assigned, names)
            yield MemberTopics(member.id, member.client_id, member.client_host, read)

    def recorder(self) -> Callable[[], bytes | None]:
        """Return what makes the bytes of which a later broker goes on, as they are by then."""
        return self._dump

    def restore(self, record: ConsumerGroupRecord, now: float) -> None:
        """Go on, as a group that is new here, where the broker before stored the record."""
        self.epoch, self.assignment_epoch = record.epoch, record.assignment_epoch
        self._shapes = dict(record.shapes)
        for member in record.members:
            member.extend(now)
            if member.state is MemberState.UNREVOKED:
                member.revoke_deadline = now + member.rebalance_seconds
            self._enter(member)
            self._own(member, member.assigned, member.revoking)

    def beat(self, request: Heartbeat, waiter: W, now: float) -> None:
        """Join, stay or leave; the waiter gets a HeartbeatResult."""
        self.tick(now)
        try:
            result = self._serve(request, now)
        except KafkaError as refusal:
            result = HeartbeatResult(refusal.code, message=str(refusal) or None)
        self._answers.append((waiter, result))

    def new_names(self, request: Heartbeat) -> Iterable[str]:
        """Return the topics that a heartbeat names, or that may have come since the last look."""
        member = self.members.get(request.member_id)
        looked = self._looked_version == self._catalog.version
        if request.names is not None or member is None or looked or request.epoch < JOINING:
            return request.names or ()
        return member.names

    def revoke(self, owner: str, may_read: Callable[[str], bool]) -> None:
        """Have the patterns of a principal's members stand for no topic that it may not read."""
        own = [one for one in self.members.values() if owner and one.owner == owner]
        # Each topic once, as most members match the same ones.
        topics = frozenset[str]().union(*(one.matched for one in own))
        if hidden := frozenset(topic for topic in topics if not may_read(topic)):
            for member in own:
                member.matched -= hidden
            self._look(changed=True)
            self.epoch += 1
            self.revision += 1

    def abandon(self, waiter: W, now: float) -> None:
        """Do nothing: a heartbeat waits for the disk alone."""

    def tick(self, now: float) -> None:
        """Remove members whose sessions are over, or who did not give up partitions in time."""
        for member in list(self.members.values()):
            if min(member.deadline, member.revoke_deadline) <= now:
                self._remove(member)

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` may have something to do, if there is one."""
        return min(
            (min(one.deadline, one.revoke_deadline) for one in self.members.values()), default=None
        )

    def _serve(self, request: Heartbeat, now: float) -> HeartbeatResult:
        if request.epoch < JOINING:
            return self._leave(request)
        find = self._find_joining if request.epoch == JOINING else self._find
        member = find(request)
        return self._advance(member, request, now)

    def _advance(
        self,
        member: ConsumerMember,
        request: Heartbeat,
        now: float,
        classic: ClassicTerms | None = None,
    ) -> HeartbeatResult:
        """Take over what a member brings, and bring it a step nearer to its target.

        `classic` is what it brings as one of the classic protocol. Raises KafkaError, and changes
        nothing then.
        """
        changed = self._update(member, request, classic)
        member.extend(now)
        if self._look(changed=changed):
            self.epoch += 1
        if self.assignment_epoch < self.epoch:
            self._assign()
        before, epoch = member.assigned, member.epoch
        self._reconcile(member, request.owned, now)
        moved = member.assigned != before
        if moved or changed or member.epoch != epoch:
            self.revision += 1
        shown = member.assigned if moved or request.full or request.epoch == JOINING else None
        return HeartbeatResult(ErrorCode.NONE, member.id, member.epoch, shown)

    def _names(self) -> dict[bytes, str]:
        """Return the names of the topics that are read, by their ids."""
        return {shape.id: name for name, shape in self._shapes.items()}

    def _assigned_by_name(self, member: ConsumerMember) -> dict[str, Sequence[int]]:
        """Return the partitions of a member by the names of topics that are read."""
        return _by_name(member.assigned, self._names())

    def _find(self, request: Heartbeat) -> ConsumerMember:
        """Return the member that a heartbeat comes from; raise KafkaError if it is none."""
        if request.instance_id is not None:
            current = self._static.get(request.instance_id)
            if current is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the instance is not a member")
            if current != request.member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, "another member has taken over the instance"
                )
        member = self.members.get(request.member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "not a member of the group")
        if request.epoch >= JOINING:
            _check_epoch(member, request)
        return member

    def _find_joining(self, request: Heartbeat, *, fences: bool = False) -> ConsumerMember:
        """Return the member that joins, which may not be of the group yet; raise KafkaError.

        A static member that comes back has what it had. `fences`: it need not have left.
        """
        current = self.members.get(self._static.get(request.instance_id or "", ""))
        if current is not None and current.epoch != AWAY and not fences:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID, "a member of the same instance has not left"
            )
        known = self.members.get(request.member_id)
        if known is not None and known.instance_id == request.instance_id and current is None:
            return known  # whatever its epoch: it has no partitions any more
        if known is not current and known is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the member has another instance")
        if current is None and len(self.members) >= self._limits.members:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the group has too many members")
        member = ConsumerMember(
            request.member_id, request.instance_id, request.client_id, request.client_host
        )
        if current is not None:
            member.names, member.pattern = current.names, current.pattern
            member.matched, member.matched_version = current.matched, current.matched_version
            member.assignor, member.classic = current.assignor, current.classic
            member.assigned, member.target = current.assigned, current.target
        return member

    def _update(
        self, member: ConsumerMember, request: Heartbeat, classic: ClassicTerms | None
    ) -> bool:
        """Take over what a member brings; return whether one came or reads other topics."""
        joins = request.epoch == JOINING
        names = frozenset[str]() if joins and request.names is None else request.names
        pattern = "" if joins and request.pattern is None else request.pattern
        names = member.names if names is None else names
        pattern = member.pattern if pattern is None else pattern
        matched, version = member.matched, (self._catalog.version, request.rights)
        if pattern != member.pattern or version != member.matched_version:
            matched = request.match(pattern) if pattern else frozenset()
        replaced = self.members.get(self._static.get(member.instance_id or "", member.id))
        read = member.names, member.pattern, member.matched
        changed = replaced is None or (names, pattern, matched) != read
        if changed or classic != member.classic:
            brought = replace(member, names=names, pattern=pattern, matched=matched)
            brought.classic = classic
            self._check_size(replaced, brought)
            self.revision += 1
        member.names, member.pattern, member.matched = names, pattern, matched
        member.matched_version, member.classic = version, classic
        member.client_id, member.client_host = request.client_id, request.client_host
        member.owner = request.owner
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.rebalance_seconds is not None:
            member.rebalance_seconds = request.rebalance_seconds
        if request.assignor is not None:
            member.assignor = request.assignor
        if replaced is not member:
            if replaced is not None:
                self._discard(replaced)
            self._enter(member)
            self._own(member, member.assigned, NOTHING)
            self.revision += 1
        return changed

    def _check_size(self, before: ConsumerMember | None, member: ConsumerMember) -> None:
        size = self.size_bytes + _size(member) - (0 if before is None else _size(before))
        if size > self._limits.metadata_bytes:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the group's members read too much")

    def _look(self, *, changed: bool) -> bool:
        """Look at the topics that members read; return whether an assignment has to be made."""
        if not changed and self._looked_version == self._catalog.version:
            return False
        self._looked_version = self._catalog.version
        names = set[str]().union(*(one.topics for one in self.members.values()))
        shapes = {name: shape for name in names if (shape := self._catalog.shape(name)) is not None}
        before, self._shapes = self._shapes, shapes
        return changed or shapes != before

    def _assign(self) -> None:
        """Make the target assignment of the group's epoch."""
        shapes = self._shapes
        subscribers = [
            AssignedMember(
                one.id,
                one.instance_id,
                frozenset(shapes[name].id for name in one.topics if name in shapes),
                one.target,
            )
            for one in self.members.values()
        ]
        partitions = {shape.id: shape.partitions for shape in shapes.values()}
        for member_id, target in ASSIGNORS[self.assignor](subscribers, partitions).items():
            self.members[member_id].target = target
        self.assignment_epoch = self.epoch
        self.revision += 1

    def _reconcile(self, member: ConsumerMember, owned: Assignment | None, now: float) -> None:
        """Bring a member a step nearer to its target, as far as it and others released."""
        if member.state is MemberState.UNREVOKED:
            if owned is None or owned & member.revoking:
                return
            self._own(member, member.assigned, NOTHING)
        elif self._settled(member):
            return
        kept = member.assigned & member.target
        revoked, lacking = member.assigned - kept, member.target - kept
        if revoked and (owned is None or owned & revoked):
            self._own(member, kept, revoked)
            member.state = MemberState.UNREVOKED
            member.revoke_deadline = now + member.rebalance_seconds
            return
        free = frozenset(place for place in lacking if self._owners.get(place) in {None, member.id})
        self._own(member, kept | free, NOTHING)
        member.state = MemberState.STABLE if free == lacking else MemberState.UNRELEASED
        if member.epoch != self.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.assignment_epoch

    def _settled(self, member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.epoch == self.assignment_epoch

    def _own(self, member: ConsumerMember, assigned: Assignment, revoking: Assignment) -> None:
        """Note what a member may use, and what it has not given up yet."""
        for place in (member.assigned | member.revoking) - assigned - revoking:
            if self._owners.get(place) == member.id:
                del self._owners[place]
        self._owners.update(dict.fromkeys(assigned | revoking, member.id))
        member.assigned, member.revoking = assigned, revoking
        member.revoke_deadline = math.inf if not revoking else member.revoke_deadline

    def _leave(self, request: Heartbeat) -> HeartbeatResult:
        member = self._find(request)
        if request.epoch == AWAY and request.instance_id is not None:
            # Its session goes on; the next member with the instance takes its partitions over.
            self._own(member, member.assigned, NOTHING)
            member.epoch, member.state = AWAY, MemberState.STABLE
            self.revision += 1
        else:
            self._remove(member)
        return HeartbeatResult(ErrorCode.NONE, member.id, request.epoch)

    def _enter(self, member: ConsumerMember) -> None:
        self.members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id

    def _remove(self, member: ConsumerMember) -> None:
        """End a membership; the others get its partitions by their next heartbeats."""
        self._discard(member)
        self.epoch += 1
        self.revision += 1

    def _discard(self, member: ConsumerMember) -> None:
        self._own(member, NOTHING, NOTHING)
        del self.members[member.id]
        if member.instance_id is not None:
            del self._static[member.instance_id]

    def _dump(self) -> bytes | None:
        if not self.members:
            return None
        members: Iterable[Any] = self.members.values()
        shapes: Mapping[str, TopicShape] = self._shapes
        return ConsumerGroupRecord(self.epoch, self.assignment_epoch, shapes, tuple(members)).dump()


def _check_epoch(member: ConsumerMember, request: Heartbeat) -> None:
    """Raise KafkaError unless a heartbeat has its member's epoch, or that before a lost answer."""
    if request.epoch == member.epoch:
        return
    lost = request.epoch == member.previous_epoch and request.owned is not None
    if not lost or not (request.owned or NOTHING) <= member.assigned:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"the member's epoch is {member.epoch}, not {request.epoch}; it has to join again",
        )


def _by_name(assignment: Assignment, names: Mapping[bytes, str]) -> dict[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(assignment):
        if topic in names:
            found.setdefault(names[topic], []).append(number)
    return dict(found)


def _size(member: ConsumerMember) -> int:
    topics = sum(map(_text_size, (*member.names, *member.matched, member.pattern)))
    topics += _text_size(member.client_id)
    if member.classic is not None:
        topics += size_of(member.classic.protocols)
    topics += size_of_ids(member.id, member.instance_id, member.rack_id, member.owner)
    return topics + BYTES_OF_PARTITION * (len(member.assigned) + len(member.target))


def _text_size(text: str) -> int:
    """Return what a text counts: half of what it takes at most in a record, which is JSON."""
    plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    return 1 + (len(text) if plain else MAX_BYTES_OF_CHARACTER * len(text))
