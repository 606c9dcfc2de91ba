"""Acknowledgements, and moving a subscription."""

from __future__ import annotations

import time
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


def cumulative(world: World) -> object:
    topic = world.topic()
    first = world.consumer(topic)
    world.publish(topic, 5)
    got = [first.receive(SOON) for _ in range(5)]
    first.acknowledge_cumulative(got[2])
    first.close()
    return drain(world.consumer(topic), 2)


def cumulative_of_several(world: World) -> object:
    topic = world.topic()
    consumer = world.shared(topic)
    world.publish(topic, 1)
    got = consumer.receive(SOON)
    return refused(lambda: consumer.acknowledge_cumulative(got))


def out_of_order(world: World) -> object:
    topic = world.topic()
    first = world.consumer(topic)
    world.publish(topic, 6)
    got = [first.receive(SOON) for _ in range(6)]
    for index in (4, 1, 2):
        first.acknowledge(got[index])
    first.close()
    return drain(world.consumer(topic), 3)


def part_of_a_batch(world: World) -> object:
    topic = world.topic()
    first = world.shared(topic)
    world.publish_batch(topic, 4)
    got = [first.receive(SOON) for _ in range(4)]
    first.acknowledge(got[1])
    first.close()
    return drain(world.shared(topic), 4)


def part_of_a_batch_by_index(world: World) -> object:
    topic = world.topic()
    first = world.shared(topic, batch_index_ack_enabled=True)
    world.publish_batch(topic, 4)
    got = [first.receive(SOON) for _ in range(4)]
    first.acknowledge(got[1])
    first.acknowledge(got[3])
    first.close()
    again = world.shared(topic, batch_index_ack_enabled=True)
    return drain(again, 2)


def cumulative_within_a_batch_by_index(world: World) -> object:
    topic = world.topic()
    first = world.consumer(topic, batch_index_ack_enabled=True)
    world.publish_batch(topic, 4)
    got = [first.receive(SOON) for _ in range(4)]
    first.acknowledge_cumulative(got[1])
    first.close()
    return drain(world.consumer(topic, batch_index_ack_enabled=True), 2)


def by_id_of_an_earlier_consumer(world: World) -> object:
    topic = world.topic()
    first = world.consumer(topic)
    world.publish(topic, 3)
    where = [first.receive(SOON).message_id() for _ in range(3)]
    first.close()
    second = world.consumer(topic)
    second.acknowledge(where[0])
    second.close()
    return drain(world.consumer(topic), 2)


def seek_to_an_id(world: World) -> object:
    topic = world.topic()
    ids = world.publish(topic, 5)
    seen = {}
    for inclusive in (False, True):
        consumer = world.consumer(topic, f"s{inclusive}", start_message_id_inclusive=inclusive)
        receive(consumer, 5)
        consumer.seek(ids[2])
        # The client connects again after a seek, which takes a while on a busy machine.
        seen[str(inclusive)] = drain(consumer, 2 + inclusive)
        consumer.close()
    return seen


def seek_to_the_ends(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 3)
    consumer = world.consumer(topic)
    receive(consumer, 1)
    consumer.seek(pulsar.MessageId.latest)
    at_end = drain(consumer)
    consumer.seek(pulsar.MessageId.earliest)
    return at_end, drain(consumer, 3)


def seek_to_a_time(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 2)
    time.sleep(0.3)
    between = int(time.time_ns() / 1e6)
    time.sleep(0.3)
    world.publish(topic, 2, 2)
    consumer = world.consumer(topic)
    seen = []
    for moment, count in ((between, 2), (0, 4), (between + 3_600_000, 0)):
        consumer.seek(moment)
        seen.append(drain(consumer, count))
    return seen


def seek_into_a_batch(world: World) -> object:
    topic = world.topic()
    ids = world.publish_batch(topic, 5)
    consumer = world.consumer(topic, start_message_id_inclusive=True)
    receive(consumer, 5)
    consumer.seek(ids[3])
    return drain(consumer, 2)


def seek_of_a_partitioned_topic(world: World) -> object:
    topic = world.partitioned(2)
    world.publish(topic, 6)
    consumer = world.consumer(topic)
    receive(consumer, 6)
    consumer.seek(pulsar.MessageId.earliest)
    again = sorted(drain(consumer, 6))
    where = pulsar.MessageId(0, 1, 2, -1)
    return again, refused(lambda: consumer.seek(where))


def seek_of_several(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 4)
    first = world.shared(topic)
    second = world.shared(topic)
    got = chain(*map(values_of, shares((first, second), 4)))
    moved = refused(lambda: first.seek(pulsar.MessageId.earliest))
    again = chain(*map(values_of, shares((first, second), 4 if moved == "ok" else 0)))
    return sorted(got), moved, sorted(again)


def what_was_acknowledged_stays_so_when_seeking_elsewhere(world: World) -> object:
    topic = world.topic()
    ids = world.publish(topic, 4)
    consumer = world.consumer(topic)
    receive(consumer, 4)
    consumer.seek(ids[1])
    first = receive(consumer, 1)
    consumer.close()
    return first, drain(world.consumer(topic), 1)


def empty_receive(world: World) -> object:
    consumer = world.consumer(world.topic())
    return outcome(lambda: consumer.receive(NOTHING).data())
