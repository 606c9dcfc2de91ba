"""Subscriptions: where they begin, who may join them, and how they end."""

from __future__ import annotations

from functools import partial
from itertools import chain

import pulsar

from tests.interop.world import (
    NOTHING,
    SOON,
    World,
    drain,
    outcome,
    receive,
    refused,
    shares,
    values_of,
)

KIND = pulsar.ConsumerType
KINDS = {
    "exclusive": KIND.Exclusive,
    "shared": KIND.Shared,
    "failover": KIND.Failover,
    "key_shared": KIND.KeyShared,
}


def initial_position(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 2)
    latest = world.consumer(topic, "latest", initial_position=pulsar.InitialPosition.Latest)
    earliest = world.consumer(topic, "earliest")
    world.publish(topic, 1, 2)
    return receive(latest, 1), receive(earliest, 3)


def it_goes_on_where_it_was(world: World) -> object:
    topic = world.topic()
    first = world.consumer(topic)
    world.publish(topic, 4)
    seen = receive(first, 2)
    first.close()
    world.publish(topic, 1, 4)
    return seen, drain(world.consumer(topic, initial_position=pulsar.InitialPosition.Latest), 3)


def second_consumer_of_each_kind(world: World) -> object:
    seen = {}
    for name, kind in KINDS.items():
        for other, second in KINDS.items():
            topic = world.topic(f"{name}-{other}")
            first = world.consumer(topic, consumer_type=kind)
            seen[f"{name} + {other}"] = refused(
                partial(world.consumer, topic, consumer_type=second)
            )
            first.close()
    return seen


def kind_changes_when_nobody_is_there(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 4)
    seen = []
    for kind in KINDS.values():
        consumer = world.consumer(topic, consumer_type=kind)
        seen.append(receive(consumer, 1))
        consumer.close()
    return seen


def unsubscribing(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 2)
    first = world.consumer(topic)
    receive(first, 1)
    first.unsubscribe()
    after = refused(lambda: first.receive(NOTHING))
    return after, drain(world.consumer(topic), 2)


def unsubscribing_while_others_are_there(world: World) -> object:
    topic = world.topic()
    first, second = world.shared(topic), world.shared(topic)
    while_two = refused(first.unsubscribe)
    second.close()
    return while_two, refused(first.unsubscribe)


def names_of_subscriptions(world: World) -> object:
    topic = world.topic()
    seen = {}
    for name in ("with space", "sl/ash", "ünï", "a" * 300, "per%2Fcent", ""):
        seen[name[:12]] = refused(partial(world.consumer, topic, name))
    return seen


def queue_of_nothing(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic, receiver_queue_size=0)
    world.publish(topic, 3)
    values = []
    for _ in range(3):
        # without a timeout, as the client wants it here
        message = consumer.receive()
        consumer.acknowledge(message)
        values.append(message.data().decode())
    return values


def small_queues_get_everything(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic, receiver_queue_size=2)
    world.publish_batch(topic, 10)
    world.publish(topic, 5, 10)
    return receive(consumer, 15)


def many_at_once(world: World) -> object:
    topic = world.topic()
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, 2000)
    consumer = world.consumer(topic, batch_receive_policy=policy)
    world.publish(topic, 10)
    found = consumer.batch_receive()
    return sorted(message.data().decode() for message in found)


def closed_consumer(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    consumer.close()
    return refused(lambda: consumer.receive(NOTHING))


def several_topics(world: World) -> object:
    topics = [world.topic(name) for name in ("a", "b", "c")]
    consumer = world.consumer(topics)
    for number, topic in enumerate(topics):
        world.publish(topic, 1, number)
    got = [consumer.receive(SOON) for _ in topics]
    return sorted(
        (message.data().decode(), message.topic_name().rpartition("-")[2]) for message in got
    )


def topics_by_pattern(world: World) -> object:
    prefix = world.topic("pat")
    for name in ("one", "two"):
        world.publish(f"{prefix}-{name}", 1)
    world.publish(world.topic("other"), 1)
    world.server.create_partitioned(f"{prefix}-parted", 2)
    world.publish(f"{prefix}-parted", 4)
    consumer = world.consumer(pulsar.re.compile(f"{prefix}-.*"))
    got = [consumer.receive(SOON) for _ in range(6)]
    more = outcome(lambda: consumer.receive(NOTHING).data())
    return sorted(message.topic_name().rpartition("-pat-")[2] for message in got), more


def failover_has_one_that_receives(world: World) -> object:
    topic = world.topic()
    # Who of them it is depends on the topic's name.
    consumers = [
        world.consumer(topic, consumer_type=KIND.Failover, consumer_name=name) for name in "bca"
    ]
    for consumer in consumers * 2:
        drain(consumer)
    world.publish(topic, 4)
    got = list(map(values_of, shares(consumers, 4, acknowledge=False)))
    active = max(range(3), key=lambda index: len(got[index]))
    consumers.pop(active).close()
    # Apache Pulsar changes who is active after a second.
    after = list(map(values_of, shares(consumers, 4)))
    return sorted(got), sorted(after)


def failover_spreads_partitions(world: World) -> object:
    topic = world.partitioned(4)
    consumers = [
        world.consumer(topic, consumer_type=KIND.Failover, consumer_name=name) for name in "ab"
    ]
    # Apache Pulsar changes who is active after a second.
    for consumer in consumers:
        drain(consumer)
        drain(consumer)
    world.publish(topic, 16)
    seen = list(map(values_of, shares(consumers, 16)))
    return [len(values) for values in seen], sorted(chain(*seen))


def last_message_id(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    seen: list[object] = [_place(consumer.get_last_message_id())]
    (first,) = world.publish(topic, 1)
    last = consumer.get_last_message_id()
    seen.append((last.entry_id() == first.entry_id(), last.batch_index(), last.partition()))
    world.publish_batch(topic, 3)
    last = consumer.get_last_message_id()
    seen.append((last.entry_id() - first.entry_id(), last.batch_index(), last.partition()))
    return seen


def _place(where: pulsar.MessageId) -> tuple[int, int, int, int]:
    return where.ledger_id(), where.entry_id(), where.partition(), where.batch_index()
