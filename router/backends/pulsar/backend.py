"""The backend whose messages live in a broker that speaks the Pulsar protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from router.backends import Batch, Capabilities, Mailbox, Receipt, ResetTarget, Schemas, Start
from router.backends.pulsar.admin import Admin, deadline_in
from router.backends.pulsar.connection import LostError
from router.backends.pulsar.consumer import MAX_INFLATED_BYTES, PulsarConsumer
from router.backends.pulsar.entry_stream import EntryStream, open_stream
from router.backends.pulsar.extents import Extent, Place, Wanted
from router.backends.pulsar.producers import Producers
from router.backends.pulsar.reading import Opening, PulsarReader
from router.backends.pulsar.refusals import ElsewhereError
from router.backends.pulsar.routes import Routes
from router.backends.pulsar.schemas import PulsarSchemas
from router.backends.pulsar.subscribing import attach, count_partitions
from router.errors import (
    BackendTimeoutError,
    RouterError,
    SubscriptionBusyError,
    TopicNotFoundError,
)
from router.model import (
    CursorState,
    Policies,
    Position,
    Subscription,
    TopicInfo,
    TopicName,
    TopicStats,
)

# A broker answers at once unless it asks the present consumer for a sign of life, or loads a topic.
ANSWER_SECONDS: Final = 0.5
EVICT_SECONDS: Final = 2.0
BUSY_FOR: Final = 1.0
BUSY_PAUSE: Final = 0.02
_PROBE: Final = "persistent://public/default/ready"


class PulsarBackend:
    """A store of topics behind the Pulsar protocol; see `Backend`."""

    def __init__(
        self,
        routes: Routes,
        admin: Admin,
        wall_ms: Callable[[], int],
        max_inflated: int = MAX_INFLATED_BYTES,
    ) -> None:
        self._max_inflated = max_inflated
        self._routes = routes
        self._admin = admin
        self._producers = Producers(routes, wall_ms)
        self.schemas: Schemas = PulsarSchemas(routes)

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        """Store all or raise; see the protocol."""
        return self._producers.publish(batch, timeout)

    def deduplicates(self, topic: TopicName, timeout: float) -> bool:
        """Return whether a batch with a producer's name and number is stored once in this topic.

        Raises NotAllowedError where it cannot be asked: the backend's URL names no administration.
        """
        return self._admin.deduplicates(topic, deadline_in(timeout))

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return the number of partitions; see the protocol."""
        return count_partitions(self._routes.service, str(topic), deadline_in(timeout))

    def subscribe(self, subscription: Subscription, start: Start | int, timeout: float) -> None:
        """Make the subscription exist on all partitions; see the protocol."""
        self._admin.subscribe(subscription, start, deadline_in(timeout))

    def reset(self, subscription: Subscription, to: ResetTarget, timeout: float) -> None:
        """Move an existing subscription; see the protocol."""
        self._admin.reset(subscription, to, deadline_in(timeout))

    def unsubscribe(self, subscription: Subscription, timeout: float) -> None:
        """Forget the subscription on all partitions; see the protocol."""
        self._admin.unsubscribe(subscription, deadline_in(timeout))

    def consume(
        self,
        subscription: Subscription,
        partition: int,
        generation: int,
        mailbox: Mailbox,
        timeout: float,
    ) -> PulsarConsumer:
        """Open one partition of an existing subscription exclusively; see the protocol."""
        deadline = deadline_in(timeout)
        patience = deadline_in(min(timeout / 2, BUSY_FOR))
        topic = str(subscription.topic.partition(partition))
        evicting, name = False, ""
        while True:
            until = deadline if evicting else min(deadline, deadline_in(ANSWER_SECONDS))
            try:
                connection = self._routes.connection(topic, deadline)
                number = connection.next_id()
                consumer = PulsarConsumer(connection, number, partition, generation, mailbox)
                consumer.max_inflated = self._max_inflated
                name = consumer.name
                attach(connection, consumer, topic, subscription.name, deadline=until)
            except BackendTimeoutError:
                if evicting or time.monotonic() >= deadline:
                    raise
                evicting = True
                self._evict(subscription, partition, name)
            except SubscriptionBusyError:
                # Another connection's consumer may be on its way out.
                if time.monotonic() >= patience:
                    raise
                time.sleep(BUSY_PAUSE)
            except (LostError, ElsewhereError):
                if time.monotonic() + BUSY_PAUSE >= deadline:
                    raise
                self._routes.forget(topic)
                time.sleep(BUSY_PAUSE)
            else:
                return consumer

    def _evict(self, subscription: Subscription, partition: int, asking: str) -> None:
        """Have a store that waits for the last holder's router end its connection, if it can.

        Apache Pulsar gives it `connectionLivenessCheckTimeoutMillis`, 5 s, to answer.
        """
        try:
            self._admin.evict(subscription, partition, asking, deadline_in(EVICT_SECONDS))
        except RouterError as error:
            # Takes a third of the time in which Spark's workers import all of this; this is rare.
            import structlog  # noqa: PLC0415

            log = structlog.get_logger(__name__)
            log.info("a stale consumer is waited for", reason=str(error))

    def read(
        self,
        topic: TopicName,
        partition: int,
        start: Start | int | Position,
        mailbox: Mailbox,
        timeout: float,
    ) -> PulsarReader:
        """Open a reader at a position, an end or a time; see the protocol."""
        opening = Opening(topic, partition, start, mailbox, self._max_inflated)
        return opening.open(self._routes, deadline_in(timeout))

    def extents(self, wanted: Wanted, timeout: float) -> dict[TopicName, list[Extent]]:
        """Return where each partition of topics begins and ends, and stretches of some of them.

        Topics that do not exist are left out. Of Apache Pulsar a stretch is so many entries, not
        messages, and begins at no message's number: NotSupportedError. Raises NotAllowedError
        where the address names no administration.
        """
        return self._admin.extents(wanted, deadline_in(timeout))

    def stream(self, topic: TopicName, partition: int, start: Place, timeout: float) -> EntryStream:
        """Open a stream of whole entries, as they are stored; raise TopicNotFoundError."""
        return open_stream(self._routes, topic, partition, start, deadline_in(timeout))

    def acknowledge(
        self,
        subscription: Subscription,
        positions: Sequence[Position],
        cumulative: bool,
        timeout: float,
    ) -> None:
        """Acknowledge these messages alone, or each with all before it; see the protocol."""
        self._admin.acknowledge(subscription, positions, cumulative, deadline_in(timeout))

    def cursors(self, subscription: Subscription, timeout: float) -> list[CursorState]:
        """Return where the subscription stands, by partition; see the protocol."""
        return self._admin.cursors(subscription, deadline_in(timeout))

    def create_topic(
        self,
        topic: TopicName,
        partitions: int,
        policies: Policies,
        properties: dict[str, str],
        timeout: float,
    ) -> None:
        """Create a topic; see the protocol."""
        info = TopicInfo(topic, partitions, policies, properties)
        self._admin.create(info, deadline_in(timeout))

    def create_on_demand(self, topic: TopicName, partitions: int, timeout: float) -> bool:
        """Create a topic that a client uses; see the protocol."""
        self.create_topic(topic, partitions, Policies(), {}, timeout)
        return True

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; see the protocol."""
        self._admin.delete(topic, deadline_in(timeout))

    def capabilities(self, timeout: float) -> Capabilities:
        """Return what the store can do; see the protocol."""
        return self._admin.capabilities(deadline_in(timeout))

    def grow_topic(self, topic: TopicName, partitions: int, timeout: float) -> None:
        """Give a partitioned topic more partitions; see the protocol."""
        self._admin.grow(topic, partitions, deadline_in(timeout))

    def set_retention(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, timeout: float
    ) -> None:
        """Change what a topic keeps; see the protocol."""
        self._admin.retain(topic, ms, max_bytes, deadline_in(timeout))

    def list_topics(self, timeout: float) -> list[TopicInfo]:
        """Return all topics of all namespaces, by name."""
        return self._admin.topics(deadline_in(timeout))

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        """Return what a topic holds; see the protocol."""
        return self._admin.describe(topic, deadline_in(timeout))

    def ready(self, timeout: float) -> None:
        """Return if the broker answers a question; see the protocol."""
        try:
            count_partitions(self._routes.service, _PROBE, deadline_in(timeout))
        except TopicNotFoundError:
            pass  # an answer like any other

    def close(self) -> None:
        """Release what this backend opened; see the protocol."""
        self._producers.close()
        self._routes.close()
