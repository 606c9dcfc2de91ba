"""The partitions that one poll has open: opened as they are granted, read in turns, acknowledged.

A `OpenPartitionReader` decides what a poll takes of them, so that polls of other dialects need no
session of their own: `AnswerReader` takes what may be answered, `services/fetch` what is not in
flight.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import structlog

from router.backends import Consumer, DeferringConsumer
from router.errors import (
    ConsumerClosedError,
    FencedError,
    RouterError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
)
from router.model import Grant, Position, Stored
from router.node import Claim
from router.services.consume.ack_tokens import MAX_TOKEN_PARTITIONS, AnsweredRange
from router.services.consume.context import AckMode, PollContext, PollRequest
from router.services.consume.retained import ClaimMailbox, RetainedClaim

MAX_REOPENINGS: Final = 10
"""A store that closes whatever is opened is out of order."""

_log = structlog.get_logger(__name__)


class OpenPartitionReader(ABC):
    """What a poll takes of the partitions that it has open."""

    __slots__ = ()

    is_retained: ClassVar[bool] = False
    """Whether consumers that it took from may serve the id's next poll."""

    def opened(self, partition: int) -> None:  # noqa: B027 - optional for readers
        """Note that a partition was opened; raise what forbids reading it."""

    def closed(self, partition: int) -> None:  # noqa: B027 - optional for readers
        """Note that a partition was closed."""

    def begin(self, partitions: OpenPartitions) -> None:  # noqa: B027 - optional for readers
        """Begin to go over all partitions, once more after each wait."""

    @abstractmethod
    def take(
        self,
        partitions: OpenPartitions,
        partition: int,
        limit: int,
        bytes_left: int,
        *,
        first: bool,
    ) -> tuple[Sequence[Stored], int]:
        """Return what is there of a partition, and its bytes; raise what prevents it.

        At most `limit` messages of at most `bytes_left` bytes; `first`: nothing is taken yet, so
        that one larger message may be.
        """

    def seconds_until_due(self) -> float:
        """Return after how many seconds to read again though nothing came; infinite: never."""
        return math.inf


@dataclass(eq=False, slots=True)
class OpenPartitions:
    """The consumers of one poll, by partition."""

    _context: PollContext
    _request: PollRequest
    mailbox: ClaimMailbox
    _reader: OpenPartitionReader
    busy: SubscriptionBusyError | None = field(default=None, init=False)
    ever_opened: bool = field(default=False, init=False)
    unacknowledged: dict[int, AnsweredRange] = field(init=False)
    """What the request acknowledges, as far as that is not done."""
    _opened: dict[int, tuple[int, Consumer]] = field(default_factory=dict, init=False)
    _acknowledged: dict[int, Position] = field(default_factory=dict, init=False)
    _answered: dict[int, AnsweredRange] = field(default_factory=dict, init=False)
    _reopenings: int = field(default=0, init=False)
    _max_partitions: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        self.unacknowledged = dict(self._request.acknowledged)
        if self._request.ack is AckMode.EXPLICIT:
            self._max_partitions = MAX_TOKEN_PARTITIONS

    def update(self, claim: Claim) -> None:
        """Open what was granted since the last time, and close what was withdrawn."""
        self.busy = None
        granted = claim.granted()
        for partition in self._opened.keys() - granted.keys():
            self.close(partition)
        for partition, generation in granted.items():
            if partition in self._opened:
                if self.generation(partition) == generation:
                    continue
                self.close(partition)
            if not self._open(partition, generation):
                continue
            position = claim.pending().get(partition)
            # Refused after a reset: then it is to be delivered again.
            if position is not None and self.acknowledge(partition, position):
                self._acknowledged[partition] = position
            if (answered := self.unacknowledged.get(partition)) is not None:
                self._acknowledge_answered(partition, answered)

    def resume(self, retained: RetainedClaim) -> None:
        """Go on with the consumers of the id's last poll, and acknowledge what that left."""
        self.mailbox = retained.mailbox
        self._opened = retained.opened
        self.ever_opened = True
        for consumer in self._deferring():
            consumer.resume()
        for partition, position in retained.pending.items():
            if self._acknowledge_soon(partition, position) or self.acknowledge(partition, position):
                self._acknowledged[partition] = position
            else:
                self.reopen(partition)

    def retain(
        self, claim: Claim, partitions: int, pending: Mapping[int, Position]
    ) -> RetainedClaim:
        """Return the claim with the consumers, which this poll uses no more."""
        opened, self._opened = self._opened, {}
        return RetainedClaim(claim, partitions, self.mailbox, opened, pending)

    def read(self, limit: int, bytes_left: int) -> list[Stored]:
        """Return what the reader takes, beginning with another partition each time.

        Raises the failure of a partition if there is nothing of the others.
        """
        self._reader.begin(self)
        found: list[Stored] = []
        failure: RouterError | None = None
        for partition in self._in_turn():
            left = limit - len(found)
            full = left <= 0 or len(self._answered) >= self._max_partitions
            if full or (found and bytes_left <= 0):
                break
            try:
                some, size = self._reader.take(self, partition, left, bytes_left, first=not found)
            except ConsumerClosedError as error:
                if not self._close_for_another(partition):
                    failure = error
                continue
            except RouterError as error:
                failure = error
                continue
            if some:
                self._answered[partition] = AnsweredRange(some[0].position, some[-1].position)
                bytes_left -= size
                found += some
        if failure is not None and not found:
            raise failure
        return found

    def receive(self, partition: int, limit: int, max_bytes: int) -> Sequence[Stored]:
        """Return what comes next of a partition, none: nothing is there; raise what that raises."""
        consumer = self._opened[partition][1]
        timeout = self._context.options.backend_timeout
        acknowledged = self._acknowledged.get(partition)
        while some := consumer.receive(limit, max_bytes, timeout):
            if acknowledged is None:
                return some
            if some := [stored for stored in some if stored.position > acknowledged]:
                return some
        return ()

    def consumer(self, partition: int) -> Consumer:
        """Return the consumer of an open partition."""
        return self._opened[partition][1]

    def answered(self) -> list[AnsweredRange]:
        """Return what was read of each partition."""
        return list(self._answered.values())

    def still_held(self, claim: Claim) -> dict[int, Position]:
        """Return the last message read of each partition that no other poll was given since.

        While the broker is away that is not known; then the backend's own fence decides.
        """
        granted, lost = claim.granted(), claim.lost()
        return {
            partition: answered.last
            for partition, answered in self._answered.items()
            if lost or granted.get(partition) == self._opened[partition][0]
        }

    def generation(self, partition: int) -> int | None:
        """Return the generation under which a partition is open, None: it is not."""
        opened = self._opened.get(partition)
        return None if opened is None else opened[0]

    def can_resume(self) -> bool:
        """Return whether the id's next poll can go on with these consumers."""
        return len(self._deferring()) == len(self._opened)

    def acknowledge_soon(self, last: Mapping[int, Position]) -> bool:
        """Have all that was answered acknowledged, waiting for none; False: that cannot be."""
        return len(last) == len(self._answered) and all(
            self._acknowledge_soon(partition, position) for partition, position in last.items()
        )

    def _acknowledge_soon(self, partition: int, position: Position) -> bool:
        consumer = self.consumer(partition)
        return isinstance(consumer, DeferringConsumer) and consumer.acknowledge_soon(position)

    def _deferring(self) -> list[DeferringConsumer]:
        opened = self._opened.values()
        return [consumer for _, consumer in opened if isinstance(consumer, DeferringConsumer)]

    def acknowledge(self, partition: int, position: Position) -> bool:
        """Acknowledge up to a message; return False if the store refused that."""
        try:
            self.consumer(partition).acknowledge(position, self._context.options.backend_timeout)
        except FencedError:
            _log.info("acknowledgement came too late", **self._names())
            return False
        except RouterError as error:
            _log.warning("acknowledgement failed", reason=str(error), **self._names())
        return True

    def _acknowledge_answered(self, partition: int, answered: AnsweredRange) -> None:
        """Acknowledge what an earlier answer held, unless it is overtaken; raise other failures."""
        last = answered.last
        if not last.epoch and (waiting := self.receive(partition, 1, 1)):
            # The store accepts positions of before a reset: see where the subscription stands.
            place = waiting[0].position
            if place > last or (place.ledger, place.entry) != (
                answered.first.ledger,
                answered.first.entry,
            ):
                self.reopen(partition)
                if place > last:
                    self.unacknowledged.pop(partition, None)
                return
        try:
            self.consumer(partition).acknowledge(last, self._context.options.backend_timeout)
        except FencedError:
            _log.info("acknowledgement came too late", **self._names())
            return
        self._acknowledged[partition] = last
        self.unacknowledged.pop(partition, None)

    def reopen(self, partition: int) -> None:
        """Open a partition once more, so that its unacknowledged messages come again."""
        generation = self.generation(partition)
        self.close(partition)
        if generation is not None:
            self._open(partition, generation)

    def close(self, partition: int) -> None:
        """Close a partition: nothing of it is acknowledged any more. Callable twice."""
        opened = self._opened.pop(partition, None)
        self._acknowledged.pop(partition, None)
        self._answered.pop(partition, None)
        if opened is None:
            return
        self._reader.closed(partition)
        try:
            opened[1].close()
        except RouterError as error:
            _log.warning("closing a consumer failed", reason=str(error))

    def close_all(self) -> None:
        """Close all partitions."""
        for partition in list(self._opened):
            self.close(partition)

    def _in_turn(self) -> Iterable[int]:
        partitions = list(self._opened)
        if len(partitions) > 1:
            begin = random.randrange(len(partitions))  # noqa: S311 - fairness, not secrecy
            partitions = partitions[begin:] + partitions[:begin]
        return partitions

    def _close_for_another(self, partition: int) -> bool:
        """Have a partition opened again that the store closed, as a reset does.

        Returns whether it may be; raises TopicNotFoundError if the topic was deleted.
        """
        self._context.check_topic(self._request.subscription)
        self._reopenings += 1
        self.close(partition)
        self.mailbox.wake()
        return self._reopenings <= MAX_REOPENINGS

    def _open(self, partition: int, generation: int) -> bool:
        """Open a partition; return False if a client of another protocol reads it."""
        while partition not in self._opened:
            try:
                self._opened[partition] = generation, self._consume(partition, generation)
            except SubscriptionBusyError as error:
                # A store that cannot have another consumer says when to try again.
                if error.retry_after is None or not self._context.retained.end_oldest():
                    self.busy = error  # its turn may end before the poll does
                    return False
        self.ever_opened = True
        self._reader.opened(partition)
        return True

    def _consume(self, partition: int, generation: int) -> Consumer:
        context, timeout = self._context, self._context.options.backend_timeout
        grant = Grant(self._request.subscription, partition, generation)
        try:
            return context.backend.consume(grant, self.mailbox, timeout)
        except SubscriptionNotFoundError:
            # Forgotten for lack of polls, or gone with its topic, since this worker last asked.
            context.ensure_group(self._request, again=True)
        return context.backend.consume(grant, self.mailbox, timeout)

    def _names(self) -> dict[str, str]:
        subscription = self._request.subscription
        return {"topic": str(subscription.topic), "group": subscription.name}
