"""Administration of the broker that the address names: ours, or Apache Pulsar, if it has REST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from router.backends import Capabilities, ResetTarget, Start
from router.backends.pulsar.admin import Admin, BrokerAdmin
from router.backends.pulsar.credentials import NO_CREDENTIALS, Credentials
from router.backends.pulsar.extents import Extent, Wanted
from router.backends.pulsar.rest import RestAdmin
from router.backends.pulsar.routes import Routes
from router.backends.pulsar.subscribing import end_subscription, make_subscription
from router.errors import NotAllowedError
from router.model import CursorState, Position, Subscription, TopicInfo, TopicName, TopicStats

NO_ADMIN: Final = "the backend's address names no administration: add ?admin=http://host:8080"
NO_TIME: Final = (
    "a time, a reset and a cursor need the administration of Apache Pulsar: " + NO_ADMIN
)


class ServiceAdmin:
    """Commands where the broker is ours, REST where the address names it, else a clear refusal."""

    def __init__(self, routes: Routes, url: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._routes = routes
        self._commands = BrokerAdmin(routes.service)
        self._rest = RestAdmin(url, routes, credentials) if url else None

    def create(self, info: TopicInfo, deadline: float) -> None:
        """Create a topic; raise TopicExistsError."""
        self._admin(deadline).create(info, deadline)

    def delete(self, topic: TopicName, deadline: float) -> None:
        """Delete a topic with all it holds; raise TopicNotFoundError."""
        self._admin(deadline).delete(topic, deadline)

    def capabilities(self, deadline: float) -> Capabilities:
        """Return what the store can do."""
        try:
            return self._admin(deadline).capabilities(deadline)
        except NotAllowedError as error:
            why = str(error)
            return Capabilities(why, why, why, why, why)

    def grow(self, topic: TopicName, partitions: int, deadline: float) -> None:
        """Give a partitioned topic more partitions."""
        self._admin(deadline).grow(topic, partitions, deadline)

    def retain(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, deadline: float
    ) -> None:
        """Change what a topic keeps."""
        self._admin(deadline).retain(topic, ms, max_bytes, deadline)

    def topics(self, deadline: float) -> list[TopicInfo]:
        """Return all topics."""
        return self._admin(deadline).topics(deadline)

    def describe(self, topic: TopicName, deadline: float) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""
        return self._admin(deadline).describe(topic, deadline)

    def subscribe(self, subscription: Subscription, start: Start | int, deadline: float) -> None:
        """Make a subscription exist on all partitions."""
        if self._routes.service.connection(deadline).ours:
            self._commands.subscribe(subscription, start, deadline)
        elif isinstance(start, Start):
            make_subscription(self._routes, subscription, start, deadline)
        else:
            self._cursors(deadline).subscribe(subscription, start, deadline)

    def reset(self, subscription: Subscription, to: ResetTarget, deadline: float) -> None:
        """Move a subscription; raise SubscriptionNotFoundError."""
        self._cursors(deadline).reset(subscription, to, deadline)

    def unsubscribe(self, subscription: Subscription, deadline: float) -> None:
        """Forget a subscription on all partitions."""
        if self._routes.service.connection(deadline).ours:
            self._commands.unsubscribe(subscription, deadline)
        else:
            end_subscription(self._routes, subscription, deadline)

    def acknowledge(
        self,
        subscription: Subscription,
        positions: Sequence[Position],
        cumulative: bool,
        deadline: float,
    ) -> None:
        """Acknowledge messages, each alone or with all before it."""
        self._cursors(deadline).acknowledge(subscription, positions, cumulative, deadline)

    def cursors(self, subscription: Subscription, deadline: float) -> list[CursorState]:
        """Return where a subscription stands, by partition; raise SubscriptionNotFoundError."""
        return self._cursors(deadline).cursors(subscription, deadline)

    def extents(self, wanted: Wanted, deadline: float) -> dict[TopicName, list[Extent]]:
        """Return where the partitions of topics begin and end; missing topics are left out."""
        return self._cursors(deadline).extents(wanted, deadline)

    def evict(
        self, subscription: Subscription, partition: int, asking: str, deadline: float
    ) -> None:
        """Have the store let go of routers' consumers of a partition, whose leases are lost."""
        self._cursors(deadline).evict(subscription, partition, asking, deadline)

    def deduplicates(self, topic: TopicName, deadline: float) -> bool:
        """Return whether appends with a producer's name and number are stored once in a topic."""
        if self._routes.service.connection(deadline).ours:
            return self._commands.deduplicates(topic, deadline)
        return self._admin(deadline).deduplicates(topic, deadline)

    def _cursors(self, deadline: float) -> Admin:
        """Return what knows positions and moves cursors."""
        if self._routes.service.connection(deadline).ours:
            return self._commands
        if self._rest is not None:
            return self._rest
        raise NotAllowedError(NO_TIME)

    def _admin(self, deadline: float) -> Admin:
        if self._rest is not None:
            return self._rest
        if self._routes.service.connection(deadline).ours:
            return self._commands
        raise NotAllowedError(NO_ADMIN)
