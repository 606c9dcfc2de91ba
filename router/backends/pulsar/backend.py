"""The backend whose messages live in a broker that speaks the Pulsar protocol."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from router.backends import Capabilities, Positions, ReadStart, Receipt, ResetTarget, Schemas, Start
from router.backends.pulsar.admin import BrokerAdmin
from router.backends.pulsar.consumer import MAX_INFLATED_BYTES, PulsarConsumer
from router.backends.pulsar.entry_stream import EntryStream, open_stream
from router.backends.pulsar.extents import BEGINNING, EntryExtent, EntryPosition, ExtentRequests
from router.backends.pulsar.joint import JointPublishing
from router.backends.pulsar.located import find_batch
from router.backends.pulsar.producers import NamedProducers
from router.backends.pulsar.reader import Opening, PulsarReader
from router.backends.pulsar.routes import Recall, Routes, recall_nothing
from router.backends.pulsar.schemas import PulsarSchemas
from router.backends.pulsar.subscribing import (
    attach,
    count_partitions,
    end_subscription,
    make_subscription,
)
from router.clocks import deadline_in
from router.clocks.backoff import Backoff
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    NotAllowedError,
    RouterError,
    SubscriptionBusyError,
    TopicNotFoundError,
)
from router.model import (
    CursorState,
    Grant,
    Position,
    Subscription,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.node import Mailbox
from router.pulsar_client.connection import PulsarConnectionLostError
from router.pulsar_client.refusals import ElsewhereError

if TYPE_CHECKING:
    from router.backends.pulsar.rest import RestAdmin

NO_ADMIN: Final = (
    "This needs the administration of Apache Pulsar, and the backend's address says ?admin=none."
)
# A broker answers at once unless it asks the present consumer for a sign of life, or loads a topic.
ANSWER_SECONDS: Final = 0.25
EVICT_SECONDS: Final = 2.0
BUSY_SECONDS: Final = 1.0
# Between tries; all are the same, so that calls share it.
_PAUSES: Final = Backoff(0.02)
NAME_ADMIN: Final = (
    "Name the address of Apache Pulsar's administration in the backend's, ?admin=http://host:port;"
    " or say ?admin=none: then topics are neither created nor listed, deleted or described."
)
_PROBE: Final = TopicName.parse("persistent://public/default/ready")


class PulsarBackend:
    """A store of topics behind the Pulsar protocol; see `Backend`.

    Topics and cursors are administered by commands where the broker is ours, else by `rest`.
    """

    def __init__(
        self,
        routes: Routes,
        rest: BrokerAdmin | RestAdmin | None,
        wall_ns: Callable[[], int],
        max_inflated: int = MAX_INFLATED_BYTES,
        recall: Recall = recall_nothing,
    ) -> None:
        """`recall` ends what workers retain of a subscription, None: of a topic."""
        self._max_inflated = max_inflated
        self._recall = recall
        self._routes = routes
        self._commands = BrokerAdmin(routes.service)
        self._rest = rest
        # Set by the caller that took a default address for it: `ready` checks that, until it
        # answers once. Later it may be away like any broker, and publishes and polls go on.
        self.rest_is_assumed = False
        self._missing_logged = False
        self._producers = NamedProducers(routes, wall_ns)
        self.publish = self._producers.publish
        joint = JointPublishing(self._producers)
        self.is_open, self.publish_many = joint.is_open, joint.publish_many
        self.schemas: Schemas = PulsarSchemas(routes)

    def deduplicates(self, topic: TopicName, timeout: float) -> bool:
        """Return whether repeats are dropped; see `Deduplicating`."""
        deadline = deadline_in(timeout)
        if self._is_ours(deadline):
            return self._commands.deduplicates(topic, deadline)
        return self._admin(deadline).deduplicates(topic, deadline)

    def deduplicate(self, topic: TopicName, timeout: float) -> None:
        """Have repeats dropped from now on; see `Deduplicating`."""
        deadline = deadline_in(timeout)
        if not self._is_ours(deadline):
            self._admin(deadline).deduplicate(topic, deadline)

    def is_ours(self, timeout: float) -> bool:
        """Return whether a broker of ours answers, not Apache Pulsar."""
        return self._is_ours(deadline_in(timeout))

    def history(self, timeout: float) -> str:
        """Return what names the line of appends of a broker of ours, "": it is Apache Pulsar.

        It stays the same over restarts, and no other broker's folder has it.
        """
        deadline = deadline_in(timeout)
        return self._commands.history(deadline) if self._is_ours(deadline) else ""

    def max_entry(self, timeout: float) -> int:
        """Return how many bytes an entry may have."""
        return self._routes.service.connection(deadline_in(timeout)).max_message

    def find_batch(
        self,
        topic: TopicName,
        partition: int,
        named: tuple[str, int],
        after: Position | None,
        timeout: float,
    ) -> Receipt | None:
        """Return where a batch is; see `FindsBatches`."""
        start = BEGINNING if after is None else EntryPosition(after.ledger, after.entry + 1)
        return find_batch(self._routes, topic, partition, named, start, deadline_in(timeout))

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return the number of partitions; see the protocol."""
        return count_partitions(self._routes.service, topic, deadline_in(timeout))

    def subscribe(self, subscription: Subscription, start: Start | int, timeout: float) -> None:
        """Make the subscription exist on all partitions; see the protocol."""
        deadline = deadline_in(timeout)
        if self._is_ours(deadline):
            self._commands.subscribe(subscription, start, deadline)
        elif isinstance(start, Start):
            make_subscription(self._routes, subscription, start, deadline)
        else:
            self._admin(deadline).subscribe(subscription, start, deadline)

    def reset(self, subscription: Subscription, to: ResetTarget, timeout: float) -> None:
        """Move an existing subscription; see the protocol."""
        deadline = deadline_in(timeout)
        self._recall(subscription.topic, subscription.name, timeout)
        self._admin(deadline).reset(subscription, to, deadline)

    def unsubscribe(self, subscription: Subscription, timeout: float) -> None:
        """Forget the subscription on all partitions; see the protocol."""
        deadline = deadline_in(timeout)
        self._recall(subscription.topic, subscription.name, timeout)
        if self._is_ours(deadline):
            self._commands.unsubscribe(subscription, deadline)
        else:
            end_subscription(self._routes, subscription, deadline)

    def consume(self, grant: Grant, mailbox: Mailbox, timeout: float) -> PulsarConsumer:
        """Open one partition of an existing subscription exclusively; see the protocol."""
        now = time.monotonic()
        deadline, busy_until = now + timeout, now + min(timeout / 2, BUSY_SECONDS)
        topic = str(grant.subscription.topic.partition(grant.partition))
        evicting, name, pauses = False, "", _PAUSES
        while True:
            until = deadline if evicting else min(deadline, time.monotonic() + ANSWER_SECONDS)
            try:
                connection = self._routes.connection(topic, deadline)
                consumer = PulsarConsumer(
                    connection,
                    connection.next_id(),
                    grant.partition,
                    grant.generation,
                    mailbox,
                    self._max_inflated,
                )
                name = consumer.name
                attach(connection, consumer, topic, grant.subscription.name, deadline=until)
            except BackendTimeoutError:
                if evicting or time.monotonic() >= deadline:
                    raise
                evicting = True
                self._evict(grant, name)
            except SubscriptionBusyError:
                # Another connection's consumer may be on its way out.
                if not pauses.sleep(busy_until):
                    raise
            except (PulsarConnectionLostError, ElsewhereError):
                if not pauses.sleep(deadline):
                    raise
                self._routes.forget(topic)
            else:
                return consumer

    def _evict(self, grant: Grant, asking: str) -> None:
        """Have a store that waits for the last holder's router end its connection, if it can.

        Apache Pulsar gives it `connectionLivenessCheckTimeoutMillis`, 5 s, to answer.
        """
        try:
            until = deadline_in(EVICT_SECONDS)
            self._admin(until).evict(grant.subscription, grant.partition, asking, until)
        except RouterError as error:
            # Takes a third of the time in which Spark's workers import all of this; this is rare.
            import structlog  # noqa: PLC0415

            log = structlog.get_logger(__name__)
            log.info("a stale consumer is waited for", reason=str(error))

    def read(
        self, topic: TopicName, partition: int, start: ReadStart, mailbox: Mailbox, timeout: float
    ) -> PulsarReader:
        """Open a reader at a position, an end or a time; see the protocol."""
        opening = Opening(topic, partition, start, mailbox, self._max_inflated)
        return PulsarReader(self._routes, opening, deadline_in(timeout))

    def extents(
        self, requests: ExtentRequests, timeout: float
    ) -> dict[TopicName, list[EntryExtent]]:
        """Return where each partition of topics begins and ends, and ranges of some of them.

        Topics that do not exist are left out. Of Apache Pulsar a range is so many entries, not
        messages, and begins at no message's number: NotSupportedError. Raises NotAllowedError
        where the address names no administration.
        """
        deadline = deadline_in(timeout)
        return self._admin(deadline).extents(requests, deadline)

    def stream(
        self, topic: TopicName, partition: int, start: EntryPosition, timeout: float
    ) -> EntryStream:
        """Open a stream of whole entries, as they are stored; raise TopicNotFoundError."""
        return open_stream(self._routes, topic, partition, start, deadline_in(timeout))

    def acknowledge(
        self, subscription: Subscription, positions: Positions, cumulative: bool, timeout: float
    ) -> None:
        """Acknowledge these messages alone, or each with all before it; see the protocol."""
        deadline = deadline_in(timeout)
        self._admin(deadline).acknowledge(subscription, positions, cumulative, deadline)

    def cursors(self, subscription: Subscription, timeout: float) -> list[CursorState]:
        """Return where the subscription stands, by partition; see the protocol."""
        deadline = deadline_in(timeout)
        return self._admin(deadline).cursors(subscription, deadline)

    def create_topic(self, info: TopicInfo, timeout: float) -> None:
        """Create a topic; see the protocol."""
        deadline = deadline_in(timeout)
        self._admin(deadline).create(info, deadline)

    def create_on_demand(self, topic: TopicName, partitions: int, timeout: float) -> bool:
        """Create a topic that a client uses; see the protocol."""
        self.create_topic(TopicInfo(topic, partitions), timeout)
        return True

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; see the protocol."""
        deadline = deadline_in(timeout)
        self._recall(topic, None, timeout)
        self._admin(deadline).delete(topic, deadline)

    def capabilities(self, timeout: float) -> Capabilities:
        """Return what the store can do; see the protocol."""
        deadline = deadline_in(timeout)
        try:
            return self._admin(deadline).capabilities(deadline)
        except NotAllowedError as error:
            why = str(error)
            return Capabilities(why, why, why, why, why)

    def grow_topic(self, topic: TopicName, partitions: int, timeout: float) -> None:
        """Give a partitioned topic more partitions; see the protocol."""
        deadline = deadline_in(timeout)
        self._admin(deadline).grow(topic, partitions, deadline)

    def set_retention(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, timeout: float
    ) -> None:
        """Change what a topic keeps; see the protocol."""
        deadline = deadline_in(timeout)
        self._admin(deadline).retain(topic, ms, max_bytes, deadline)

    def list_topics(self, timeout: float, *, internal: bool = False) -> list[TopicInfo]:
        """Return all topics of all namespaces, by name; see the protocol."""
        deadline = deadline_in(timeout)
        return self._admin(deadline).topics(deadline, internal=internal)

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        """Return what a topic holds; see the protocol."""
        deadline = deadline_in(timeout)
        return self._admin(deadline).describe(topic, deadline)

    def ready(self, timeout: float) -> None:
        """Return if the broker answers a question; see the protocol.

        Our own broker says as well whether its disk is full, to whom may ask.
        """
        deadline = deadline_in(timeout)
        try:
            count_partitions(self._routes.service, _PROBE, deadline)
        except TopicNotFoundError:
            pass  # an answer like any other
        if self._is_ours(deadline):
            with suppress(NotAllowedError):
                self._commands.check_space(deadline)
        if self.rest_is_assumed:
            self._check_assumed(deadline_in(timeout))

    def close(self) -> None:
        """Release what this backend opened; see the protocol."""
        self._producers.close()
        self._routes.close()

    def _is_ours(self, deadline: float) -> bool:
        return self._routes.service.connection(deadline).ours

    def _check_assumed(self, deadline: float) -> None:
        """Raise BackendUnavailableError if there is no administration at the default address."""
        if self._is_ours(deadline):
            self.rest_is_assumed = False
            return
        try:
            self._admin(deadline).check(deadline)
        except RouterError as error:
            reason = f"{error}. {NAME_ADMIN}"
            if not self._missing_logged:
                import structlog  # noqa: PLC0415 - see `_evict`

                log = structlog.get_logger(__name__)
                log.warning("pulsar-administration-missing", reason=reason)
                self._missing_logged = True
            raise BackendUnavailableError(reason) from error
        self.rest_is_assumed = False

    def _admin(self, deadline: float) -> BrokerAdmin | RestAdmin:
        """Return what administers topics and cursors: a broker of ours does by itself."""
        if self._is_ours(deadline):
            return self._commands
        if self._rest is not None:
            return self._rest
        raise NotAllowedError(NO_ADMIN)
