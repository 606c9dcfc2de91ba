"""The service behind REST consumers: create, fetch, acknowledge, read the cursor, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from router.backends import Backend
from router.backends.polling import FetchTerms
from router.clocks.steps import Steps, run_blocking
from router.metrics import Metrics
from router.model import CursorState, Position, Stored, Subscription
from router.node import Node
from router.services.consume import (
    ClientGoneError,
    ConsumeOptions,
    PollMailbox,
    PollRequest,
    PollServer,
    WaitingClient,
)
from router.services.fetch.consumers import FetchConsumers, FetchMember, FetchOptions, NewConsumer
from router.services.fetch.reader import FetchReader
from router.services.read import ReadBounds
from router.services.topic_metadata import TopicMetadataCache
from router.sharing.registry import RecordVersion

CHECKED_AFTER_SECONDS: Final = 0.1
"""A fetch that took longer looks whether its consumer was deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class FetchingConsumer:
    """A consumer of a subscription, and the ids of all that the subscription had at a time (ms).

    `record`: what this was read from a while ago, None: just now.
    """

    subscription: Subscription
    member: FetchMember
    live: frozenset[str]
    live_at_ms: int
    record: RecordVersion | None = None


class Fetcher:
    """Serves fetches by polls of its own; calls block, and may be made from many threads."""

    def __init__(
        self,
        parts: tuple[Backend, Node, TopicMetadataCache],
        options: FetchOptions,
        metrics: Metrics,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._backend, node, self._topics = parts
        self._options = options
        self._registry = node.registry
        self._consumers = FetchConsumers(node.registry, options, clock, wall_ms)
        self._clock = clock
        self._wall_ms = wall_ms
        self._subscriber = PollServer(
            *parts,
            ConsumeOptions(options.max_bytes, options.backend_timeout, options.create_topics),
            metrics,
            clock,
        )

    def stop(self) -> None:
        """Answer all waiting fetches now, and those that still come after one reading."""
        self._subscriber.stop()

    def create(self, subscription: Subscription, new: NewConsumer) -> FetchMember:
        """Add a consumer to a subscription, which is made where there is none.

        Raises TopicNotFoundError, ConsumerExistsError, SubscriptionLimitError.
        """
        self._topics.partitions(subscription.topic, create=self._options.create_topics)
        # A consumer that is refused leaves no subscription behind, which would keep messages.
        self._consumers.check(subscription, new)
        request = PollRequest(subscription, "", 0.0, 1, start=new.start)
        self._subscriber.context.ensure_group(request, again=True)
        return self._consumers.create(subscription, new)

    def consumer(
        self, subscription: Subscription, identity: str, *, again: bool = False
    ) -> FetchingConsumer:
        """Return a consumer that is about to fetch; `again`: do not trust what is remembered.

        Raises TopicNotFoundError, ConsumerNotFoundError.
        """
        self._topics.partitions(subscription.topic)
        # Before they are read: a consumer that comes meanwhile is not taken as gone.
        now_ms = self._wall_ms()
        if self._subscriber.is_direct and not again:
            known = self._consumers.known(subscription, identity)
            if known is not None:
                member, live, record = known
                return FetchingConsumer(subscription, member, live, now_ms, record)
        return FetchingConsumer(subscription, *self._consumers.get(subscription, identity), now_ms)

    def fetch(
        self,
        consumer: FetchingConsumer,
        bounds: ReadBounds,
        mailbox: PollMailbox,
        client: WaitingClient,
    ) -> list[Stored]:
        """Return messages as `fetch_steps` does, waiting here."""
        return run_blocking(self.fetch_steps(consumer, bounds, mailbox, client))

    def fetch_steps(
        self,
        consumer: FetchingConsumer,
        bounds: ReadBounds,
        mailbox: PollMailbox,
        client: WaitingClient,
    ) -> Steps[list[Stored]]:
        """Return messages that are not in flight, as soon as there are some.

        They come again, to the consumer that fetches then, if they are not acknowledged in time.
        Raises ConsumerNotFoundError, ConflictError if the consumer has to be asked for again, and
        what a poll raises.
        """
        subscription, member, options = consumer.subscription, consumer.member, self._options
        reader, terms = None, None
        if self._subscriber.is_direct:  # the store knows what is in flight
            terms = FetchTerms(
                options.ack_timeout, options.max_unacknowledged, consumer.live, consumer.live_at_ms
            )
        else:
            reader = FetchReader(
                self._registry,
                self._consumers,
                options,
                subscription,
                member,
                consumer.live,
                self._wall_ms,
            )
        request, began = _poll_request(consumer, bounds, terms), self._clock()
        poll = yield from self._subscriber.poll_steps(request, mailbox, client, reader)
        try:
            if poll.messages:
                if client.is_closed():
                    raise ClientGoneError
                if reader is not None or self._clock() - began > CHECKED_AFTER_SECONDS:
                    # It may have been deleted meanwhile.
                    self._consumers.get(subscription, member.id)
                if reader is None:
                    poll.delivered()
                else:
                    reader.record()
        finally:
            poll.abandon()
        return poll.messages

    def delete(self, subscription: Subscription, consumer: str) -> None:
        """Remove a consumer: others are given what it has not acknowledged.

        A fetch of it that waits ends with the next message; its partitions go to others
        `consume.idle` after.

        Raises TopicNotFoundError, ConsumerNotFoundError.
        """
        self._topics.partitions(subscription.topic)
        self._consumers.delete(subscription, consumer)

    def acknowledge(
        self, subscription: Subscription, positions: Sequence[Position], *, cumulative: bool
    ) -> None:
        """Acknowledge messages, or each with all before it in its partition; see `Backend`."""
        self._backend.acknowledge(
            subscription, positions, cumulative, self._options.backend_timeout
        )

    def cursors(self, subscription: Subscription) -> list[CursorState]:
        """Return where a subscription stands, by partition; see `Backend`."""
        return self._backend.cursors(subscription, self._options.backend_timeout)


def _poll_request(
    consumer: FetchingConsumer, bounds: ReadBounds, terms: FetchTerms | None = None
) -> PollRequest:
    member = consumer.member
    return PollRequest(
        consumer.subscription,
        member.id,
        bounds.timeout,
        bounds.limit,
        bounds.max_bytes,
        member.begins(),
        limited=False,
        fetch=terms,
        record=consumer.record,
    )
