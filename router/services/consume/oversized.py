"""What a poll may answer, and what becomes of the entries that none can: counted, kept elsewhere.

An entry that is larger without its compression than any answer would hold up its group for ever. It
goes to the dead-letter topic, as it is stored, where the settings name one, and is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

import structlog

from router.backends import Backend, Batch, Consumer
from router.errors import FencedError, RouterError, over_max_bytes
from router.metrics import Metrics
from router.model import Message, Stored, Subscription, TopicName
from router.services.consume.context import PollRequest
from router.services.consume.partitions import OpenPartitionReader, OpenPartitions
from router.services.partitioning import partition_of
from router.services.topic_metadata import TopicMetadataCache

ORIGIN_TOPIC = "router-origin-topic"
ORIGIN_GROUP = "router-origin-group"
ORIGIN_POSITION = "router-origin-position"
_NOTHING: Final[tuple[Sequence[Stored], int]] = (), 0
_IS_OVERSIZED: Final[Callable[[Stored], bool]] = attrgetter("oversized")

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class OversizedEntries:
    """Passes over oversized entries; calls block, and may be made from many threads."""

    _backend: Backend
    _topics_cache: TopicMetadataCache
    _metrics: Metrics
    _topic: TopicName | None
    _timeout: float

    def pass_over(
        self, subscription: Subscription, consumer: Consumer, some: Sequence[Stored]
    ) -> Sequence[Stored]:
        """Return what of received messages can be answered, up to the next that cannot.

        What comes first and cannot is put away and acknowledged. Raises what the store raises where
        that may go well another time.
        """
        at = next((at for at, stored in enumerate(some) if stored.oversized), len(some))
        if at:
            return some[:at]
        while some and some[0].oversized:
            acknowledge = partial(consumer.acknowledge, some[0].position, self._timeout)
            self.put_away(subscription, some[0], acknowledge)
            some = some[1:]
        return self.pass_over(subscription, consumer, some) if some else some

    def put_away(
        self, subscription: Subscription, stored: Stored, acknowledge: Callable[[], None]
    ) -> None:
        """Keep an oversized entry elsewhere, if settings say so, and acknowledge it.

        Raises what the store raises where that may go well another time.
        """
        place = stored.position
        names = {"topic": str(subscription.topic), "group": subscription.name}
        # What the dead-letter topic's own groups cannot be answered goes nowhere, or it would grow.
        keeps = self._topic not in {None, subscription.topic}
        kept = keeps and self._keep(subscription, stored, names)
        try:
            acknowledge()
        except FencedError:
            return  # the next poll that has the partition meets it again
        self._metrics.inc("router_oversized_entries_total")
        _log.warning(
            "entry-oversized", ledger=place.ledger, entry=place.entry, dead_letter=kept, **names
        )

    def _keep(self, subscription: Subscription, stored: Stored, names: dict[str, str]) -> bool:
        """Put an entry into the dead-letter topic; return whether that takes it."""
        assert self._topic is not None
        place = stored.position
        properties = {
            **stored.message.properties,
            ORIGIN_TOPIC: str(subscription.topic),
            ORIGIN_GROUP: subscription.name,
            ORIGIN_POSITION: f"{place.ledger}:{place.entry}:{place.partition}",
        }
        message = Message(stored.message.value, stored.message.key, properties)
        try:
            partitions = self._topics_cache.partitions(self._topic, create=True)
            partition = partition_of(message.key or b"", partitions)
            self._backend.publish(Batch(self._topic, partition, [message]), self._timeout)
        except RouterError as error:
            if error.retriable:
                raise
            _log.error("dead-letter-refused", reason=str(error), **names)
            return False
        return True


class AnswerReader(OpenPartitionReader):
    """Takes what may be answered, and passes over the entries that no answer can hold."""

    __slots__ = ("_max_bytes", "_oversized", "_subscription")

    is_retained = True

    def __init__(self, oversized: OversizedEntries, request: PollRequest) -> None:
        self._oversized = oversized
        self._subscription = request.subscription
        self._max_bytes = request.max_bytes

    def take(
        self,
        partitions: OpenPartitions,
        partition: int,
        limit: int,
        bytes_left: int,
        *,
        first: bool,
    ) -> tuple[Sequence[Stored], int]:
        """Return what is there; one message may be larger where `maxBytes` is not given."""
        if bytes_left <= 0:
            return _NOTHING
        consumer = partitions.consumer(partition)
        while some := partitions.receive(partition, limit, bytes_left):
            if any(map(_IS_OVERSIZED, some)):
                some = self._oversized.pass_over(self._subscription, consumer, some)
            if some:
                break
        size = sum(stored.message.size() for stored in some)
        if size > bytes_left and (self._max_bytes is not None or not first):
            raise over_max_bytes(size, self._max_bytes or bytes_left)
        return some, size
