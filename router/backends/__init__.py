"""The promise that every store of topics keeps, whatever it is made of.

A backend is opened by an entry point of the group `router.backends`, named by the URL's scheme:
`open_backend(url, settings, node) -> Backend`. Consumers are opened under a claim (`Leases`), which
the node's broker process deals out for every backend alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from router.model import (
    Message,
    Policies,
    Position,
    Stored,
    Subscription,
    TopicInfo,
    TopicName,
    TopicStats,
)


class Start(Enum):
    """Where a new subscription begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Outcome(Enum):
    """How a poll ended, for the limit on empty polls; refused polls do not count."""

    REFUSED = "refused"
    EMPTY = "empty"
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that one append stores together, in order, in one partition.

    `producer` and `sequence` name the append for deduplication: the same pair is stored once. Left
    out, the backend's own producer names it, so that its own retries store it once.
    """

    topic: TopicName
    partition: int
    messages: Sequence[Message]
    producer: str | None = None
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a batch begins; `stored` counts its messages (a duplicate's: the first append's)."""

    position: Position
    stored: int
    duplicate: bool = False


class Consumer(Protocol):
    """An exclusive reader of one partition of a subscription, open while its claim stands."""

    partition: int

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what is stored now and not yet acknowledged, in order, each once per consumer.

        Never waits for a message to be published: empty means that there was none (the mailbox
        wakes when one comes). After that, what came since may be returned in several calls, until
        one is empty again. `timeout` bounds the asking. Within `limit` messages and `max_bytes`,
        though a first message that exceeds them is returned alone.
        Raises ReadFailedError, BackendUnavailableError, BackendTimeoutError; ConsumerClosedError
        when the store let go of it: another one may be opened under the same claim.
        """
        ...

    def acknowledge(self, upto: Position, timeout: float) -> None:
        """Acknowledge everything up to and including this message; raise FencedError if overtaken.

        Positions that were received before the subscription was reset are refused alike, whichever
        consumer received them: a reset is not undone.
        Returns when the backend took it; raises BackendTimeoutError, BackendUnavailableError.
        """
        ...

    def close(self) -> None:
        """Let go; what was received and not acknowledged will be received by the next consumer."""
        ...


class Mailbox(Protocol):
    """What wakes a waiting poll: messages, changes of the deal, a client that went away."""

    def wake(self) -> None:
        """Make the waiting call return now; callable from any thread or greenlet, and twice."""
        ...


class Backend(Protocol):
    """A store of topics. Calls block the calling greenlet or thread, and may be made from many."""

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        """Store all or raise; when it returns the messages are durable.

        Raises TopicNotFoundError, PublishRefusedError, BackendUnavailableError, BackendTimeoutError
        (outcome unknown: the messages may be stored). A batch above `max_entry` bytes is refused.
        """
        ...

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return the number of partitions, 0: not partitioned; raise TopicNotFoundError."""
        ...

    def subscribe(self, subscription: Subscription, start: Start | int, timeout: float) -> None:
        """Make the subscription exist on all partitions; leave an existing one as it is.

        A number is a time, in ms since 1970: the first message stored then or later.
        """
        ...

    def reset(self, subscription: Subscription, to: Start | int, timeout: float) -> None:
        """Move an existing subscription on all partitions; a number is a time as in `subscribe`.

        What open consumers received before is not acknowledged any more. Raises TopicNotFoundError,
        SubscriptionNotFoundError.
        """
        ...

    def unsubscribe(self, subscription: Subscription, timeout: float) -> None:
        """Forget the subscription on all partitions; one that does not exist is forgotten already.

        Its consumers must be closed. Raises TopicNotFoundError, SubscriptionBusyError.
        """
        ...

    def consume(
        self,
        subscription: Subscription,
        partition: int,
        generation: int,
        mailbox: Mailbox,
        timeout: float,
    ) -> Consumer:
        """Open one partition of an existing subscription exclusively; arrivals wake the mailbox.

        Raises SubscriptionBusyError when a foreign consumer holds it, TopicNotFoundError.
        """
        ...

    def create_topic(
        self,
        topic: TopicName,
        partitions: int,
        policies: Policies,
        properties: dict[str, str],
        timeout: float,
    ) -> None:
        """Create a topic; raise TopicExistsError."""
        ...

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; raise TopicNotFoundError."""
        ...

    def list_topics(self, timeout: float) -> list[TopicInfo]:
        """Return all topics of all namespaces, by name."""
        ...

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""
        ...

    def ready(self, timeout: float) -> None:
        """Return if the store answers; raise BackendUnavailableError, BackendTimeoutError."""
        ...

    def close(self) -> None:
        """Release connections and threads; calls under way fail with BackendUnavailableError."""
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
        """Return who polls under the same id, when this claim waits for that poll to end."""
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

    def take_token(
        self, bucket: str, per_minute: float, burst: int, timeout: float
    ) -> float | None:
        """Take one token; None when granted, else the seconds until there is one."""
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
