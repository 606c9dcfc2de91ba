"""The values of Kafka's group protocol: requests, results, members, and the bounds of a group.

A *waiter* stands for a request that is answered later; the state machine (`groups.py`) hands it
back with the result, and asks nothing of it but that it is equal to itself alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from router.wire.kafka.error_codes import ErrorCode

W = TypeVar("W")

NO_GENERATION: Final = -1
Protocols = tuple[tuple[str, bytes], ...]
"""What a member can speak, best first: names, each with the metadata that its leader reads."""


MEMBER_BYTES: Final = 1_000
"""About what a member takes beside the texts that it brings."""


def size_of(protocols: Protocols) -> int:
    """Return the bytes of names and metadata."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class GroupState(Enum):
    """The states of a group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class MemberTopics(NamedTuple):
    """What a member reads: topics by their names, each with the partitions that it has."""

    member_id: str
    client_id: str
    client_host: str
    topics: Mapping[str, Collection[int]]


def size_of_ids(member_id: str, instance_id: str | None, *others: str | None) -> int:
    """Return about what a member takes beside what it reads and has."""
    return MEMBER_BYTES + sum(len(one or "") for one in (member_id, instance_id, *others))


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The bounds of one group; `metadata_bytes` also bounds what its leader assigns."""

    members: int = 1_000
    metadata_bytes: int = 8 << 20
    min_session_seconds: float = 1.0
    max_session_seconds: float = 1_800.0
    max_rebalance_seconds: float = 86_400.0

    def allow_session(self, seconds: float) -> bool:
        """Return whether a member may have sessions that long."""
        return self.min_session_seconds <= seconds <= self.max_session_seconds

    def rebalance_within(self, seconds: float) -> float:
        """Return the time that a member gets to join again, of the seconds that it gives."""
        return min(max(0.0, seconds), self.max_rebalance_seconds)


@dataclass(frozen=True, slots=True)
class GroupCaller:
    """Who a request comes from; generation -1 and no names: no member."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A request to join; an empty member id is a member's first.

    `id_required`: the client understands that it has to join again with the id that it is given.
    `may_skip_assignment`: as the leader of a stable group it takes an answer not to assign.
    `owner` is the name of the client's principal, "": any.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocol_type: str
    protocols: Protocols
    id_required: bool = False
    may_skip_assignment: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as its leader receives it, with its metadata for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a join; `members` is for the leader alone."""

    error: ErrorCode
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A request for one's assignment, which the leader brings for all by member id."""

    caller: GroupCaller
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, eq=False)
class KafkaMember(Generic[W]):
    """A member of a group; `deadline` is the end of its session by the group's clock.

    While `joining` or `syncing` waits for its answer the session does not end. `synced`: it
    requested its assignment in this generation. `answered`: its client received its id. `owner` is
    the name of its client's principal, "": it is not known.
    """

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: Protocols
    deadline: float
    assignment: bytes = b""
    joining: W | None = None
    syncing: W | None = None
    synced: bool = True
    answered: bool = False
    owner: str = ""

    @property
    def waits(self) -> bool:
        """Return whether a request of it waits for its answer."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str) -> bytes:
        """Return its metadata for a protocol, b"" if it does not speak it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def speaks(self, protocol: str) -> bool:
        """Return whether it offers a protocol."""
        return any(name == protocol for name, _ in self.protocols)

    def extend(self, now: float) -> None:
        """Begin its session again."""
        self.deadline = now + self.session_seconds
