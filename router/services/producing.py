"""Publishing that answers each message with its position, or its failure.

The batches of a request are not joined with those of other requests, and are small enough for every
store to keep each of them in one place, so that positions follow from receipts. When an append
fails, what is behind it in its partition is not tried: storing that would change the order of what
is sent again. Other partitions go on.

A message is appended alone if it is to be delivered later or to some clusters only, as both are
properties of the whole append, or if it has a named producer on a topic that drops repeats, whose
numbers are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from router.backends import Backend, Batch, Receipt
from router.clocks.steps import Offload, run_here
from router.clocks.ttl_cache import TTLCache
from router.errors import (
    BackendTimeoutError,
    BadRequestError,
    MessageTooLargeError,
    NotAllowedError,
    NotSupportedError,
    RouterError,
    TopicNotFoundError,
)
from router.metrics import Metrics
from router.model import NOT_PARTITIONED, Message, Position, TopicName
from router.model.publish_source import NO_SOURCE
from router.services.appending import Appender
from router.services.batches import BatchLimits, PublishBatch, split
from router.services.partitioning import partition_of
from router.services.publish import MAX_LIGHT_MESSAGES, PublishOptions
from router.services.shared_secret import RequestNames
from router.services.topic_metadata import TopicMetadataCache

POLICY_SECONDS: Final = 5.0
MAX_POLICIES: Final = 2_000
RECEIPT_LIMITS: Final = BatchLimits(512 * 1024, 1_000)
"""Of a batch of `produce`. Kafka stores larger ones in several parts, with others between them."""
_REFUSALS: Final = (TopicNotFoundError, NotAllowedError, NotSupportedError)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be stored, in a partition (None: by its routing key, else in turn)."""

    message: Message
    partition: int | None = None
    route: bytes | None = None


@dataclass(frozen=True, slots=True)
class MessageResult:
    """What became of a message: its position, or what went wrong."""

    position: Position | None = None
    error: RouterError | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends: `producer` counts where repeats are dropped, `identity` names a whole request.

    `source`: see `router.model.publish_source`.
    """

    producer: str | None = None
    identity: tuple[str, ...] | None = None
    source: bytes = NO_SOURCE


class MessageProducer:
    """Stores messages, answered one by one; calls wait, and may be made from many threads."""

    def __init__(
        self,
        backend: Backend,
        topics: TopicMetadataCache,
        names: RequestNames,
        options: PublishOptions,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        offload: Offload = run_here,
    ) -> None:
        self._backend = backend
        self._topics = topics
        self._names = names
        self._options = options
        self._clock = clock
        self._offload = offload
        self._appender = Appender(backend, metrics, clock)
        self._turns = count()  # over partitions, of messages without a key
        self._deduplicates = TTLCache(self._read_policy, POLICY_SECONDS, MAX_POLICIES, clock)

    def partitions(self, topic: TopicName) -> int:
        """Return how many partitions a topic has, 0: none; raise TopicNotFoundError.

        A topic that does not exist is made, where the options say so.
        """
        if (cached := self._topics.known(topic)) is not None:
            return cached
        return self._topics.partitions(topic, create=self._options.auto_create)

    def produce(
        self, topic: TopicName, messages: Sequence[Outgoing], sender: Sender
    ) -> list[MessageResult]:
        """Store messages; return what became of each, in their order.

        Raises BadRequestError for a partition that does not exist, TopicNotFoundError and
        NotSupportedError with nothing stored.
        """
        partitions = self.partitions(topic)
        try:
            return self._produce(topic, messages, partitions, sender)
        except (TopicNotFoundError, NotAllowedError):
            # Deleted, or made again with other partitions, since the cache was filled.
            self._topics.forget(topic)
            return self._produce(topic, messages, self.partitions(topic), sender)

    def _produce(
        self, topic: TopicName, messages: Sequence[Outgoing], partitions: int, sender: Sender
    ) -> list[MessageResult]:
        # The turns of a request that may be sent again are the same then.
        turns = self._turns if sender.identity is None else count()
        limit = self._options.max_message
        if len(messages) <= MAX_LIGHT_MESSAGES:
            placed = place(messages, partitions, turns, limit)
        else:
            placed = self._offload(place, messages, partitions, turns, limit)
        if sender.producer is not None and not self._deduplicates.get(topic):
            sender = replace(sender, producer=None)
        attempt = Attempt(self._appender, self._names, topic, sender)
        deadline = self._clock() + self._options.timeout
        results = placed.refused
        for part in placed.parts:
            stored = attempt.store(part.partition, part.batch, deadline)
            results.update(zip(part.numbers, stored, strict=True))
        return [results[number] for number in range(len(messages))]

    def _read_policy(self, topic: TopicName) -> bool:
        try:
            policies = self._backend.describe_topic(topic, self._options.timeout).info.policies
        except NotAllowedError:
            return False  # a store that does not describe its topics drops nothing on its own
        return bool(policies.deduplication)


@dataclass(eq=False)
class Attempt:
    """The appends of one `produce`, partition by partition."""

    _appender: Appender
    _names: RequestNames
    _topic: TopicName
    _sender: Sender
    _numbers: count[int] = field(default_factory=count, init=False)
    _tried: bool = field(default=False, init=False)

    def store(self, partition: int, whole: PublishBatch, deadline: float) -> list[MessageResult]:
        """Store messages of one partition; return what became of each.

        Raises TopicNotFoundError, NotAllowedError and NotSupportedError if nothing of the request
        was tried before.
        """
        results: list[MessageResult] = []
        failure: RouterError | None = None
        for part in self._parts(whole):
            batch = self._batch(partition, part.messages)
            if failure is None:
                try:
                    receipt = self._appender.append(batch, part.size, deadline)
                except BackendTimeoutError as error:
                    failure = error.of_publish()
                except RouterError as error:
                    if not self._tried and isinstance(error, _REFUSALS):
                        raise
                    failure = error
                else:
                    results += _positions(receipt, len(part.messages))
                self._tried = True
            if failure is not None:
                results += [MessageResult(error=failure)] * len(part.messages)
        return results

    def _parts(self, whole: PublishBatch) -> Iterable[PublishBatch]:
        if whole.fits(RECEIPT_LIMITS) and not any(map(self._is_alone, whole.messages)):
            return (whole,) if whole.messages else ()
        return split(whole.messages, RECEIPT_LIMITS, self._is_alone)

    def _is_alone(self, message: Message) -> bool:
        return (
            self._sender.producer is not None
            or message.deliver_at is not None
            or bool(message.replicate_to)
        )

    def _batch(self, partition: int, messages: Sequence[Message]) -> Batch:
        """Return an append of this request, named if it may come again."""
        number, sequence = next(self._numbers), messages[0].sequence
        sender, name = self._sender, None
        if sender.producer is not None and sequence is not None:
            name = sender.producer
        elif sender.identity is not None:
            name, sequence = self._names.producer(*sender.identity, str(number)), 0
        return Batch(self._topic, partition, messages, name, sequence or 0, sender.source)


@dataclass(frozen=True, slots=True)
class PartitionMessages:
    """Messages of a request for one partition: their numbers in it, and the messages."""

    partition: int
    numbers: list[int]
    batch: PublishBatch


@dataclass(frozen=True, slots=True)
class PlacedMessages:
    """The messages of a request by partition, and by number the results of those refused."""

    parts: list[PartitionMessages]
    refused: dict[int, MessageResult]


def place(
    messages: Sequence[Outgoing], partitions: int, turns: Iterable[int], max_message: int
) -> PlacedMessages:
    """Return which partition each message goes to, and which are larger than `max_message` bytes.

    `turns` are taken over the partitions by messages without a key. Raises BadRequestError for a
    partition that does not exist.
    """
    numbers: dict[int, list[int]] = {}
    turn = iter(turns)
    for number, outgoing in enumerate(messages):
        partition, existing = outgoing.partition, max(partitions, 1)
        if partition is not None and not 0 <= partition < existing:
            raise BadRequestError(
                f"messages[{number}]: there is no partition {partition}, the topic has {existing}"
            )
        if partitions <= 1:
            partition = 0 if partitions else NOT_PARTITIONED
        elif partition is None:
            route = outgoing.route
            partition = (
                next(turn) % partitions if route is None else partition_of(route, partitions)
            )
        numbers.setdefault(partition, []).append(number)
    placed = PlacedMessages([], {})
    for partition, accepted in numbers.items():
        batch = PublishBatch([messages[n].message for n in accepted])
        if batch.largest > max_message:
            placed.refused.update(_refusals(messages, accepted, max_message))
            accepted[:] = [n for n in accepted if n not in placed.refused]
            batch = PublishBatch([messages[n].message for n in accepted])
        placed.parts.append(PartitionMessages(partition, accepted, batch))
    return placed


def _refusals(
    messages: Sequence[Outgoing], numbers: Iterable[int], max_message: int
) -> dict[int, MessageResult]:
    """Return the failures of messages that are too large, by their numbers."""
    sizes = ((number, messages[number].message.size()) for number in numbers)
    return {
        number: MessageResult(
            error=MessageTooLargeError(f"It has {size} bytes, the limit is {max_message}.")
        )
        for number, size in sizes
        if size > max_message
    }


def _positions(receipt: Receipt, messages: int) -> list[MessageResult]:
    """Return where each message is; of an old repeat the store may not know."""
    if messages == 1:
        return [MessageResult(receipt.position)]
    if receipt.stored == messages and receipt.position.ledger >= 0:
        return [MessageResult(receipt.at(index)) for index in range(messages)]
    return [MessageResult(receipt.position)] * messages
