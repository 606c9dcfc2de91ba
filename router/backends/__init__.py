"""The protocols that every store of topics implements: durability, order and threads.

A backend is opened by an entry point of the group `router.backends`, named by the URL's scheme:
`open_backend(url, settings, node) -> Backend`. Consumers are opened under a claim (`Leases`), which
the node's broker process deals out for every backend alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, runtime_checkable

from router.errors import BadRequestError
from router.model import (
    CursorState,
    Grant,
    Message,
    Position,
    Schema,
    Stored,
    Subscription,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.publish_source import NO_SOURCE
from router.node import Mailbox


class Start(Enum):
    """Where a new subscription begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


class NullMailbox:
    """A mailbox that wakes nothing: what is read is there already."""

    def wake(self) -> None:
        """Do nothing."""


ReadStart = Start | int | Position
"""Where a reader begins: an end, a time in ms since 1970, or a message."""
Positions = Sequence[Position]
ResetTarget = Start | int | tuple[Position, ...]
"""Where a subscription goes on: an end, a time in ms since 1970, or a message of each partition."""


def check_positions(positions: Iterable[Position], ends: Mapping[int, int], topic: object) -> None:
    """Raise BadRequestError for a position that is not in a ledger before its end.

    `ends` are those of the topic's ledgers. An append that was a repeat has no position.
    """
    for position in positions:
        if position.ledger >= 0 and position.entry >= ends.get(position.ledger, 0):
            place = f"{position.ledger}:{position.entry}:{position.partition}"
            raise BadRequestError(f"{place} is the id of no message of {topic}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Why a store cannot do what administration asks for; an empty reason: it can.

    `topics`: list, create and delete them; `policies`: create one with a retention of its own.
    """

    topics: str = ""
    describe: str = ""
    policies: str = ""
    retention: str = ""
    grow: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that one append stores together, in order, in one partition.

    `producer` and `sequence` name the append for deduplication: the same pair is stored once. Left
    out, the backend's own producer names it, so that its own retries store it once. `source`: who
    publishes, see `router.model.publish_source`; most stores do not keep it.
    """

    topic: TopicName
    partition: int
    messages: Sequence[Message]
    producer: str | None = None
    sequence: int = 0
    source: bytes = NO_SOURCE


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a batch begins; `stored` counts its messages (a duplicate's: the first append's).

    The position of a duplicate is negative where the store does not know it any more.

    `flat`: each message is an entry of its own, the next one behind the last. `parts`: it could not
    be stored as one (it is too large, or its messages differ in time of delivery or schema).
    """

    position: Position
    stored: int
    duplicate: bool = False
    flat: bool = False
    parts: tuple[Receipt, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence[Receipt]) -> Receipt:
        """Return the receipt of a batch that was stored in parts."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            parts[0].position,
            sum(part.stored for part in parts),
            all(part.duplicate for part in parts),
            parts=tuple(parts),
        )

    def at(self, index: int) -> Position:
        """Return where one of its messages is stored."""
        for part in self.parts:
            if index < part.stored:
                return part.at(index)
            index -= part.stored
        begin = self.position
        if self.flat:
            return replace(begin, entry=begin.entry + index)
        if self.stored == 1:
            return begin
        return replace(begin, batch_index=index, batch_size=self.stored)


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


@runtime_checkable
class DeferringConsumer(Consumer, Protocol):
    """A consumer that acknowledges beside the calls, and that polls one after the other may use.

    `close` waits for what is under way, within the store's timeout.
    """

    def acknowledge_soon(self, upto: Position) -> bool:
        """Have everything up to this message acknowledged within milliseconds; never waits.

        If the store refuses it later, `receive` raises ConsumerClosedError. Returns False if it has
        to be acknowledged by `acknowledge`.
        """
        ...

    def resume(self) -> None:
        """Go on for the next poll: receive what a consumer opened now would, without waiting."""
        ...


class Reader(Protocol):
    """A reader of one partition that leaves no trace: no subscription, no acknowledgements.

    It holds a connection's or a thread's share of the store until it is closed. When it fails with
    BackendUnavailableError, another one may be opened at the last position that it gave: what was
    received then comes once more.
    """

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what comes next, in order; see `Consumer.receive`, whose bounds these are.

        The positions may be acknowledged for any subscription. Raises TopicNotFoundError or
        BackendUnavailableError if the topic was deleted.
        """
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Schemas(Protocol):
    """The schemas of topics, each topic's in the order in which they came."""

    def get(self, topic: TopicName, version: bytes | None, timeout: float) -> Schema:
        """Return a version, None: the newest one; raise SchemaNotFoundError, TopicNotFoundError."""
        ...

    def put(self, topic: TopicName, schema: Schema, timeout: float) -> bytes:
        """Return the version of an equal schema, or of this one, stored now as the newest.

        Raises IncompatibleSchemaError where it does not go together with the older ones,
        InvalidSchemaError, TopicNotFoundError.
        """
        ...


Settled = Callable[[int, BaseException | None], None]
"""Takes what became of the batch at a place of a list: None: it is stored; never waits."""


@runtime_checkable
class JointBackend(Protocol):
    """What a backend has besides if it carries batches for several partitions at once."""

    def is_open(self, topic: TopicName, partition: int) -> bool:
        """Return whether the partition exists, and a batch for it may go together with others.

        The store has it open for appends of this process, and tells when it is deleted.
        """
        ...

    def publish_many(self, batches: Sequence[Batch], timeout: float, settled: Settled) -> None:
        """Store each batch, of one partition each and without a producer, or tell why not.

        `settled` is called once for each batch, with what `Backend.publish` would have raised; for
        some perhaps after the return, and by another thread: what fails or has to wait in one
        partition holds up no other.
        """
        ...


@runtime_checkable
class Deduplicating(Protocol):
    """What a backend has besides if its store drops repeats only where that is turned on."""

    def deduplicates(self, topic: TopicName, timeout: float) -> bool:
        """Return whether a batch with a producer's name and number is stored once in this topic.

        Raises NotAllowedError where it cannot be asked.
        """
        ...

    def deduplicate(self, topic: TopicName, timeout: float) -> None:
        """Have named and numbered batches stored once in this topic from now on.

        Raises NotAllowedError.
        """
        ...


@runtime_checkable
class FindsBatches(Protocol):
    """What a backend has besides if its store shows which producer sent what it holds."""

    def find_batch(
        self,
        topic: TopicName,
        partition: int,
        named: tuple[str, int],
        after: Position | None,
        timeout: float,
    ) -> Receipt | None:
        """Return where a batch is stored, behind the entry of a position; None: nowhere.

        `named`: its producer and its number. It may be there in part. Raises TopicNotFoundError,
        BackendUnavailableError, BackendTimeoutError.
        """
        ...


@runtime_checkable
class IdentifiesTopics(Protocol):
    """What a backend has besides if each topic has an id, another one if it is made again."""

    def identities(self, topics: Sequence[TopicName], timeout: float) -> dict[TopicName, str]:
        """Return the ids of the topics that are there."""
        ...


class Backend(Protocol):
    """A store of topics. Calls block the calling greenlet or thread, and may be made from many.

    `publish` of messages with `deliver_at` raises NotSupportedError, before anything is stored,
    where no subscription would wait for it. Consumers and readers of a backend never wait: they are
    exclusive, and an order that waited for one message would hold up all behind it.
    """

    schemas: Schemas

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        """Store all or raise; when it returns the messages are durable.

        A batch that cannot be one append (`Receipt.parts`) may be stored in part: then it raises
        PartialPublishError, which tells how many of its messages are, the first ones.
        Raises TopicNotFoundError, PublishRefusedError, BackendUnavailableError and
        BackendTimeoutError with nothing stored, OutcomeUnknownError if the messages may be stored.
        A batch above `max_entry` bytes is refused.
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

    def reset(self, subscription: Subscription, to: ResetTarget, timeout: float) -> None:
        """Move an existing subscription on all partitions; a number is a time as in `subscribe`.

        Positions move it on their partitions alone, one each: to the entry there, or the next one
        there is. What open consumers received before is not acknowledged any more. Raises
        TopicNotFoundError, SubscriptionNotFoundError, BadRequestError for a partition that the
        subscription does not have.
        """
        ...

    def unsubscribe(self, subscription: Subscription, timeout: float) -> None:
        """Forget the subscription on all partitions; one that does not exist is forgotten already.

        Its consumers must be closed. Raises TopicNotFoundError, SubscriptionBusyError.
        """
        ...

    def consume(self, grant: Grant, mailbox: Mailbox, timeout: float) -> Consumer:
        """Open one partition of an existing subscription exclusively; arrivals wake the mailbox.

        Raises SubscriptionBusyError when a foreign consumer holds it, TopicNotFoundError.
        """
        ...

    def read(
        self, topic: TopicName, partition: int, start: ReadStart, mailbox: Mailbox, timeout: float
    ) -> Reader:
        """Open a reader at a position (that message, or the next one there is), an end or a time.

        A number is a time as in `subscribe`. A position behind the end is waited for; one without
        an index in its batch is the first of it. Arrivals wake the mailbox. Raises
        TopicNotFoundError, BadRequestError for a position that cannot be one of this partition;
        SubscriptionBusyError where there are as many readers as there may be.
        """
        ...

    def acknowledge(
        self, subscription: Subscription, positions: Positions, cumulative: bool, timeout: float
    ) -> None:
        """Acknowledge these messages alone, or each with all before it, whoever receives meanwhile.

        Durable when it returns, and again harmless. A position without an index in its batch is the
        whole batch; one with an index has to tell the `batch_size` too, as received ones do.
        Consumers that are open may still give what they were sent before; those that open later do
        not.
        Raises TopicNotFoundError, SubscriptionNotFoundError; BadRequestError for a position that
        the topic never had, such as another topic's; FencedError for what was received before a
        reset; NotSupportedError where there are more gaps than can be kept,
        and SubscriptionBusyError where the store lets nobody acknowledge beside its consumer: both
        may leave some partitions acknowledged and others not.
        """
        ...

    def cursors(self, subscription: Subscription, timeout: float) -> list[CursorState]:
        """Return where the subscription stands, by partition; a store may cut a list of ranges.

        Raises TopicNotFoundError, SubscriptionNotFoundError.
        """
        ...

    def create_topic(self, info: TopicInfo, timeout: float) -> None:
        """Create a topic; raise TopicExistsError."""
        ...

    def create_on_demand(self, topic: TopicName, partitions: int, timeout: float) -> bool:
        """Create a topic because a client uses it; raise TopicExistsError.

        Returns False if it was created as it was before it was deleted in the store and not
        through the router, with its partitions and properties, where the store can tell.
        """
        ...

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; raise TopicNotFoundError."""
        ...

    def capabilities(self, timeout: float) -> Capabilities:
        """Return what this store can do; what it cannot do raises NotAllowedError."""
        ...

    def grow_topic(self, topic: TopicName, partitions: int, timeout: float) -> None:
        """Give a partitioned topic more partitions, which begin empty.

        Raises TopicNotFoundError; NotAllowedError where it is not partitioned or has more.
        """
        ...

    def set_retention(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, timeout: float
    ) -> None:
        """Change what a topic keeps, as `Policies` say it; raise TopicNotFoundError."""
        ...

    def list_topics(self, timeout: float, *, internal: bool = False) -> list[TopicInfo]:
        """Return all topics of all namespaces, by name; internal ones only with `internal`."""
        ...

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""
        ...

    def ready(self, timeout: float) -> None:
        """Return if the store answers, and stores.

        Raises BackendUnavailableError, BackendTimeoutError, DiskFullError.
        """
        ...

    def close(self) -> None:
        """Release connections and threads; calls under way fail with BackendUnavailableError."""
        ...
