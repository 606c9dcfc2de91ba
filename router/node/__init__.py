"""The promise that the node's broker process keeps to workers: leases, registry, counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from router.model import (
    ConsumerId,
    Grant,
    GroupMembers,
    PollOutcome,
    Position,
    Subscription,
    TopicName,
)
from router.sharing.registry import Registry


class Mailbox(Protocol):
    """What wakes a waiting poll: messages, changes of the assignment, a client that went away."""

    def wake(self) -> None:
        """Make the waiting call return now; callable from any thread or greenlet, and twice."""
        ...


class Claim(Protocol):
    """A poll's standing request for the partitions that are assigned to its consumer id."""

    def granted(self) -> dict[int, int]:
        """Return the partitions held now, each with its generation."""
        ...

    def pending(self) -> dict[int, Position]:
        """Return what this id's last poll left with `ack=next`: acknowledge it first."""
        ...

    def revoked(self) -> set[int]:
        """Return held partitions that are assigned to another id: give up without messages."""
        ...

    def holder(self) -> str | None:
        """Return what this claim waits for, when its poll is refused if it waits in vain.

        That is a poll under the same id, or a lease of which no holder is known. Nothing if polls
        of other ids have all partitions: then the poll's time ends without messages.
        """
        ...

    def waiting(self) -> bool:
        """Return whether partitions are assigned to this claim that may be granted soon."""
        ...

    def limited(self) -> float | None:
        """Return after how many seconds to come back, if there were too many empty polls."""
        ...

    def lost(self) -> bool:
        """Return whether the node's broker went away: nothing is held any more."""
        ...

    def unavailable_reason(self) -> str | None:
        """Return what keeps the node from holding leases at all, while that lasts.

        Partitions that it held vanish from `granted()` then: their consumers must be closed
        without acknowledging, and the same partition may be granted again later.
        """
        ...

    def give_up(self, partitions: Sequence[int]) -> None:
        """Give these partitions back; their consumers must be closed."""
        ...

    def recalled(self) -> bool:
        """Return whether another needs what this retained claim holds.

        Release it at once; if a poll uses it, say so by `in_use` and release it with the poll.
        """
        ...

    def retain(self) -> None:
        """Tell the node that the poll has ended with messages, and that the claim stands.

        It does for the id's next poll at this worker, which does not tell the node, until it is
        recalled or released. Callable twice.
        """
        ...

    def in_use(self) -> None:
        """Answer a recall: a poll uses the claim, and ends it. Callable twice."""
        ...

    def release(self, outcome: PollOutcome, pending: Sequence[Position] = ()) -> None:
        """End the claim; callable twice. The id's next claim is handed `pending` back."""
        ...


class Node(Protocol):
    """The node's broker process, as workers see it: leases, registry, buckets and counters."""

    registry: Registry

    def confirm(self, grant: Grant, timeout: float) -> None:
        """Return if this is the newest grant of the partition and its lease certainly stands.

        For backends that cannot refuse a late acknowledgement themselves: ask directly before it.
        Raises FencedError, BackendUnavailableError, BackendTimeoutError.
        """
        ...

    def confirm_all(self, grants: Sequence[Grant], timeout: float) -> list[bool]:
        """Return for each grant whether `confirm` would return; raise what it raises else."""
        ...

    def recall(self, topic: TopicName, subscription: str | None, timeout: float) -> None:
        """Return when claims of a subscription, None: of the topic, that are retained are released.

        Claims that polls use are not waited for, nor is a worker that stands still. Raises
        BackendUnavailableError, BackendTimeoutError.
        """
        ...

    def claim(
        self, consumer: ConsumerId, partitions: int, mailbox: Mailbox, timeout: float
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
