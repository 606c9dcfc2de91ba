"""Topics that are not persistent: who gets what is sent, and what is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from router.broker.fleeting import Consumer, FleetingTopics, Producer, Topic
from router.errors import ConflictError, SubscriptionBusyError, SubscriptionLimitError
from router.model import TopicName

T = TopicName("public", "default", "t", "non-persistent")


class Client:
    """A connection that remembers what it was told."""

    def __init__(self) -> None:
        self.peer = "here"
        self.writable = True
        self.got: list[bytes] = []
        self.told: list[tuple[str, object]] = []

    def send_message(self, consumer: Consumer, payload: bytes) -> None:
        assert consumer.link is self
        self.got.append(payload)

    def activity_changed(self, consumer: Consumer, active: bool) -> None:
        self.told.append((consumer.name, active))

    def consumer_closed(self, consumer: Consumer) -> None:
        self.told.append((consumer.name, "closed"))

    def producer_closed(self, producer: Producer) -> None:
        self.told.append((producer.name, "closed"))


@pytest.fixture
def topics() -> FleetingTopics:
    return FleetingTopics(2)


Join = Callable[..., Consumer]


@pytest.fixture
def join(topics: FleetingTopics) -> Join:
    def join(client: Client, kind: str, name: str = "c", **fields: Any) -> Consumer:
        subscription = topics.get(T).subscription("s", kind)
        consumer = Consumer(client, 1, name, subscription, **fields)
        subscription.attach(consumer, kind)
        return consumer

    return join


def publish(topics: FleetingTopics, *payloads: bytes, slot: int = 0) -> Topic:
    topic = topics.get(T)
    for payload in payloads:
        topic.publish(payload, 1, slot)
    return topic


def test_message_goes_to_a_consumer_with_permits_and_is_dropped_otherwise(
    topics: FleetingTopics, join: Join
) -> None:
    client = Client()
    consumer = join(client, "Exclusive", permits=2)
    topic = publish(topics, b"a", b"b", b"c")
    assert client.got == [b"a", b"b"]
    consumer.permits = 5
    client.writable = False
    publish(topics, b"d")
    client.writable = True
    publish(topics, b"e")
    assert client.got == [b"a", b"b", b"e"]
    assert consumer.dropped == 2
    consumer.subscription.detach(consumer)
    assert (topic.messages, topic.size, topic.dropped) == (5, 5, 2)


def test_batch_takes_as_many_permits_as_it_has_messages(topics: FleetingTopics, join: Join) -> None:
    client = Client()
    consumer = join(client, "Exclusive", permits=2)
    topics.get(T).publish(b"batch", 5, 0)
    topics.get(T).publish(b"more", 1, 0)
    assert (client.got, consumer.permits) == ([b"batch"], -3)


@pytest.mark.parametrize("kinds", [("Exclusive", "Exclusive"), ("Shared", "Failover")])
def test_subscription_is_busy_when_consumers_do_not_go_together(
    join: Join, kinds: tuple[str, str]
) -> None:
    join(Client(), kinds[0])
    with pytest.raises(SubscriptionBusyError):
        join(Client(), kinds[1])


def test_shared_consumers_take_turns_and_pass_over_who_is_not_ready(
    topics: FleetingTopics, join: Join
) -> None:
    one, two, spare = Client(), Client(), Client()
    join(one, "Shared", "a", permits=2)
    join(two, "Shared", "b", permits=4)
    join(spare, "Shared", "c", permits=9, priority=1)
    publish(topics, *(b"%d" % n for n in range(8)))
    assert (len(one.got), len(two.got), len(spare.got)) == (2, 4, 2)
    assert sorted(one.got + two.got) == [b"%d" % n for n in range(6)]


def test_failover_follows_priority_and_name_and_says_so(topics: FleetingTopics, join: Join) -> None:
    client, other = Client(), Client()
    first = join(client, "Failover", "b", permits=9)
    join(other, "Failover", "a", permits=9)
    assert client.told == [("b", True), ("b", False)]
    assert other.told == [("a", True)]
    publish(topics, b"x")
    assert (client.got, other.got) == ([], [b"x"])
    first.subscription.detach(first.subscription.consumers[0])
    assert client.told[-1] == ("b", True)
    publish(topics, b"y")
    assert client.got == [b"y"]


def test_key_decides_among_key_shared_consumers(topics: FleetingTopics, join: Join) -> None:
    one, two = Client(), Client()
    join(one, "Key_Shared", "a", permits=9)
    join(two, "Key_Shared", "b", permits=9)
    assert topics.get(T).keyed
    publish(topics, b"x", b"x", slot=10)
    publish(topics, b"y", slot=11)
    assert (one.got, two.got) == ([b"x", b"x"], [b"y"])


def test_topic_is_there_as_long_as_somebody_uses_it(topics: FleetingTopics, join: Join) -> None:
    client = Client()
    producer = Producer(client, 1, "p", topics.get(T))
    producer.topic.add_producer(producer)
    with pytest.raises(ConflictError):
        producer.topic.add_producer(Producer(client, 2, "p", producer.topic))
    consumer = join(client, "Shared")
    producer.topic.remove_producer(producer)
    assert topics.names("public/default") == [str(T)]
    assert topics.names("public/default", lambda _: False) == []
    assert topics.names("public/other") == []
    consumer.subscription.detach(consumer)
    assert topics.find(T) is None


def test_everybody_is_let_go_when_the_topic_is_deleted(topics: FleetingTopics, join: Join) -> None:
    client = Client()
    producer = Producer(client, 1, "p", topics.get(T))
    producer.topic.add_producer(producer)
    join(client, "Shared")
    producer.topic.close()
    assert client.told == [("p", "closed"), ("c", "closed")]
    assert topics.find(T) is None


def test_topic_has_a_bounded_number_of_subscriptions(topics: FleetingTopics) -> None:
    for name in ("a", "b"):
        topics.get(T).subscription(name, "Shared")
    with pytest.raises(SubscriptionLimitError):
        topics.get(T).subscription("c", "Shared")
