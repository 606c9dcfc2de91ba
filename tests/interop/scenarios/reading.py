"""Readers and views of tables."""

from __future__ import annotations

import pulsar

from tests.interop.world import NOTHING, SOON, World, outcome, read_all, receive, refused, until

EARLIEST, LATEST = pulsar.MessageId.earliest, pulsar.MessageId.latest


def from_the_beginning(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 3)
    reader = world.reader(topic, EARLIEST)
    return read_all(reader), reader.has_message_available()


def from_the_end(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 2)
    reader = world.reader(topic, LATEST)
    before = reader.has_message_available()
    world.publish(topic, 1, 2)
    return before, read_all(reader)


def from_the_last_message(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 3)
    reader = world.reader(topic, LATEST, start_message_id_inclusive=True)
    return read_all(reader)


def from_an_id(world: World) -> object:
    topic = world.topic()
    ids = world.publish(topic, 4)
    after = world.reader(topic, ids[1])
    at = world.reader(topic, ids[1], start_message_id_inclusive=True)
    return read_all(after), read_all(at)


def from_inside_a_batch(world: World) -> object:
    topic = world.topic()
    ids = world.publish_batch(topic, 4)
    after = world.reader(topic, ids[1])
    at = world.reader(topic, ids[1], start_message_id_inclusive=True)
    return read_all(after), read_all(at)


def of_an_empty_topic(world: World) -> object:
    topic = world.topic()
    reader = world.reader(topic, EARLIEST)
    seen = [reader.has_message_available(), outcome(lambda: reader.read_next(NOTHING).data())]
    world.publish(topic, 1)
    return [*seen, read_all(reader)]


def beside_one_another(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 2)
    return [read_all(world.reader(topic, EARLIEST)) for _ in range(2)]


def seeking(world: World) -> object:
    topic = world.topic()
    ids = world.publish(topic, 4)
    reader = world.reader(topic, EARLIEST)
    seen = [read_all(reader)]
    reader.seek(ids[1])
    seen.append(read_all(reader))
    reader.seek(EARLIEST)
    seen.append(read_all(reader))
    reader.seek(0)
    seen.append(read_all(reader))
    return seen


def of_a_partitioned_topic(world: World) -> object:
    topic = world.partitioned(3)
    world.publish(topic, 6)
    reader = world.reader(topic, EARLIEST)
    return sorted(reader.read_next(SOON).data().decode() for _ in range(6))


def of_one_partition(world: World) -> object:
    topic = world.partitioned(2)
    for number in range(2):
        world.publish(f"{topic}-partition-{number}", 1, number)
    reader = world.reader(f"{topic}-partition-1", EARLIEST)
    got = reader.read_next(SOON)
    return got.data().decode(), got.message_id().partition()


def beyond_the_end(world: World) -> object:
    topic = world.topic()
    (first,) = world.publish(topic, 1)
    far = pulsar.MessageId(-1, first.ledger_id(), 1_000_000, -1)
    reader = world.reader(topic, far)
    world.publish(topic, 1, 1)
    return outcome(lambda: reader.read_next(2_000).data().decode())


def named(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 1)
    first = world.reader(topic, EARLIEST, subscription_role_prefix="role")
    second = refused(lambda: world.reader(topic, EARLIEST, subscription_role_prefix="role"))
    return read_all(first), second


def table_view(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    for number in range(6):
        producer.send(b"v%d" % number, partition_key=f"k{number % 3}")
    view = world.client.create_table_view(topic, "view")
    seen: dict[str, str] = {}
    view.for_each(lambda key, value: seen.update({key: value.decode()}))
    producer.send(b"new", partition_key="k1")
    came = until(lambda: view.get("k1") == b"new")
    none = view.get("nothing")
    view.close()
    return dict(sorted(seen.items())), came, none


def table_view_of_a_partitioned_topic(world: World) -> object:
    topic = world.partitioned(2)
    producer = world.producer(topic)
    for number in range(6):
        producer.send(b"v%d" % number, partition_key=f"k{number % 3}")
    view = world.client.create_table_view(topic)
    seen: dict[str, str] = {}
    view.for_each(lambda key, value: seen.update({key: value.decode()}))
    view.close()
    return dict(sorted(seen.items()))


def compacted(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    for number in range(4):
        producer.send(b"v%d" % number, partition_key=f"k{number % 2}")
    # Nobody compacted the topic, so everything is there.
    return read_all(world.reader(topic, EARLIEST, is_read_compacted=True))


def compacted_on_request(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    for number in range(6):
        producer.send(b"v%d" % number, partition_key=f"k{number % 3}")
    producer.send(b"plain")
    producer.send(b"", partition_key="k2")
    world.server.compact(topic)
    compacted = [read_all(world.reader(topic, EARLIEST, is_read_compacted=True))]
    producer.send(b"new", partition_key="k0")
    producer.send(b"", partition_key="k1")
    compacted.append(read_all(world.reader(topic, EARLIEST, is_read_compacted=True)))
    world.server.compact(topic)
    compacted.append(read_all(world.reader(topic, EARLIEST, is_read_compacted=True)))
    return compacted, len(read_all(world.reader(topic, EARLIEST)))


def compacted_of_a_batch(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic, batching_enabled=True, batching_max_publish_delay_ms=30_000)
    for number in range(6):
        producer.send_async(b"v%d" % number, lambda *_: None, partition_key=f"k{number % 4}")
    producer.flush()
    world.server.compact(topic)
    return read_all(world.reader(topic, EARLIEST, is_read_compacted=True))


def compacted_from_an_id(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    ids = [producer.send(b"v%d" % n, partition_key=f"k{n % 2}") for n in range(6)]
    world.server.compact(topic)
    return [read_all(world.reader(topic, at, is_read_compacted=True)) for at in (ids[1], ids[4])]


def compacted_table_view(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    for number in range(6):
        producer.send(b"v%d" % number, partition_key=f"k{number % 3}")
    world.server.compact(topic)
    producer.send(b"new", partition_key="k1")
    view = world.client.create_table_view(topic)
    seen: dict[str, str] = {}
    view.for_each(lambda key, value: seen.update({key: value.decode()}))
    view.close()
    return dict(sorted(seen.items()))


def who_may_read_compacted(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    for number in range(4):
        producer.send(b"v%d" % number, partition_key=f"k{number % 2}")
    world.server.compact(topic)
    kinds, options = pulsar.ConsumerType, {"is_read_compacted": True}
    return [
        receive(world.consumer(topic, "s", consumer_type=kinds.Exclusive, **options), 2),
        # Apache Pulsar waits for another consumer to come before it sends the first message.
        receive(world.consumer(topic, "f", consumer_type=kinds.Failover, **options), 2),
        refused(lambda: world.consumer(topic, "x", consumer_type=kinds.Shared, **options)),
        refused(lambda: world.consumer(topic, "k", consumer_type=kinds.KeyShared, **options)),
    ]
