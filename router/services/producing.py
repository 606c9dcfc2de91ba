"""What `Publisher.produce` does with one request: each message gets its position, or its failure.

A message is appended alone if it is to be delivered later or to some clusters only, as both are
said of the whole append, or if it has a named producer on a topic that drops repeats, whose numbers
are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from router.backends import Batch, Receipt
from router.errors import (
    BackendTimeoutError,
    BadRequestError,
    NotAllowedError,
    NotSupportedError,
    RouterError,
    TopicNotFoundError,
)
from router.model import Message, Position, TopicName
from router.services.appending import Appender
from router.services.batches import BatchLimits, split
from router.services.partitioning import partition_of
from router.services.shared_secret import RequestNames

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
    """Who sends: `producer` counts where repeats are dropped, `identity` names a whole request."""

    producer: str | None = None
    identity: tuple[str, ...] | None = None


class Attempt:
    """The appends of one `produce`, partition by partition."""

    def __init__(
        self, appender: Appender, names: RequestNames, topic: TopicName, sender: Sender
    ) -> None:
        self._appender = appender
        self._names = names
        self._topic = topic
        self._sender = sender
        self._numbers = count()
        self._tried = False

    def store(
        self, partition: int, messages: Sequence[Message], deadline: float
    ) -> list[MessageResult]:
        """Store messages of one partition; return what became of each.

        Raises TopicNotFoundError, NotAllowedError and NotSupportedError if nothing of the request
        was tried before.
        """
        results: list[MessageResult] = []
        failure: RouterError | None = None
        for part in split(messages, RECEIPT_LIMITS, self._is_alone):
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

    def _is_alone(self, message: Message) -> bool:
        return (
            self._sender.producer is not None
            or message.deliver_at is not None
            or bool(message.replicate_to)
        )

    def _batch(self, partition: int, messages: Sequence[Message]) -> Batch:
        """Return an append of this request, named if it may come again."""
        number, sequence = next(self._numbers), messages[0].sequence
        if self._sender.producer is not None and sequence is not None:
            return Batch(self._topic, partition, messages, self._sender.producer, sequence)
        if self._sender.identity is None:
            return Batch(self._topic, partition, messages)
        name = self._names.producer(*self._sender.identity, str(number))
        return Batch(self._topic, partition, messages, name, 0)


def partitions_of(messages: Sequence[Outgoing], partitions: int, turns: Iterable[int]) -> list[int]:
    """Return the partition of each message; raise BadRequestError for one that does not exist."""
    found, turn = [], iter(turns)
    for number, outgoing in enumerate(messages):
        wanted, existing = outgoing.partition, max(partitions, 1)
        if wanted is not None and not 0 <= wanted < existing:
            raise BadRequestError(
                f"messages[{number}]: there is no partition {wanted}, the topic has {existing}"
            )
        if partitions <= 1:
            found.append(partition_of(b"", partitions))
        elif wanted is not None:
            found.append(wanted)
        elif outgoing.route is not None:
            found.append(partition_of(outgoing.route, partitions))
        else:
            found.append(next(turn) % partitions)
    return found


def _positions(receipt: Receipt, messages: int) -> list[MessageResult]:
    """Return where each message is; of an old repeat the store may not know."""
    if receipt.stored == messages and receipt.position.ledger >= 0:
        return [MessageResult(receipt.at(index)) for index in range(messages)]
    return [MessageResult(receipt.position)] * messages
