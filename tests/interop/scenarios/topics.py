"""Topics: partitions, names, the ones that are not kept, and the end of one."""

from __future__ import annotations

from functools import partial
from itertools import chain

import pulsar

from tests.interop.world import NOTHING, SOON, World, drain, outcome, receive, refused, until


def partitions_of(world: World) -> object:
    topic = world.partitioned(3)
    plain = world.topic("plain")
    parts = world.client.get_topic_partitions(topic)
    return [part.rpartition("-")[2] for part in parts], [
        part == plain for part in world.client.get_topic_partitions(plain)
    ]


def partitioned_and_back(world: World) -> object:
    topic = world.partitioned(3)
    consumer = world.consumer(topic)
    producer = world.producer(topic)
    sent = {producer.send(b"m%d" % number).partition() for number in range(9)}
    got = [consumer.receive(SOON) for _ in range(9)]
    return {
        "values": sorted(message.data().decode() for message in got),
        "sent to": sorted(sent),
        "came from": sorted({message.message_id().partition() for message in got}),
        "topics": sorted({message.topic_name().rpartition("-parted")[2] for message in got}),
    }


def keys_choose_the_partition(world: World) -> object:
    topic = world.partitioned(4)
    producer = world.producer(topic)
    return [
        [producer.send(b"x", partition_key=f"k{key}").partition() for _ in range(2)]
        for key in range(6)
    ]


def one_partition_alone(world: World) -> object:
    topic = world.partitioned(2)
    world.publish(f"{topic}-partition-1", 2)
    whole = world.consumer(topic)
    return sorted(receive(whole, 2))


def a_partition_that_is_not(world: World) -> object:
    topic = world.partitioned(2)
    return refused(lambda: world.producer(f"{topic}-partition-7"))


def not_kept(world: World) -> object:
    topic = world.topic(domain="non-persistent")
    producer = world.producer(topic)
    lost = producer.send(b"nobody listens")
    consumer = world.consumer(topic)
    sent = producer.send(b"somebody does")
    got = consumer.receive(SOON)
    where = got.message_id()
    return {
        "receipts": [(one.ledger_id(), one.entry_id()) for one in (lost, sent)],
        "got": (got.data().decode(), where.ledger_id(), where.entry_id()),
        "more": outcome(lambda: consumer.receive(NOTHING).data()),
    }


def not_kept_by_several(world: World) -> object:
    topic = world.topic(domain="non-persistent")
    shared = [world.shared(topic) for _ in range(2)]
    alone = world.consumer(topic, "alone")
    world.publish(topic, 10)
    return receive(alone, 10), sorted(chain(*map(drain, shared)))


def names(world: World) -> object:
    namespace = world.server.namespace
    # What it takes for another try to be worth while, it repeats until this time is over.
    client = world.another_client(operation_timeout_seconds=2)
    seen = {}
    for name in (
        f"persistent://{namespace}/with space",
        f"persistent://{namespace}/a/b/c",
        f"persistent://{namespace}/",
        "persistent://public",
        "queue://a/b/x",
        f"persistent://{namespace}/ünï",
        f"persistent://{namespace}/per%2Fcent",
        "persistent://no-such-tenant/ns/x",
        "persistent://public/no-such-namespace/x",
        f"non-persistent://{namespace}/fine",
    ):
        label = name.replace(namespace, "NS")
        seen[label] = refused(partial(world.producer, name, client=client))
    return seen


def terminated(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    producer.send(b"last")
    world.server.terminate(topic)
    seen = {
        "send": refused(lambda: producer.send(b"more")),
        "producer": refused(lambda: world.producer(topic)),
    }
    consumer = world.consumer(topic)
    seen["kept"] = str(drain(consumer, 1))
    return seen


def connected(world: World) -> object:
    topic = world.topic()
    producer, consumer = world.producer(topic), world.consumer(topic)
    seen = [until(producer.is_connected), until(consumer.is_connected)]
    producer.close()
    consumer.close()
    return [*seen, producer.is_connected(), consumer.is_connected()]


def position_of_another_topic(world: World) -> object:
    one, other = world.topic("one"), world.topic("other")
    (where,) = world.publish(one, 1)
    world.publish(other, 2)
    consumer = world.consumer(other)
    receive(consumer, 2)
    consumer.seek(where)
    return refused(lambda: consumer.receive(NOTHING)) in {"ok", "Timeout"}


def the_end_is_the_last(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 2)
    consumer = world.consumer(topic, initial_position=pulsar.InitialPosition.Latest)
    world.publish_batch(topic, 2, 2)
    return receive(consumer, 2)
