"""The service behind REST consumers: create, fetch, acknowledge, read the cursor, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.backends import Backend, Node, Start
from router.metrics import Metrics
from router.model import CursorState, Position, Stored, Subscription
from router.services.consume import (
    Client,
    ClientGoneError,
    ConsumeOptions,
    PollMailbox,
    Subscriber,
    Wish,
)
from router.services.directory import Directory
from router.services.fetch.consumers import Consumers, FetchOptions, Member, ReadSchema
from router.services.fetch.session import FetchSession
from router.services.read import ReadBounds


@dataclass(frozen=True, slots=True)
class FetchingConsumer:
    """A consumer of a subscription, and the ids of all that the subscription has with it."""

    subscription: Subscription
    member: Member
    live: frozenset[str]


class Fetcher(Subscriber):
    """Serves fetches; calls block, and may be made from many threads or greenlets."""

    def __init__(
        self,
        parts: tuple[Backend, Node, Directory],
        options: FetchOptions,
        metrics: Metrics,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        backend, node, directory = parts
        consuming = ConsumeOptions(
            options.max_bytes, options.backend_timeout, options.create_topics
        )
        super().__init__(backend, node, directory, consuming, metrics, clock)
        self.fetching = options
        self.registry = node.registry
        self.consumers = Consumers(node.registry, options, wall_ms)
        self.wall_ms = wall_ms
        self._live: dict[PollMailbox, frozenset[str]] = {}

    def create(
        self,
        subscription: Subscription,
        name: str | None,
        known: str | None,
        start: Start | int,
        schema: ReadSchema | None = None,
    ) -> Member:
        """Add a consumer to a subscription, which is made where there is none.

        Raises TopicNotFoundError, ConsumerExistsError, SubscriptionLimitError.
        """
        self.directory.partitions(subscription.topic, create=self.options.create_topics)
        # A consumer that is refused leaves no subscription behind, which would keep messages.
        self.consumers.check(subscription, name, known)
        self.ensure(_wish(subscription, "", start), anew=True)
        return self.consumers.create(subscription, name, known, start, schema)

    def consumer(self, subscription: Subscription, identity: str) -> FetchingConsumer:
        """Return a consumer that is about to fetch.

        Raises TopicNotFoundError, ConsumerNotFoundError.
        """
        self.directory.partitions(subscription.topic)
        return FetchingConsumer(subscription, *self.consumers.get(subscription, identity))

    def fetch(
        self, consumer: FetchingConsumer, bounds: ReadBounds, caller: tuple[PollMailbox, Client]
    ) -> list[Stored]:
        """Return messages that nobody has been given, as soon as there are some.

        They are given again, to whoever fetches then, if they are not acknowledged in time. Raises
        ConsumerNotFoundError, and what a poll raises.
        """
        mailbox, client = caller
        subscription, member = consumer.subscription, consumer.member
        wish = Wish(
            subscription,
            member.id,
            bounds.timeout,
            bounds.limit,
            bounds.max_bytes,
            member.begins(),
        )
        self._live[mailbox] = consumer.live
        try:
            poll = self.poll(wish, mailbox, client)
        finally:
            del self._live[mailbox]
        try:
            if poll.messages:
                if client.gone():
                    raise ClientGoneError
                assert isinstance(poll.session, FetchSession)
                self.consumers.get(subscription, member.id)  # it may have been deleted meanwhile
                poll.session.note()
        finally:
            poll.abandon()
        return poll.messages

    def session(self, wish: Wish, mailbox: PollMailbox, client: Client) -> FetchSession:
        """Return what runs a fetch."""
        return FetchSession(self, wish, mailbox, client, self._live.get(mailbox, frozenset()))

    def delete(self, subscription: Subscription, consumer: str) -> None:
        """Remove a consumer: others are given what it has not acknowledged.

        A fetch of it that waits ends with the next message; its partitions go to others
        `consume.idle` after.

        Raises TopicNotFoundError, ConsumerNotFoundError.
        """
        self.directory.partitions(subscription.topic)
        self.consumers.delete(subscription, consumer)

    def acknowledge(
        self, subscription: Subscription, positions: Sequence[Position], *, cumulative: bool
    ) -> None:
        """Acknowledge messages, or each with all before it in its partition; see `Backend`."""
        self.backend.acknowledge(subscription, positions, cumulative, self.options.backend_timeout)

    def cursors(self, subscription: Subscription) -> list[CursorState]:
        """Return where a subscription stands, by partition; see `Backend`."""
        return self.backend.cursors(subscription, self.options.backend_timeout)


def _wish(subscription: Subscription, consumer: str, start: Start | int) -> Wish:
    return Wish(subscription, consumer, 0.0, 1, None, start)
