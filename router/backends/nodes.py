"""The promise that the node's broker process keeps to workers: leases, registry, counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from router.model import Position, Subscription


class Outcome(Enum):
    """How a poll ended, for the limit on empty polls; refused polls do not count."""

    REFUSED = "refused"
    EMPTY = "empty"
    DELIVERED = "delivered"


class Mailbox(Protocol):
    """What wakes a waiting poll: messages, changes of the deal, a client that went away."""

    def wake(self) -> None:
        """Make the waiting call return now; callable from any thread or greenlet, and twice."""
        ...


class Claim(Protocol):
    """A poll's standing request for the partitions that the deal gives to its consumer id."""

    def granted(self) -> dict[int, int]:
        """Return the partitions held now, each with its generation."""
        ...

    def pending(self) -> dict[int, Position]:
        """Return what this id's last poll left with `ack=next`: acknowledge it first."""
        ...

    def revoked(self) -> set[int]:
        """Return held partitions dealt to another id by now: give up when empty-handed."""
        ...

    def holder(self) -> str | None:
        """Return what this claim waits for, when its poll is refused if it waits in vain.

        That is a poll under the same id, or a lease of which no holder is known. Nothing if polls
        of other ids have all partitions: then the poll's time ends without messages.
        """
        ...

    def waiting(self) -> bool:
        """Return whether partitions are dealt to this claim that may be granted soon."""
        ...

    def limited(self) -> float | None:
        """Return after how many seconds to come back, if there were too many empty polls."""
        ...

    def lost(self) -> bool:
        """Return whether the node's broker went away: nothing is held any more."""
        ...

    def trouble(self) -> str | None:
        """Return what keeps the node from holding leases at all, while that lasts.

        Partitions that it held vanish from `granted()` then: their consumers must be closed
        without acknowledging, and the same partition may be granted again later.
        """
        ...

    def give_up(self, partitions: Sequence[int]) -> None:
        """Give these partitions back; their consumers must be closed."""
        ...

    def release(self, outcome: Outcome, pending: Sequence[Position] = ()) -> None:
        """End the claim; callable twice. The id's next claim is handed `pending` back."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """One durable fact about administration; `version` changes whenever it is written."""

    name: str
    value: bytes
    version: int


class Registry(Protocol):
    """Small durable facts that all nodes share: API keys, owners and rights of topics, blacklist.

    A *kind* is a set of records, such as `key`; names are unique in it. All calls raise
    BackendUnavailableError, BackendTimeoutError.
    """

    def get(self, kind: str, name: str, timeout: float) -> Record | None:
        """Return a record, None: there is none."""
        ...

    def put(
        self, kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> Record:
        """Write a record durably, if it has the expected version; 0: only if there is none yet.

        None overwrites whatever there is. Raises ConflictError.
        """
        ...

    def delete(self, kind: str, name: str, timeout: float) -> bool:
        """Delete a record; return whether there was one."""
        ...

    def list(self, kind: str, timeout: float) -> list[Record]:
        """Return all records of a kind, by name."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer id that is live in a group.

    `node` is the other node that it polls at, "": this one. Its waiting `polls` and the times are
    known for this node alone: how long its first poll waits, or how long ago its last one ended.
    """

    consumer: str
    node: str = ""
    polls: int = 0
    polling_ms: int | None = None
    idle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLease:
    """Which node holds a partition of a group; `waiting` nodes queue for it.

    "" is this node, None: no node. `consumer` is the id whose poll reads it at this node now.
    """

    partition: int
    node: str | None
    consumer: str | None = None
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The polls of a group on all nodes.

    `cut`: there are more than an answer holds. `trouble`: why other nodes are not known at present.
    """

    members: tuple[Member, ...] = ()
    leases: tuple[PartitionLease, ...] = ()
    cut: bool = False
    trouble: str | None = None


class Node(Protocol):
    """The node's broker process, as workers see it: leases, registry, buckets and counters."""

    registry: Registry

    def confirm(
        self, subscription: Subscription, partition: int, generation: int, timeout: float
    ) -> None:
        """Return if this is the newest grant of the partition and its lease certainly stands.

        For backends that cannot refuse a late acknowledgement themselves: ask directly before it.
        Raises FencedError, BackendUnavailableError, BackendTimeoutError.
        """
        ...

    def claim(
        self,
        subscription: Subscription,
        consumer: str,
        partitions: int,
        mailbox: Mailbox,
        timeout: float,
    ) -> Claim:
        """Queue for the partitions (0: one, NOT_PARTITIONED); answer at once with what is free."""
        ...

    def members(self, subscription: Subscription, timeout: float) -> GroupMembers:
        """Return who polls a group, and who holds its partitions; empty if none does."""
        ...

    def ready(self, timeout: float) -> None:
        """Return if leases can be had, so that polls are served, and the registry answers.

        Raises CoordinationUnavailableError, BackendUnavailableError, BackendTimeoutError.
        """
        ...

    def take_token(
        self, bucket: str, per_minute: float, burst: int, timeout: float, *, look_only: bool = False
    ) -> float | None:
        """Take one token, or only look for one; None when there is one, else the seconds until."""
        ...

    def push_metrics(
        self,
        counters: Sequence[tuple[str, tuple[tuple[str, str], ...], float]],
        gauges: Sequence[tuple[str, tuple[tuple[str, str], ...], float]],
        timeout: float,
    ) -> None:
        """Add what this worker counted since its last push."""
        ...

    def metrics(self, timeout: float) -> str:
        """Return the node's counters in the Prometheus text format."""
        ...

    def close(self) -> None:
        """End this worker's part: claims are given up, gauges go."""
        ...
