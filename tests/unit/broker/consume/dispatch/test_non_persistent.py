"""Topics that are not persistent: which consumer gets what is sent, and what is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from router.broker.consume import (
    ClientConsumer,
    NameBusyError,
    Producer,
    ProducerAccess,
    SubscriptionType,
)
from router.broker.consume.consumer import KeyPolicy
from router.broker.consume.dispatch.non_persistent import (
    NonPersistentPartition,
    NonPersistentSubscription,
)
from router.broker.consume.membership.key_slots import HashRangeError
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import PULSAR_FORMAT, Entry
from router.broker.topics.non_persistent import NonPersistentTopics
from router.errors import NotAllowedError, SubscriptionBusyError, SubscriptionLimitError
from router.model import Message, TopicName
from router.wire.pulsar import pack

T = TopicName("public", "default", "t", "non-persistent")


class Client:
    """A connection that remembers what it was sent."""

    entry_format = PULSAR_FORMAT

    def __init__(self) -> None:
        self.writable = True
        self.got: list[bytes] = []
        self.notices: list[tuple[str, object]] = []
        self.probes = 0

    def when_writable(self, resume: Callable[[], None]) -> None:
        raise AssertionError("nothing waits for a connection")

    def deliver(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        assert consumer.link is self
        assert (entry.entry_id, redeliveries, ack_set) == (0, 0, ())
        self.got.append(entry.payload)

    def activity_changed(self, consumer: ClientConsumer, active: bool) -> None:
        self.notices.append((consumer.name, active))

    def prepare(self, ledger_id: int, entries: Sequence[Entry]) -> asyncio.Future[Any] | None:
        return None

    def consumer_closed(self, consumer: ClientConsumer) -> None:
        self.notices.append((consumer.name, "closed"))

    def reached_end(self, consumer: ClientConsumer) -> None:
        raise AssertionError(f"{consumer.name} has no end")

    def producer_closed(self, producer: Producer) -> None:
        self.notices.append((producer.name, "closed"))

    def producer_turn(self, producer: Producer) -> None:
        raise AssertionError(f"{producer.name} waits for nothing")

    def producer_failed(self, producer: Producer, failure: Exception) -> None:
        raise failure

    def probe(self, *, soon: bool = False) -> None:
        self.probes += 1


@pytest.fixture
def topics() -> NonPersistentTopics:
    return NonPersistentTopics(ENTRY_FORMATS, 2)


Join = Callable[..., ClientConsumer]


def opened(topics: NonPersistentTopics) -> NonPersistentPartition:
    return topics.open(T)


def subscription_of(topics: NonPersistentTopics) -> NonPersistentSubscription:
    return opened(topics).subscriptions["s"]


@pytest.fixture
def join(topics: NonPersistentTopics) -> Join:
    def join(
        client: Client, kind: SubscriptionType, name: str = "c", **fields: Any
    ) -> ClientConsumer:
        consumer = ClientConsumer(client, 1, name, **fields)
        opened(topics).subscription("s", kind).attach(consumer, kind)
        return consumer

    return join


def producer(
    client: Client, name: str = "p", access: ProducerAccess = ProducerAccess.SHARED
) -> Producer:
    return Producer(client, 1, name, 0, generated=False, deduplicated=False, access=access)


def publish(
    topics: NonPersistentTopics, *payloads: bytes, messages: int = 1
) -> NonPersistentPartition:
    topic = opened(topics)
    for payload in payloads:
        done: list[int] = []
        assert topic.append(payload, PULSAR_FORMAT, messages, 1_000, done.append) == 0
        assert done == [0]
    return topic


def test_message_goes_to_a_consumer_with_permits_and_is_dropped_otherwise(
    topics: NonPersistentTopics, join: Join
) -> None:
    client = Client()
    consumer = join(client, SubscriptionType.EXCLUSIVE, permits=2)
    topic = publish(topics, b"a", b"b", b"c")
    assert client.got == [b"a", b"b"]
    subscription_of(topics).flow(consumer, 5)
    client.writable = False
    publish(topics, b"d")
    client.writable = True
    publish(topics, b"e")
    assert client.got == [b"a", b"b", b"e"]
    assert consumer.dropped == 2
    subscription_of(topics).detach(consumer)
    assert (topic.messages, topic.bytes, topic.dropped) == (5, 5, 2)


def test_batch_takes_as_many_permits_as_it_has_messages(
    topics: NonPersistentTopics, join: Join
) -> None:
    client = Client()
    consumer = join(client, SubscriptionType.EXCLUSIVE, permits=2)
    publish(topics, b"batch", messages=5)
    publish(topics, b"more")
    assert (client.got, consumer.permits) == ([b"batch"], -3)


@pytest.mark.parametrize(
    "kinds",
    [
        (SubscriptionType.EXCLUSIVE, SubscriptionType.EXCLUSIVE),
        (SubscriptionType.SHARED, SubscriptionType.FAILOVER),
    ],
)
def test_subscription_is_busy_when_consumers_do_not_go_together(
    join: Join, kinds: tuple[SubscriptionType, SubscriptionType]
) -> None:
    join(Client(), kinds[0])
    with pytest.raises(SubscriptionBusyError):
        join(Client(), kinds[1])


def test_exclusive_consumer_is_probed_when_another_wants_its_place(join: Join) -> None:
    client = Client()
    join(client, SubscriptionType.EXCLUSIVE)
    with pytest.raises(SubscriptionBusyError):
        join(Client(), SubscriptionType.EXCLUSIVE)
    assert client.probes == 1


def test_shared_consumers_take_turns_and_those_that_are_not_ready_are_passed_over(
    topics: NonPersistentTopics, join: Join
) -> None:
    one, two, spare = Client(), Client(), Client()
    join(one, SubscriptionType.SHARED, "a", permits=2)
    join(two, SubscriptionType.SHARED, "b", permits=4)
    join(spare, SubscriptionType.SHARED, "c", permits=9, priority=1)
    publish(topics, *(b"%d" % n for n in range(8)))
    assert (len(one.got), len(two.got), len(spare.got)) == (2, 4, 2)
    assert sorted(one.got + two.got) == [b"%d" % n for n in range(6)]


def test_failover_follows_priority_and_name_and_sends_a_notice(
    topics: NonPersistentTopics, join: Join
) -> None:
    client, other = Client(), Client()
    join(client, SubscriptionType.FAILOVER, "b", permits=9)
    join(other, SubscriptionType.FAILOVER, "a", permits=9)
    assert client.notices == [("b", True), ("b", False)]
    assert other.notices == [("a", True)]
    publish(topics, b"x")
    assert (client.got, other.got) == ([], [b"x"])
    subscription_of(topics).detach(subscription_of(topics).consumers[0])
    assert client.notices[-1] == ("b", True)
    publish(topics, b"y")
    assert client.got == [b"y"]


def test_key_decides_among_key_shared_consumers(topics: NonPersistentTopics, join: Join) -> None:
    clients = {name: Client() for name in "ab"}
    for name, client in clients.items():
        join(client, SubscriptionType.KEY_SHARED, name, permits=1_000)
    keys = [b"key-%d" % (n % 50) for n in range(200)]
    publish(topics, *(pack([Message(b"v", key)], "p", 0, 1) for key in keys))
    taken = [set(client.got) for client in clients.values()]
    assert not taken[0] & taken[1]
    assert all(taken)
    assert sum(len(client.got) for client in clients.values()) == 200


def test_sticky_consumers_have_the_ranges_that_they_ask_for(
    topics: NonPersistentTopics, join: Join
) -> None:
    with pytest.raises(HashRangeError):
        join(Client(), SubscriptionType.KEY_SHARED, keys=KeyPolicy(sticky=True))
    assert topics.find(T) is None
    client = Client()
    everything = KeyPolicy(sticky=True, ranges=((0, 65_535),))
    join(client, SubscriptionType.KEY_SHARED, permits=9, keys=everything)
    with pytest.raises(HashRangeError):
        join(Client(), SubscriptionType.KEY_SHARED, keys=everything)
    publish(topics, pack([Message(b"v", b"k")], "p", 0, 1))
    assert len(client.got) == 1


def test_topic_exists_as_long_as_it_has_a_client(topics: NonPersistentTopics, join: Join) -> None:
    client = Client()
    first = producer(client)
    opened(topics).producers.add(first)
    with pytest.raises(NameBusyError):
        opened(topics).producers.add(producer(Client()))
    consumer = join(client, SubscriptionType.SHARED)
    opened(topics).producers.remove(first)
    assert topics.names("public/default") == [str(T)]
    assert topics.names("public/default", lambda _: False) == []
    assert topics.names("public/other") == []
    subscription_of(topics).detach(consumer)
    assert topics.find(T) is None


def test_topic_that_no_client_could_attach_to_does_not_stay(topics: NonPersistentTopics) -> None:
    with pytest.raises(NotAllowedError):
        topics.open(T).producers.add(producer(Client(), access=ProducerAccess.EXCLUSIVE))
    assert topics.find(T) is None


def test_clients_are_closed_when_the_topic_is_deleted(
    topics: NonPersistentTopics, join: Join
) -> None:
    client = Client()
    opened(topics).producers.add(producer(client))
    join(client, SubscriptionType.SHARED)
    opened(topics).close()
    assert client.notices == [("p", "closed"), ("c", "closed")]
    assert topics.find(T) is None


def test_drops_of_a_subscription_that_is_deleted_count_once(
    topics: NonPersistentTopics, join: Join
) -> None:
    consumer = join(Client(), SubscriptionType.EXCLUSIVE)
    topic, subscription = opened(topics), subscription_of(topics)
    topic.producers.add(producer(Client()))
    publish(topics, b"a")
    subscription.detach(consumer)
    subscription.close()
    assert topic.dropped == 1


def test_topic_has_a_bounded_number_of_subscriptions(topics: NonPersistentTopics) -> None:
    topic = topics.open(T)
    for name in ("a", "b"):
        topic.subscription(name, SubscriptionType.SHARED)
    with pytest.raises(SubscriptionLimitError):
        topic.subscription("c", SubscriptionType.SHARED)
