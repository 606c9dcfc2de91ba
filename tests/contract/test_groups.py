"""What every backend promises about where subscriptions stand: starts at a time, resets."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.backends import Batch, Consumer, Start
from router.errors import (
    BadRequestError,
    ConsumerClosedError,
    FencedError,
    RouterError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import NOT_PARTITIONED, Grant, Message, Stored, Subscription, TopicName
from tests.contract.conftest import WAIT, Bell, Opened

pytestmark = pytest.mark.contract

MANY = 1_000
BYTES = 1 << 30
FAR = 4_000_000_000_000
"""In the year 2096."""


def publish(opened: Opened, topic: TopicName, *values: bytes, partition: int = -1) -> None:
    opened.backend.publish(Batch(topic, partition, [Message(value) for value in values]), WAIT)


def drain(consumer: Consumer) -> list[Stored]:
    return consumer.receive(MANY, BYTES, WAIT)


def waiting(opened: Opened, group: Subscription, partition: int = NOT_PARTITIONED) -> list[bytes]:
    """Return what a new consumer of the group receives."""
    consumer = opened.backend.consume(Grant(group, partition, 9), Bell(), WAIT)
    found = [stored.message.value for stored in drain(consumer)]
    consumer.close()
    return found


def next_ms(after: int = 0) -> int:
    """Return a time in ms that is later than all that was published, and wait until it is over."""
    now = max(after, time.time_ns() // 1_000_000) + 1
    while time.time_ns() // 1_000_000 <= now:
        time.sleep(0.001)
    return now


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 3), max_size=4),
    acknowledged=st.integers(0, 12),
    to=st.sampled_from([Start.EARLIEST, Start.LATEST, 0, FAR]),
    open_=st.booleans(),
)
def test_a_reset_decides_wherever_the_subscription_was(
    opened: Opened, sizes: list[int], acknowledged: int, to: Start | int, open_: bool
) -> None:
    topic = opened.new_topic()
    numbers = iter(range(MANY))
    for size in sizes:
        publish(opened, topic, *(b"%d" % next(numbers) for _ in range(size)))
    group = Subscription(topic, "g")
    consumer = opened.consumer(topic)
    received = drain(consumer)[:acknowledged]
    if received:
        consumer.acknowledge(received[-1].position, WAIT)
    if not open_:
        consumer.close()
    opened.backend.reset(group, to, WAIT)
    consumer.close()
    everything = [b"%d" % number for number in range(sum(sizes))]
    assert waiting(opened, group) == (everything if to in {Start.EARLIEST, 0} else [])
    publish(opened, topic, b"later")
    assert waiting(opened, group)[-1:] == [b"later"]


@pytest.mark.parametrize("to", [Start.EARLIEST, 0])
def test_what_was_received_before_a_reset_is_not_acknowledged_after_it(
    opened: Opened, to: Start | int
) -> None:
    topic, bell = opened.new_topic(), Bell()
    group = Subscription(topic, "g")
    publish(opened, topic, b"1", b"2")
    publish(opened, topic, b"3")
    consumer = opened.consumer(topic, bell=bell)
    last = drain(consumer)[-1].position
    bell.rang(0)
    opened.backend.reset(group, to, WAIT)
    assert bell.rang()
    with pytest.raises(FencedError):
        consumer.acknowledge(last, WAIT)
    with pytest.raises(ConsumerClosedError):
        drain(consumer)
    consumer.close()
    again = opened.backend.consume(Grant(group, NOT_PARTITIONED, 2), Bell(), WAIT)
    if opened.kind != "apache":  # which does not tell a position of before from one of after
        with pytest.raises(FencedError):
            again.acknowledge(last, WAIT)  # as a poll does with what `ack=next` left
    fresh = drain(again)
    assert [stored.message.value for stored in fresh] == [b"1", b"2", b"3"]
    again.acknowledge(fresh[1].position, WAIT)
    again.close()
    assert waiting(opened, group) == [b"3"]


def test_a_reset_wins_over_acknowledgements_that_race_with_it(opened: Opened) -> None:
    topic = opened.new_topic()
    group = Subscription(topic, "g")
    for number in range(20):
        publish(opened, topic, b"%d" % number)
    for _ in range(5):
        consumer = opened.consumer(topic)
        received, started = drain(consumer), threading.Event()

        def acknowledge(
            consumer: Consumer = consumer,
            received: list[Stored] = received,
            started: threading.Event = started,
        ) -> None:
            for stored in received:
                started.set()
                try:
                    consumer.acknowledge(stored.position, WAIT)
                except FencedError:
                    return

        thread = threading.Thread(target=acknowledge)
        thread.start()
        assert started.wait(WAIT)
        opened.backend.reset(group, Start.EARLIEST, WAIT)
        thread.join(WAIT)
        consumer.close()
        assert len(waiting(opened, group)) == 20


def test_whoever_reads_during_a_reset_is_told_that_the_consumer_is_closed(opened: Opened) -> None:
    topic = opened.new_topic()
    group = Subscription(topic, "g")
    publish(opened, topic, b"1", b"2")
    ended: list[type[Exception]] = []

    def read(consumer: Consumer, started: threading.Event) -> None:
        try:
            while True:
                drain(consumer)
                started.set()
        except RouterError as error:
            ended.append(type(error))

    for _ in range(10):
        consumer, started = opened.consumer(topic), threading.Event()
        thread = threading.Thread(target=read, args=(consumer, started))
        thread.start()
        assert started.wait(WAIT)
        opened.backend.reset(group, Start.EARLIEST, WAIT)
        thread.join(WAIT)
        consumer.close()
    assert ended == [ConsumerClosedError] * 10


def test_a_start_at_a_time_is_the_first_message_since(opened: Opened) -> None:
    topic = opened.new_topic()
    before = next_ms()
    publish(opened, topic, b"1")
    between = next_ms()
    publish(opened, topic, b"2", b"3")
    after = next_ms()
    expected = {
        0: [b"1", b"2", b"3"],
        before: [b"1", b"2", b"3"],
        between: [b"2", b"3"],
        after: [],
        FAR: [],
    }
    for number, (start, left) in enumerate(expected.items()):
        group = Subscription(topic, f"new-{number}")
        opened.backend.subscribe(group, start, WAIT)
        opened.backend.subscribe(group, Start.EARLIEST, WAIT)
        assert waiting(opened, group) == left
        moved = Subscription(topic, "moved")
        opened.backend.subscribe(moved, Start.LATEST, WAIT)
        opened.backend.reset(moved, start, WAIT)
        assert waiting(opened, moved) == left


def test_the_time_of_a_message_is_its_publish_time(opened: Opened) -> None:
    topic = opened.new_topic()
    for value in (b"1", b"2", b"3"):
        publish(opened, topic, value)
        next_ms()
    group = Subscription(topic, "g")
    consumer = opened.consumer(topic)
    received = drain(consumer)
    consumer.close()
    for stored in received:
        opened.backend.reset(group, stored.publish_time, WAIT)
        assert waiting(opened, group)[0] == stored.message.value


def test_a_reset_moves_all_partitions(opened: Opened) -> None:
    topic = opened.new_topic(3)
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, Start.LATEST, WAIT)
    for partition in range(3):
        publish(opened, topic, b"%d" % partition, partition=partition)
    opened.backend.reset(group, Start.LATEST, WAIT)
    assert [waiting(opened, group, partition) for partition in range(3)] == [[], [], []]
    opened.backend.reset(group, Start.EARLIEST, WAIT)
    assert [waiting(opened, group, partition) for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]


@pytest.mark.parametrize("open_", [False, True])
def test_a_reset_to_a_message_goes_on_with_it(opened: Opened, open_: bool) -> None:
    topic = opened.new_topic()
    group = Subscription(topic, "g")
    for value in (b"1", b"2", b"3"):
        publish(opened, topic, value)
    consumer = opened.consumer(topic)
    received = drain(consumer)
    consumer.acknowledge(received[-1].position, WAIT)
    if not open_:
        consumer.close()
    for stored in reversed(received):
        opened.backend.reset(group, (stored.position,), WAIT)
        consumer.close()
        assert waiting(opened, group)[0] == stored.message.value
    with pytest.raises(RouterError):
        consumer.acknowledge(received[-1].position, WAIT)
    last = received[-1].position
    opened.backend.reset(group, (replace(last, entry=last.entry + 1),), WAIT)
    assert waiting(opened, group) == []


def test_a_reset_to_a_message_moves_its_partition_alone(opened: Opened) -> None:
    topic = opened.new_topic(3)
    group = Subscription(topic, "g")
    for partition in range(3):
        publish(opened, topic, b"a%d" % partition, partition=partition)
        publish(opened, topic, b"b%d" % partition, partition=partition)
    opened.backend.subscribe(group, Start.EARLIEST, WAIT)
    places = []
    for partition in range(3):
        consumer = opened.backend.consume(Grant(group, partition, 1), Bell(), WAIT)
        received = drain(consumer)
        consumer.acknowledge(received[-1].position, WAIT)
        places.append([stored.position for stored in received])
        consumer.close()
    opened.backend.reset(group, (places[0][1], places[2][0]), WAIT)
    assert [waiting(opened, group, partition) for partition in range(3)] == [
        [b"b0"],
        [],
        [b"a2", b"b2"],
    ]
    with pytest.raises(BadRequestError):
        opened.backend.reset(group, (replace(places[0][0], partition=7),), WAIT)
    assert waiting(opened, group, 0) == [b"b0"]


def test_a_reset_leaves_other_subscriptions_alone(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1")
    other = Subscription(topic, "other")
    opened.backend.subscribe(other, Start.LATEST, WAIT)
    consumer = opened.consumer(topic)
    opened.backend.reset(Subscription(topic, "g"), Start.EARLIEST, WAIT)
    consumer.close()
    assert waiting(opened, other) == []


def test_a_reset_of_what_is_not_there_is_refused(opened: Opened) -> None:
    topic = opened.new_topic()
    with pytest.raises(SubscriptionNotFoundError):
        opened.backend.reset(Subscription(topic, "never"), Start.LATEST, WAIT)
    with pytest.raises(TopicNotFoundError):
        opened.backend.reset(Subscription(opened.new_name(), "g"), 0, WAIT)


def test_a_subscription_that_is_read_is_not_ended(opened: Opened) -> None:
    topic = opened.new_topic()
    consumer = opened.consumer(topic)
    with pytest.raises(SubscriptionBusyError):
        opened.backend.unsubscribe(Subscription(topic, "g"), WAIT)
    consumer.close()
    opened.backend.unsubscribe(Subscription(topic, "g"), WAIT)
    assert opened.backend.describe_topic(topic, WAIT).subscriptions == ()
