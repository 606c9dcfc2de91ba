"""Publishing with an answer for each message: where it is stored, or why it is not.

Theory of operation. Messages are placed first: where they say, by the hash of their key, or, those
that have neither, on the partitions in turn. Those of one partition are then stored in order, in
appends that are small enough to lie together on every store, so that each message's own place
follows from the receipt. When an append fails, what is behind it in its partition is not tried:
storing that would change the order of what is sent again. Other partitions go on.

An append of its own have messages that are to come later, and those that are for some clusters
only, as both are told of the whole append, and those of a named producer on a topic that drops
repeats, whose numbers must be looked at one by one. Joining appends of several requests, as
`publish` does, would lose the places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from router.backends import Backend, Batch, Receipt
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    MessageTooLargeError,
    NotAllowedError,
    NotSupportedError,
    RouterError,
    TopicNotFoundError,
)
from router.model import Message, Position, TopicName
from router.services.directory import Directory
from router.services.partitioning import partition_of
from router.services.publish import Publisher, PublishOptions
from router.services.remembered import Remembered

# Kafka stores what is larger in several parts, between which others may publish.
MOST_BYTES: Final = 512 * 1024
MOST_MESSAGES: Final = 1_000
OVERHEAD: Final = 64
POLICY_REMEMBERED: Final = 5.0
MOST_REMEMBERED: Final = 2_000


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be stored, in a partition (None: by its routing key, else in turn)."""

    message: Message
    partition: int | None = None
    route: bytes | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a message: its place, or what went wrong."""

    position: Position | None = None
    error: RouterError | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends: `producer` counts where repeats are dropped, `identity` names a whole request."""

    producer: str | None = None
    identity: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Append:
    """Messages, by their number in the request, that are stored together."""

    partition: int
    numbers: Sequence[int]
    batch: Batch


class Producing:
    """Stores messages one by one; calls block, and may be made from many threads or greenlets."""

    def __init__(
        self,
        backend: Backend,
        directory: Directory,
        publisher: Publisher,
        options: PublishOptions,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._directory = directory
        self._publisher = publisher
        self._options = options
        self._clock = clock
        self._turns = count()
        self._drops = Remembered(self._look, POLICY_REMEMBERED, MOST_REMEMBERED, clock)

    def partitions(self, topic: TopicName) -> int:
        """Return how many partitions a topic has, 0: none; raise TopicNotFoundError.

        A topic that is not there is made, where the options say so.
        """
        return self._directory.partitions(topic, create=self._options.auto_create)

    def produce(
        self, topic: TopicName, messages: Sequence[Outgoing], sender: Sender
    ) -> list[Result]:
        """Store messages; return what became of each, in their order.

        Raises BadRequestError for a partition that there is not, TopicNotFoundError and
        NotSupportedError with nothing stored.
        """
        partitions = self.partitions(topic)
        try:
            return self._produce(topic, messages, sender, partitions)
        except (TopicNotFoundError, NotAllowedError):
            # Deleted, or made anew with other partitions, since the directory looked.
            self._directory.forget(topic)
            return self._produce(topic, messages, sender, self.partitions(topic))

    def _produce(
        self, topic: TopicName, messages: Sequence[Outgoing], sender: Sender, partitions: int
    ) -> list[Result]:
        parted = self._publisher.compute(len(messages), self._part, messages, partitions, sender)
        results, waiting = parted
        alone = sender.producer is not None and self._drops.get(topic)
        deadline = self._clock() + self._options.timeout
        for turn, (place, numbers) in enumerate(waiting.items()):
            appends = _appends(topic, place, numbers, messages, sender.producer if alone else None)
            for number, result in self._store(
                self._named(appends, sender), deadline, alone=turn == 0
            ):
                results[number] = result
        return [result or Result(error=_not_tried()) for result in results]

    def _part(
        self, messages: Sequence[Outgoing], partitions: int, sender: Sender
    ) -> tuple[list[Result | None], dict[int, list[int]]]:
        """Return what is refused, and the numbers of all other messages by partition."""
        places = self._places(messages, partitions, sender)
        results: list[Result | None] = [self._refused(outgoing.message) for outgoing in messages]
        waiting: dict[int, list[int]] = {}
        for number, place in enumerate(places):
            if results[number] is None:
                waiting.setdefault(place, []).append(number)
        return results, waiting

    def _store(
        self, appends: Iterator[_Append], deadline: float, *, alone: bool
    ) -> Iterator[tuple[int, Result]]:
        """Store the appends of one partition; `alone`: nothing of the request was tried so far."""
        failure: RouterError | None = None
        for append in appends:
            done = 0
            if failure is None:
                try:
                    receipt = self._publisher.alone(append.batch, _size(append.batch), deadline)
                except (TopicNotFoundError, NotAllowedError, NotSupportedError) as error:
                    if alone:
                        raise
                    failure = error
                except RouterError as error:
                    failure = error
                else:
                    done = len(append.numbers)
                    yield from _placed(append, receipt)
                alone = False
            for number in append.numbers[done:]:
                yield number, Result(error=failure)

    def _places(self, messages: Sequence[Outgoing], partitions: int, sender: Sender) -> list[int]:
        # A request that may be sent again goes the same ways then.
        turns = count() if sender.identity is not None else self._turns
        found = []
        for number, outgoing in enumerate(messages):
            wanted, least = outgoing.partition, max(partitions, 1)
            if wanted is not None and not 0 <= wanted < least:
                raise BadRequestError(
                    f"messages[{number}]: there is no partition {wanted}, the topic has {least}"
                )
            if wanted is not None:
                found.append(wanted if partitions else partition_of(b"", 0))
            elif outgoing.route is not None:
                found.append(partition_of(outgoing.route, partitions))
            else:
                turn = next(turns)
                found.append(turn % partitions if partitions else partition_of(b"", 0))
        return found

    def _named(self, appends: Iterator[_Append], sender: Sender) -> Iterator[_Append]:
        """Name the appends of a request that may be sent again, so that each is stored once."""
        for number, append in enumerate(appends):
            batch = append.batch
            if sender.identity is None or batch.producer is not None:
                yield append
                continue
            name = self._publisher.names.producer(
                *sender.identity, str(batch.partition), str(number)
            )
            named = Batch(batch.topic, batch.partition, batch.messages, name, 0)
            yield _Append(append.partition, append.numbers, named)

    def _refused(self, message: Message) -> Result | None:
        size, most = message.size(), self._options.max_message
        if size <= most:
            return None
        return Result(error=MessageTooLargeError(f"It has {size} bytes, the limit is {most}."))

    def _look(self, topic: TopicName) -> bool:
        try:
            policies = self._backend.describe_topic(topic, self._options.timeout).info.policies
        except NotAllowedError:
            return False  # a store that tells nothing of its topics drops nothing by our doing
        return bool(policies.deduplication)


def _appends(
    topic: TopicName,
    place: int,
    numbers: Sequence[int],
    messages: Sequence[Outgoing],
    producer: str | None,
) -> Iterator[_Append]:
    """Part the messages of one partition into appends."""
    begin = size = 0
    for at, number in enumerate(numbers):
        message = messages[number].message
        weight = message.size() + OVERHEAD
        single = message.deliver_at is not None or producer is not None
        single = single or bool(message.replicate_to)
        full = size + weight > MOST_BYTES or at - begin == MOST_MESSAGES
        if at > begin and (single or full):
            yield _append(topic, place, numbers[begin:at], messages)
            begin, size = at, 0
        size += weight
        if single:
            yield _append(topic, place, [number], messages, producer)
            begin, size = at + 1, 0
    if begin < len(numbers):
        yield _append(topic, place, numbers[begin:], messages)


def _append(
    topic: TopicName,
    place: int,
    numbers: Sequence[int],
    messages: Sequence[Outgoing],
    producer: str | None = None,
) -> _Append:
    batch = [messages[number].message for number in numbers]
    sequence = batch[0].sequence
    if producer is None or sequence is None:
        return _Append(place, numbers, Batch(topic, place, batch))
    return _Append(place, numbers, Batch(topic, place, batch, producer, sequence))


def _placed(append: _Append, receipt: Receipt) -> Iterator[tuple[int, Result]]:
    """Say where each message is; of an old repeat the store may not know."""
    known = receipt.stored == len(append.numbers) and receipt.position.ledger >= 0
    for index, number in enumerate(append.numbers):
        yield number, Result(receipt.at(index) if known else receipt.position)


def _size(batch: Batch) -> int:
    return sum(message.size() for message in batch.messages)


def _not_tried() -> RouterError:
    return BackendUnavailableError("It was not tried.")
