"""What comes again: after a refusal, a timeout, a consumer that went; and what is given up."""

from __future__ import annotations

from typing import Any

import pulsar

from tests.interop.world import SOON, World, drain, receive

AT_ONCE: dict[str, Any] = {"negative_ack_redelivery_delay_ms": 100}

KINDS = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key_shared": pulsar.ConsumerType.KeyShared,
}


def refused_by_one_of_several(world: World) -> object:
    topic = world.topic()
    consumer = world.shared(topic, **AT_ONCE)
    world.publish(topic, 1)
    counts = []
    for _ in range(3):
        got = consumer.receive(SOON)
        counts.append(got.redelivery_count())
        consumer.negative_acknowledge(got)
    return counts


def refused_by_the_only_one(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic, **AT_ONCE)
    world.publish(topic, 3)
    got = [consumer.receive(SOON) for _ in range(3)]
    consumer.acknowledge(got[0])
    consumer.negative_acknowledge(got[1])
    again = [consumer.receive(SOON) for _ in range(2)]
    return [(one.data().decode(), one.redelivery_count()) for one in again]


def refused_within_a_batch(world: World) -> object:
    topic = world.topic()
    consumer = world.shared(topic, **AT_ONCE)
    world.publish_batch(topic, 3)
    got = [consumer.receive(SOON) for _ in range(3)]
    consumer.negative_acknowledge(got[1])
    first = consumer.receive(SOON).data().decode()
    return sorted([first, *drain(consumer, 2)])


def refused_within_a_batch_by_index(world: World) -> object:
    topic = world.topic()
    # The client sends acknowledgements 100 ms later, together; the refusal is to come behind them.
    consumer = world.shared(
        topic, batch_index_ack_enabled=True, negative_ack_redelivery_delay_ms=1000
    )
    world.publish_batch(topic, 3)
    got = [consumer.receive(SOON) for _ in range(3)]
    consumer.acknowledge(got[0])
    consumer.acknowledge(got[2])
    consumer.negative_acknowledge(got[1])
    again = consumer.receive(SOON)
    return again.data().decode(), again.redelivery_count()


def all_again_when_asked(world: World) -> object:
    seen = {}
    for name, kind in KINDS.items():
        topic = world.topic(name)
        consumer = world.consumer(topic, consumer_type=kind)
        world.publish(topic, 3)
        receive(consumer, 3, acknowledge=False)
        consumer.redeliver_unacknowledged_messages()
        again = [consumer.receive(SOON) for _ in range(3)]
        seen[name] = [(one.data().decode(), one.redelivery_count()) for one in again]
    return seen


def not_acknowledged_in_time(world: World) -> object:
    topic = world.topic()
    consumer = world.shared(topic, unacked_messages_timeout_ms=10_000)
    world.publish(topic, 2)
    first, second = consumer.receive(SOON), consumer.receive(SOON)
    consumer.acknowledge(first)
    again = consumer.receive(20_000)
    return second.data() == again.data(), again.redelivery_count()


def left_by_a_consumer_that_closes(world: World) -> object:
    seen = {}
    for name, kind in KINDS.items():
        topic = world.topic(name)
        first = world.consumer(topic, consumer_type=kind)
        world.publish(topic, 2)
        receive(first, 2, acknowledge=False)
        first.close()
        second = world.consumer(topic, consumer_type=kind)
        got = [second.receive(SOON) for _ in range(2)]
        seen[name] = [(one.data().decode(), one.redelivery_count()) for one in got]
    return seen


def left_by_one_of_two(world: World) -> object:
    topic = world.topic()
    first = world.shared(topic, receiver_queue_size=100)
    world.publish(topic, 4)
    receive(first, 4, acknowledge=False)
    second = world.shared(topic)
    before = drain(second)
    first.close()
    return before, sorted(drain(second, 4))


def given_up(world: World) -> object:
    topic, dead = world.topic(), world.topic("dead")
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead, "init-sub")
    consumer = world.shared(topic, dead_letter_policy=policy, **AT_ONCE)
    producer = world.producer(topic)
    producer.send(b"poison", properties={"a": "b"}, partition_key="k")
    counts = []
    for _ in range(3):
        got = consumer.receive(SOON)
        counts.append(got.redelivery_count())
        consumer.negative_acknowledge(got)
    # The subscription was made with the topic, so nothing is missed at the latest position.
    readers = world.consumer(
        dead, "init-sub", initial_position=pulsar.InitialPosition.Latest
    ).receive(SOON)
    properties = readers.properties()
    return {
        "counts": counts,
        "value": readers.data().decode(),
        "properties": sorted(properties),
        "of": properties["REAL_TOPIC"] == topic,
        "key": readers.partition_key(),
        "left": drain(consumer),
    }


def given_up_to_a_topic_named_by_default(world: World) -> object:
    topic = world.topic()
    policy = pulsar.ConsumerDeadLetterPolicy(1)
    consumer = world.shared(topic, "sub", dead_letter_policy=policy, **AT_ONCE)
    world.publish(topic, 1)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(SOON))
    dead = world.consumer(f"{topic}-sub-DLQ")
    return receive(dead, 1)
