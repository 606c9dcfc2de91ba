"""Who is in a group: members, static ones by their instance, ids given out, and what they agree on.

Pure, as the state machine that decides with it (`groups.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from router.broker.kafka.group_records import GroupRecord
from router.broker.kafka.group_values import (
    GroupCaller,
    GroupLimits,
    JoinRequest,
    KafkaMember,
    W,
    size_of,
    size_of_ids,
)
from router.wire.kafka.error_codes import ErrorCode


class KafkaGroupMembers(Generic[W]):
    """The members of one group, in the order in which they came.

    `pending` holds the ids that were given out and not joined with yet, each with its deadline.
    """

    def __init__(self, limits: GroupLimits) -> None:
        self.protocol_type = ""
        self.members: dict[str, KafkaMember[W]] = {}
        self.pending: dict[str, float] = {}
        self._static: dict[str, str] = {}
        self._limits = limits

    @property
    def size_bytes(self) -> int:
        """Return about what members take with their metadata and assignments."""
        return sum(
            size_of_ids(m.id, m.instance_id, m.owner) + size_of(m.protocols) + len(m.assignment)
            for m in self.members.values()
        )

    @property
    def rebalance_seconds(self) -> float:
        """Return how long the slowest member may take to join again."""
        return max((member.rebalance_seconds for member in self.members.values()), default=0.0)

    def static_id(self, instance: str | None) -> str | None:
        """Return the id that a static member has now."""
        return None if instance is None else self._static.get(instance)

    def add(self, member_id: str, request: JoinRequest, now: float) -> KafkaMember[W]:
        """Add a member; one of the same instance must be gone."""
        member: KafkaMember[W] = KafkaMember(
            id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_seconds=request.session_seconds,
            rebalance_seconds=self._limits.rebalance_within(request.rebalance_seconds),
            protocols=request.protocols,
            deadline=now + request.session_seconds,
            answered=bool(request.member_id),
            owner=request.owner,
        )
        self.protocol_type = request.protocol_type
        self._enter(member)
        return member

    def restore(self, record: GroupRecord, now: float) -> None:
        """Add the members of a record; their sessions begin now."""
        self.protocol_type = record.protocol_type
        for member in record.members:
            member.extend(now)
            self._enter(member)

    def update(self, member: KafkaMember[W], request: JoinRequest) -> None:
        """Take over what a member brings when it joins again."""
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session_seconds = request.session_seconds
        member.rebalance_seconds = self._limits.rebalance_within(request.rebalance_seconds)
        member.protocols, member.owner = request.protocols, request.owner
        self.protocol_type = request.protocol_type

    def remove(self, member: KafkaMember[W]) -> None:
        """Remove a member."""
        del self.members[member.id]
        if member.instance_id is not None:
            del self._static[member.instance_id]

    def check_join(self, request: JoinRequest) -> ErrorCode:
        """Return whether a member may come, or come again."""
        limits = self._limits
        if not limits.allow_session(request.session_seconds):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.member_id in self.pending and request.instance_id is not None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.member_id and request.member_id not in self.pending:
            error = self.check(GroupCaller(request.member_id, request.instance_id))
            if error is not ErrorCode.NONE:
                return error
        own = request.member_id or self.static_id(request.instance_id)
        others = [member for member in self.members.values() if member.id != own]
        if not self._agree(request, others):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        taken = len(others) + len(self.pending.keys() - {own})
        size = sum(size_of(member.protocols) for member in others) + size_of(request.protocols)
        if taken >= limits.members or size > limits.metadata_bytes:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def check(self, caller: GroupCaller) -> ErrorCode:
        """Return whether a caller is a member, whatever its generation."""
        if caller.instance_id is not None:
            current = self._static.get(caller.instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != caller.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if caller.member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def choose_protocol(self) -> str:
        """Return the protocol that all members speak and most prefer."""
        members = list(self.members.values())
        spoken = [name for name, _ in members[0].protocols if all(m.speaks(name) for m in members)]
        votes = [next((n for n, _ in m.protocols if n in spoken), "") for m in members]
        return max(spoken, key=votes.count, default="")

    def _enter(self, member: KafkaMember[W]) -> None:
        self.members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id

    def _agree(self, request: JoinRequest, others: Iterable[KafkaMember[W]]) -> bool:
        """Return whether one of the protocols is spoken by all other members."""
        if not request.protocol_type or not request.protocols:
            return False
        spoken = {name for name, _ in request.protocols}
        for member in others:
            spoken &= {name for name, _ in member.protocols}
            if not spoken or request.protocol_type != self.protocol_type:
                return False
        return True
