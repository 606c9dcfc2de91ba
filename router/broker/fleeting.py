"""Topics that are not persistent: who is connected gets what is sent, and nothing is ever stored.

Theory of operation. A topic is there as long as it has a producer or a consumer, and a subscription
as long as it has a consumer. What is sent goes to one consumer of each subscription, at once; where
that one has no permit, or its connection takes nothing now, it is dropped and counted. So there is
no ledger, no cursor, and no way to go back.

These are objects of their own, not partitions without a ledger: nearly all that a partition does is
about what is stored, and the path of stored messages would have to ask at each step which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.broker.namespaces import namespace_of
from router.errors import ConflictError, SubscriptionBusyError, SubscriptionLimitError
from router.model import TopicName

DOMAIN: Final = "non-persistent"
_PREFIX: Final = f"{DOMAIN}://"


class Receiver(Protocol):
    """The connection of a consumer. No call waits."""

    @property
    def writable(self) -> bool:
        """Tell whether it takes more now."""
        ...

    @property
    def peer(self) -> str:
        """Tell people where the client is."""
        ...

    def send_message(self, consumer: Consumer, payload: bytes) -> None:
        """Send a message to the client."""
        ...

    def activity_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell the client whether it is the one that a failover subscription delivers to."""
        ...

    def consumer_closed(self, consumer: Consumer) -> None:
        """Tell the client that the broker let go of its consumer."""
        ...


class Sender(Protocol):
    """The connection of a producer."""

    @property
    def peer(self) -> str:
        """Tell people where the client is."""
        ...

    def producer_closed(self, producer: Producer) -> None:
        """Tell the client that the broker let go of its producer."""
        ...


@dataclass(slots=True, eq=False)
class Producer:
    """A client's producer."""

    link: Sender
    producer_id: int
    name: str
    topic: Topic
    # Milliseconds since 1970.
    since_ms: int = 0
    # What the client says of it, for statistics.
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Consumer:
    """A client's consumer; `dropped` counts what it missed."""

    link: Receiver
    consumer_id: int
    name: str
    subscription: Subscription
    priority: int = 0
    permits: int = 0
    dropped: int = 0
    # Milliseconds since 1970.
    since_ms: int = 0
    # What the client says of it, for statistics.
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Tell whether a message can be sent to it."""
        return self.permits > 0 and self.link.writable


class Subscription:
    """The consumers that share what is sent; `kind` in Pulsar's words."""

    def __init__(self, topic: Topic, name: str, kind: str) -> None:
        self.topic = topic
        self.name = name
        self.kind = kind
        self.consumers: list[Consumer] = []
        self.dropped = 0
        self._turn = 0

    @property
    def keyed(self) -> bool:
        """Tell whether a message's key decides who gets it."""
        return self.kind == "Key_Shared"

    def attach(self, consumer: Consumer, kind: str) -> None:
        """Take a consumer in; raise SubscriptionBusyError."""
        if kind != self.kind:
            raise SubscriptionBusyError(
                f"Subscription is of different type. Active subscription type of '{self.kind}' is"
                f" different than the connecting consumer's type '{kind}'."
            )
        if kind == "Exclusive" and self.consumers:
            raise SubscriptionBusyError("Exclusive consumer is already connected")
        before = self._active()
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda c: (c.priority, c.name))
        if kind == "Failover":
            self._announce(before, consumer)

    def detach(self, consumer: Consumer) -> None:
        """Let a consumer go; the subscription goes with the last one."""
        if consumer not in self.consumers:
            return
        before = self._active()
        self.consumers.remove(consumer)
        if self.kind == "Failover":
            self._announce(before, None)
        if not self.consumers:
            self.topic.left(self)

    def deliver(self, payload: bytes, messages: int, slot: int) -> None:
        """Send to whose turn it is, or drop."""
        consumer = self._chosen(slot)
        if consumer is not None and consumer.ready:
            consumer.permits -= messages
            consumer.link.send_message(consumer, payload)
            return
        self.dropped += messages
        if consumer is not None:
            consumer.dropped += messages

    def _chosen(self, slot: int) -> Consumer | None:
        if self.kind in {"Exclusive", "Failover"}:
            return self._active()
        if self.keyed:
            return self.consumers[slot % len(self.consumers)]
        self._turn += 1
        ready = [c for c in self.consumers if c.ready]
        first = [c for c in ready if c.priority == ready[0].priority]
        return first[self._turn % len(first)] if first else None

    def _active(self) -> Consumer | None:
        return self.consumers[0] if self.consumers else None

    def _announce(self, before: Consumer | None, came: Consumer | None) -> None:
        active = self._active()
        if active is not before:
            for consumer in (before, active):
                if consumer in self.consumers and consumer is not came:
                    consumer.link.activity_changed(consumer, consumer is active)
        if came is not None:
            came.link.activity_changed(came, came is active)


@dataclass(slots=True, eq=False)
class Topic:
    """A topic while somebody uses it; messages and bytes (`size`) that came in, and drops."""

    name: TopicName
    unused: Callable[[Topic], None]
    max_groups: int
    producers: dict[str, Producer] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    messages: int = 0
    size: int = 0
    dropped: int = 0

    @property
    def keyed(self) -> bool:
        """Tell whether any subscription needs the key of a message."""
        return any(subscription.keyed for subscription in self.subscriptions.values())

    def publish(self, payload: bytes, messages: int, slot: int) -> None:
        """Hand a message to every subscription."""
        self.messages += messages
        self.size += len(payload)
        if not self.subscriptions:
            self.dropped += messages
        # A consumer that is closed in between changes the table.
        for subscription in list(self.subscriptions.values()):
            subscription.deliver(payload, messages, slot)

    def add_producer(self, producer: Producer) -> None:
        """Take a producer in; raise ConflictError if its name is taken."""
        if producer.name in self.producers:
            raise ConflictError(
                f"Producer with name '{producer.name}' is already connected to topic"
            )
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """Let a producer go."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            self._look()

    def subscription(self, name: str, kind: str) -> Subscription:
        """Return a subscription, made if it is not there; raise SubscriptionLimitError."""
        found = self.subscriptions.get(name)
        if found is None:
            if len(self.subscriptions) >= self.max_groups:
                raise SubscriptionLimitError(
                    f"the topic has {self.max_groups} subscriptions already"
                )
            found = self.subscriptions[name] = Subscription(self, name, kind)
        return found

    def left(self, subscription: Subscription) -> None:
        """Forget a subscription without consumers."""
        self.dropped += subscription.dropped
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        self._look()

    def close(self) -> None:
        """Let everybody go, telling them so."""
        for producer in list(self.producers.values()):
            producer.link.producer_closed(producer)
        for subscription in list(self.subscriptions.values()):
            for consumer in list(subscription.consumers):
                consumer.link.consumer_closed(consumer)
        self.producers.clear()
        self.subscriptions.clear()
        self._look()

    def _look(self) -> None:
        if not self.producers and not self.subscriptions:
            self.unused(self)


class FleetingTopics:
    """All topics of the node that are not persistent."""

    def __init__(self, max_groups: int) -> None:
        self._max_groups = max_groups
        self._topics: dict[str, Topic] = {}

    @staticmethod
    def serves(text: str) -> bool:
        """Tell whether a name is the name of such a topic."""
        return text.startswith(_PREFIX)

    def find(self, name: TopicName) -> Topic | None:
        """Return a topic that somebody uses."""
        return self._topics.get(str(name))

    def get(self, name: TopicName) -> Topic:
        """Return a topic, made if it is not there: it goes again if nobody comes to use it."""
        found = self._topics.get(str(name))
        if found is None:
            found = self._topics[str(name)] = Topic(name, self._forget, self._max_groups)
        return found

    def names(self, namespace: str, matches: Callable[[str], bool] | None = None) -> list[str]:
        """Return the names of the topics of a namespace, or of those that match."""
        return [
            name
            for name, topic in sorted(self._topics.items())
            if namespace_of(topic.name) == namespace and (matches is None or matches(name))
        ]

    def _forget(self, topic: Topic) -> None:
        if self._topics.get(str(topic.name)) is topic:
            del self._topics[str(topic.name)]
