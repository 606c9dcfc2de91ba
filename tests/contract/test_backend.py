"""What every backend promises, asked of each of them: router.backends.Backend."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.backends import Backend, Batch, Start
from router.errors import (
    BackendUnavailableError,
    FencedError,
    PublishRefusedError,
    SubscriptionBusyError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    Grant,
    Message,
    Position,
    Stored,
    Subscription,
    TopicInfo,
    TopicName,
)
from router.model.policies import Policies
from tests.contract.conftest import WAIT, Bell, Opened

pytestmark = pytest.mark.contract

MANY = 100_000
BYTES = 1 << 30

names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=5)
messages = st.tuples(
    st.binary(max_size=30),
    st.none() | st.binary(max_size=10),
    st.dictionaries(names, names, max_size=2),
    st.none() | st.integers(1, 2**41),
).map(lambda parts: Message(*parts))


def publish(opened: Opened, topic: TopicName, *values: bytes) -> Position:
    """Store these values together."""
    batch = Batch(topic, NOT_PARTITIONED, [Message(value) for value in values])
    return opened.backend.publish(batch, WAIT).position


def values(received: Sequence[Stored]) -> list[bytes]:
    return [stored.message.value for stored in received]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=st.lists(st.lists(messages, min_size=1, max_size=4), max_size=5))
def test_messages_come_back_as_they_were_sent_and_in_order(
    opened: Opened, batches: list[list[Message]]
) -> None:
    topic = opened.new_topic()
    for batch in batches:
        opened.backend.publish(Batch(topic, NOT_PARTITIONED, batch), WAIT)
    consumer = opened.consumer(topic)
    received = consumer.receive(MANY, BYTES, WAIT)
    consumer.close()
    assert [stored.message for stored in received] == [m for batch in batches for m in batch]
    positions = [stored.position for stored in received]
    assert positions == sorted(set(positions))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    limits=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_polls_that_acknowledge_what_they_took_see_each_message_once(
    opened: Opened, sizes: list[int], limits: list[int]
) -> None:
    topic = opened.new_topic()
    numbers = iter(range(MANY))
    for size in sizes:
        publish(opened, topic, *(b"%d" % next(numbers) for _ in range(size)))
    seen: list[bytes] = []
    for limit in limits:
        consumer = opened.consumer(topic)
        received = consumer.receive(limit, BYTES, WAIT)
        assert len(received) == min(limit, sum(sizes) - len(seen))
        if received:
            consumer.acknowledge(received[-1].position, WAIT)
        consumer.close()
        seen += values(received)
    assert seen == [b"%d" % number for number in range(len(seen))]


def test_what_was_not_acknowledged_comes_again(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2", b"3")
    publish(opened, topic, b"4")
    first = opened.consumer(topic)
    received = first.receive(MANY, BYTES, WAIT)
    first.acknowledge(received[1].position, WAIT)
    first.close()
    again = opened.consumer(topic)
    assert values(again.receive(MANY, BYTES, WAIT)) == [b"3", b"4"]
    again.close()


def test_a_position_that_another_consumer_received_can_be_acknowledged(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2", b"3")
    first = opened.consumer(topic)
    position = first.receive(2, BYTES, WAIT)[-1].position
    first.close()
    second = opened.consumer(topic)
    second.acknowledge(position, WAIT)
    second.close()
    third = opened.consumer(topic)
    assert values(third.receive(MANY, BYTES, WAIT)) == [b"3"]
    third.close()


def test_receive_goes_on_where_it_stopped(opened: Opened) -> None:
    topic = opened.new_topic()
    for number in range(50):
        publish(opened, topic, b"%da" % number, b"%db" % number)
    consumer = opened.consumer(topic)
    received = [consumer.receive(33, BYTES, WAIT) for _ in range(4)]
    consumer.close()
    assert [len(part) for part in received] == [33, 33, 33, 1]
    flat = [value for part in received for value in values(part)]
    assert flat == [b"%d%c" % (n, letter) for n in range(50) for letter in b"ab"]


def test_receive_stops_before_max_bytes(opened: Opened) -> None:
    topic = opened.new_topic()
    for _ in range(5):
        publish(opened, topic, bytes(100))
    consumer = opened.consumer(topic)
    assert len(consumer.receive(MANY, 250, WAIT)) == 2
    consumer.close()


def test_a_message_above_max_bytes_comes_alone(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, bytes(100), b"small")
    consumer = opened.consumer(topic)
    assert values(consumer.receive(MANY, 10, WAIT)) == [bytes(100)]
    consumer.close()


def test_receive_of_an_empty_topic_is_empty_at_once(opened: Opened) -> None:
    consumer = opened.consumer(opened.new_topic())
    assert consumer.receive(MANY, BYTES, WAIT) == []
    consumer.close()


def test_receive_after_everything_was_acknowledged_is_empty(opened: Opened) -> None:
    topic = opened.new_topic()
    position = publish(opened, topic, b"1")
    first = opened.consumer(topic)
    first.receive(MANY, BYTES, WAIT)
    first.acknowledge(position, WAIT)
    first.close()
    second = opened.consumer(topic)
    assert second.receive(MANY, BYTES, WAIT) == []
    second.close()


def test_an_arrival_wakes_the_mailbox(opened: Opened, bell: Bell) -> None:
    topic = opened.new_topic()
    consumer = opened.consumer(topic, bell=bell)
    for number in range(40):
        assert consumer.receive(1, BYTES, WAIT) == []
        publish(opened, topic, b"%d" % number)
        assert bell.rang()
        assert values(consumer.receive(1, BYTES, WAIT)) == [b"%d" % number]
    consumer.close()


def test_large_messages_come_within_the_bound_and_all(opened: Opened) -> None:
    topic = opened.new_topic()
    for _ in range(30):
        publish(opened, topic, bytes(200_000))
    consumer = opened.consumer(topic)
    counts = [len(consumer.receive(MANY, 1_000_000, WAIT)) for _ in range(6)]
    consumer.close()
    assert counts == [5] * 6


def test_a_new_subscription_at_latest_begins_with_what_comes(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"before")
    consumer = opened.consumer(topic, start=Start.LATEST)
    assert consumer.receive(MANY, BYTES, WAIT) == []
    publish(opened, topic, b"after")
    assert values(consumer.receive(MANY, BYTES, WAIT)) == [b"after"]
    consumer.close()


def test_subscribe_leaves_an_existing_subscription_as_it_is(opened: Opened) -> None:
    topic = opened.new_topic()
    opened.backend.subscribe(Subscription(topic, "g"), Start.EARLIEST, WAIT)
    publish(opened, topic, b"1")
    consumer = opened.consumer(topic, start=Start.LATEST)
    assert values(consumer.receive(MANY, BYTES, WAIT)) == [b"1"]
    consumer.close()


def test_subscriptions_are_independent(opened: Opened) -> None:
    topic = opened.new_topic()
    position = publish(opened, topic, b"1")
    first, second = opened.consumer(topic, group="a"), opened.consumer(topic, group="b")
    assert values(first.receive(MANY, BYTES, WAIT)) == [b"1"]
    first.acknowledge(position, WAIT)
    assert values(second.receive(MANY, BYTES, WAIT)) == [b"1"]
    first.close()
    second.close()


def test_subscribing_to_no_topic_is_refused(opened: Opened) -> None:
    with pytest.raises(TopicNotFoundError):
        opened.backend.subscribe(Subscription(opened.new_name(), "g"), Start.LATEST, WAIT)


def test_a_second_consumer_is_refused_while_the_first_is_open(opened: Opened) -> None:
    topic = opened.new_topic()
    first = opened.consumer(topic)
    with pytest.raises(SubscriptionBusyError):
        opened.backend.consume(Grant(Subscription(topic, "g"), NOT_PARTITIONED, 2), Bell(), 0.1)
    first.close()
    opened.consumer(topic).close()


def test_a_closed_consumer_acknowledges_nothing(opened: Opened) -> None:
    topic = opened.new_topic()
    position = publish(opened, topic, b"1")
    consumer = opened.consumer(topic)
    consumer.close()
    consumer.close()
    with pytest.raises(FencedError):
        consumer.acknowledge(position, WAIT)


def test_the_same_producer_and_sequence_are_stored_once(opened: Opened) -> None:
    topic = opened.new_topic()
    batch = Batch(topic, NOT_PARTITIONED, [Message(b"1"), Message(b"2")], "key-1", 0)
    first = opened.backend.publish(batch, WAIT)
    repeated = Batch(topic, NOT_PARTITIONED, [Message(b"other")], "key-1", 0)
    second = opened.backend.publish(repeated, WAIT)
    assert (first.stored, first.duplicate) == (2, False)
    # Apache Pulsar does not say of what the repeated append is a duplicate.
    known = (2, first.position) if opened.kind != "apache" else (1, Position(-1, -1))
    assert (second.duplicate, second.stored, second.position) == (True, *known)
    consumer = opened.consumer(topic)
    assert values(consumer.receive(MANY, BYTES, WAIT)) == [b"1", b"2"]
    consumer.close()


def test_where_an_older_sequence_is_stored_is_not_known(opened: Opened) -> None:
    """It is not where the last one of the producer is, unless that is not marked there yet."""
    topic = opened.new_topic()
    batches = [
        Batch(topic, NOT_PARTITIONED, [Message(b"%d" % number)], "key-1", number)
        for number in (0, 1, 0)
    ]
    first, _, receipt = [opened.backend.publish(batch, WAIT) for batch in batches]
    assert (receipt.duplicate, receipt.stored) == (True, 1)
    assert receipt.position.ledger < 0 or receipt.position == first.position
    consumer = opened.consumer(topic)
    assert values(consumer.receive(MANY, BYTES, WAIT)) == [b"0", b"1"]
    consumer.close()


def test_other_producers_and_later_sequences_are_stored(opened: Opened) -> None:
    topic = opened.new_topic()
    for producer, sequence in (("a", 0), ("a", 1), ("b", 0), ("b", 5)):
        value = f"{producer}{sequence}".encode()
        batch = Batch(topic, NOT_PARTITIONED, [Message(value)], producer, sequence)
        assert not opened.backend.publish(batch, WAIT).duplicate
    consumer = opened.consumer(topic)
    assert values(consumer.receive(MANY, BYTES, WAIT)) == [b"a0", b"a1", b"b0", b"b5"]
    consumer.close()


def test_publishers_at_once_lose_nothing_and_keep_their_order(opened: Opened) -> None:
    topic = opened.new_topic()

    def work(name: int) -> None:
        for number in range(20):
            publish(opened, topic, b"%d-%d" % (name, number))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    consumer = opened.consumer(topic)
    received = values(consumer.receive(MANY, BYTES, WAIT))
    consumer.close()
    for name in range(8):
        mine = [value for value in received if value.startswith(b"%d-" % name)]
        assert mine == [b"%d-%d" % (name, number) for number in range(20)]


def test_a_batch_above_what_an_entry_holds_is_refused(opened: Opened) -> None:
    topic = opened.new_topic()
    with pytest.raises(PublishRefusedError):
        publish(opened, topic, bytes(5 * 1024 * 1024 + 1))
    publish(opened, topic, b"fits")


def test_partitions_are_apart(opened: Opened) -> None:
    topic = opened.new_topic(partitions=3)
    for partition in range(3):
        batch = Batch(topic, partition, [Message(b"%d" % partition)])
        assert opened.backend.publish(batch, WAIT).position.partition == partition
    for partition in range(3):
        consumer = opened.consumer(topic, partition=partition)
        received = consumer.receive(MANY, BYTES, WAIT)
        consumer.close()
        assert values(received) == [b"%d" % partition]
        assert received[0].position.partition == partition


def test_publishing_creates_a_topic(opened: Opened) -> None:
    topic = opened.new_name()
    assert not opened.is_there(topic)
    publish(opened, topic, b"1")
    assert opened.backend.partitions(topic, WAIT) == 0


@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_a_topic_has_the_partitions_it_was_created_with(opened: Opened, partitions: int) -> None:
    # Every topic of Kafka has a partition: one of them is none for the router.
    wanted = 0 if opened.kind == "kafka" and partitions == 1 else partitions
    assert opened.backend.partitions(opened.new_topic(partitions), WAIT) == wanted


def test_creating_a_topic_twice_is_refused(opened: Opened) -> None:
    topic = opened.new_topic()
    with pytest.raises(TopicExistsError):
        opened.backend.create_topic(TopicInfo(topic), WAIT)


def test_a_deleted_topic_is_gone_with_its_messages(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"old")
    opened.consumer(topic).close()
    opened.backend.delete_topic(topic, WAIT)
    assert not opened.is_there(topic)
    with pytest.raises(TopicNotFoundError):
        opened.backend.delete_topic(topic, WAIT)
    publish(opened, topic, b"new")
    consumer = opened.consumer(topic)
    assert values(consumer.receive(MANY, BYTES, WAIT)) == [b"new"]
    consumer.close()


def test_deleting_a_topic_wakes_its_consumers_and_ends_them(opened: Opened, bell: Bell) -> None:
    topic = opened.new_topic()
    consumer = opened.consumer(topic, bell=bell)
    assert consumer.receive(MANY, BYTES, WAIT) == []
    opened.backend.delete_topic(topic, WAIT)
    assert bell.rang()
    with pytest.raises(BackendUnavailableError):
        consumer.receive(MANY, BYTES, WAIT)
    consumer.close()


def test_topics_are_listed_by_name_with_what_they_were_given(opened: Opened) -> None:
    topic = opened.new_name()
    # Apache Pulsar's policies are those of namespaces, and its lists tell no times.
    apache = opened.kind == "apache"
    policies = Policies(retention_ms=60_000, backlog_bytes=-1, cleanup_policy="compact,delete")
    policies = Policies() if apache else policies
    # Copies are asked for by clients of the original, whatever the store makes of it.
    asked = replace(policies, replicas=1)
    opened.backend.create_topic(TopicInfo(topic, 2, asked, {"owner": "me"}), WAIT)
    listed = opened.backend.list_topics(WAIT)
    assert [str(info.topic) for info in listed] == sorted(str(info.topic) for info in listed)
    (info,) = [info for info in listed if info.topic == topic]
    assert (info.partitions, info.properties) == (2, {"owner": "me"})
    assert replace(info.policies, replicas=None) == policies
    assert apache or info.created_ms > 0


def test_describing_a_topic_counts_messages_and_backlogs(opened: Opened) -> None:
    topic = opened.new_topic()
    consumer = opened.consumer(topic)
    for value in (b"1", b"2", b"3", b"4"):
        publish(opened, topic, value)
    received = consumer.receive(MANY, BYTES, WAIT)
    consumer.acknowledge(received[0].position, WAIT)
    stats = opened.backend.describe_topic(topic, WAIT)
    consumer.close()
    (partition,) = stats.partitions
    (subscription,) = stats.subscriptions
    assert (partition.partition, partition.messages) == (NOT_PARTITIONED, 4)
    assert partition.next_entry - partition.first_entry == 4
    assert (subscription.name, subscription.backlog, subscription.consumers) == ("g", 3, 1)


def test_describing_no_topic_is_refused(opened: Opened) -> None:
    with pytest.raises(TopicNotFoundError):
        opened.backend.describe_topic(opened.new_name(), WAIT)


def test_a_backend_that_serves_is_ready(opened: Opened) -> None:
    backend: Backend = opened.backend
    backend.ready(WAIT)
    assert backend.list_topics(WAIT) is not None
