"""The values of consumer groups (KIP-848): heartbeats, their results, members, topics.

An epoch counts the changes of a group. That of a member says up to which of them it has given up
and taken partitions; every heartbeat and commit names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from router.broker.kafka.assignors import NOTHING, Assignment
from router.broker.kafka.group_values import Protocols
from router.wire.kafka.error_codes import ErrorCode

JOINING: Final = 0
"""The epoch of a member that joins."""
LEAVING: Final = -1
"""The epoch of a member that leaves for good."""
AWAY: Final = -2
"""The epoch of a static member that leaves and will come back."""
SESSION_SECONDS: Final = 45.0
"""As Apache Kafka's default."""


class MemberState(Enum):
    """How far a member is with its part of the target assignment."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It is to give up partitions, and has not said that it did."""
    UNRELEASED = "unreleased"
    """Partitions that it is to have are not given up by others."""


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic as assignors know it: its id and how many partitions it has."""

    id: bytes
    partitions: int


class TopicShapes(Protocol):
    """The topics of the broker; `version` is another number after every change."""

    version: int

    def shape(self, name: str) -> TopicShape | None:
        """Return the topic of a name, None: there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat; None stands for what is as in the one before.

    `match` returns the topics that a pattern stands for, of those that the client may read; it
    raises KafkaError for one that is none. `rights` is the version of the client's rights. `owned`
    are the partitions that the client has. `owner` is the name of its principal, "": any.
    """

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    match: Callable[[str], frozenset[str]]
    rights: object = None
    owner: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_seconds: float | None = None
    names: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None

    @property
    def full(self) -> bool:
        """Return whether the client says all there is, and so wants to hear all."""
        subscribed = self.names is not None or self.pattern is not None
        return self.rebalance_seconds is not None and subscribed and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer to a heartbeat; `assignment` is None if it is as the client heard it before."""

    error: ErrorCode
    member_id: str | None = None
    epoch: int = 0
    assignment: Assignment | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ClassicTerms:
    """What a member of the classic protocol brought when it joined."""

    session_seconds: float
    protocols: Protocols


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """A member; `deadline` is the end of its session by the group's clock.

    It may use the partitions `assigned`, is to stop to use `revoking` before `revoke_deadline`, and
    is to have `target` in the end. `matched` are the topics of its pattern as of a version of the
    catalog and of its client's rights. `owner` is the name of its client's principal, "": any may
    be. `previous_epoch` is that of its client if the last answer
    was lost. `classic`: None of a member that sends the heartbeats of KIP-848.
    """

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack_id: str | None = None
    rebalance_seconds: float = 0.0
    names: frozenset[str] = frozenset()
    pattern: str = ""
    matched: frozenset[str] = frozenset()
    matched_version: object = None
    assignor: str | None = None
    epoch: int = JOINING
    previous_epoch: int = JOINING
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    target: Assignment = NOTHING
    deadline: float = math.inf
    revoke_deadline: float = math.inf
    classic: ClassicTerms | None = None
    owner: str = ""

    @property
    def topics(self) -> frozenset[str]:
        """Return the names of the topics that it reads."""
        return self.names | self.matched

    def extend(self, now: float) -> None:
        """Begin its session again."""
        classic = self.classic
        self.deadline = now + (SESSION_SECONDS if classic is None else classic.session_seconds)
