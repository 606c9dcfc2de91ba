"""Publishing: what arrives, and which producers are let in."""

from __future__ import annotations

import threading
import time
from functools import partial

import pulsar

from tests.interop.world import NOTHING, SOON, World, drain, outcome, receive, refused

MODE = pulsar.ProducerAccessMode
KINDS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def one_message(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    producer = world.producer(topic, producer_name="p", properties={"of": "producer"})
    sent = producer.send(
        b"v",
        properties={"a": "1", "é": "ü"},
        partition_key="k",
        ordering_key="o",
        event_timestamp=1_700_000_000_000,
        sequence_id=7,
    )
    got = consumer.receive(SOON)
    where = got.message_id()
    return {
        "data": got.data().decode(),
        "properties": got.properties(),
        "keys": (got.partition_key(), got.ordering_key()),
        "event": got.event_timestamp(),
        "producer": got.producer_name(),
        "topic": got.topic_name() == topic,
        "redelivered": got.redelivery_count(),
        "same id": (sent.ledger_id(), sent.entry_id()) == (where.ledger_id(), where.entry_id()),
        "id": (where.partition(), where.batch_index()),
        "last sequence": producer.last_sequence_id(),
        "schema version": got.schema_version(),
    }


def batch(world: World) -> object:
    topic = world.topic()
    ids = world.publish_batch(topic, 5)
    consumer = world.consumer(topic)
    got = [consumer.receive(SOON) for _ in range(5)]
    return {
        "values": [message.data().decode() for message in got],
        "indexes": [message.message_id().batch_index() for message in got],
        "entries": len({message.message_id().entry_id() for message in got}),
        "sent": [(where.batch_index(), where.partition()) for where in ids],
    }


def batch_of_one(world: World) -> object:
    topic = world.topic()
    (sent,) = world.publish_batch(topic, 1)
    got = world.consumer(topic).receive(SOON)
    return sent.batch_index(), got.message_id().batch_index()


def batch_by_key(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    producer = world.producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=30_000,
    )
    for number in range(9):
        producer.send_async(b"m%d" % number, None, partition_key=f"k{number % 3}")
    producer.flush()
    got = [consumer.receive(SOON) for _ in range(9)]
    return sorted((message.partition_key(), message.data().decode()) for message in got), len(
        {message.message_id().entry_id() for message in got}
    )


def compressed(world: World) -> object:
    seen = {}
    for name, kind in KINDS.items():
        topic = world.topic(name)
        consumer = world.consumer(topic)
        producer = world.producer(topic, compression_type=kind, batching_enabled=True)
        for number in range(20):
            producer.send_async(b"value %d " % number * 50, None)
        producer.flush()
        seen[name] = receive(consumer, 20) == [f"value {number} " * 50 for number in range(20)]
    return seen


def empty_messages(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    world.producer(topic).send(b"")
    return receive(consumer, 1)


def chunked(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    producer = world.producer(topic, chunking_enabled=True)
    value = bytes(range(256)) * (6 << 12)
    producer.send(value, properties={"a": "b"})
    producer.send(b"small")
    got = consumer.receive(SOON)
    consumer.acknowledge(got)
    rest = receive(consumer, 1)
    consumer.close()
    return got.data() == value, got.properties(), rest, drain(world.consumer(topic))


def largest_message(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    consumer = world.consumer(topic)
    limit = 5 * 1024 * 1024
    sizes = (limit - 1000, limit + 1)
    sent = [refused(partial(producer.send, bytes(size))) for size in sizes]
    return sent, len(consumer.receive(SOON).data()) == limit - 1000


def the_name_of_another(world: World) -> object:
    topic = world.topic()
    first = world.producer(topic, producer_name="me")
    while_open = refused(lambda: world.producer(topic, producer_name="me"))
    first.close()
    return while_open, refused(lambda: world.producer(topic, producer_name="me"))


def sequence_ids(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic, producer_name="me", initial_sequence_id=41)
    seen = [producer.last_sequence_id()]
    producer.send(b"a")
    seen.append(producer.last_sequence_id())
    producer.send(b"b", sequence_id=50)
    seen.append(producer.last_sequence_id())
    producer.close()
    again = world.producer(topic, producer_name="me")
    seen.append(again.last_sequence_id())
    # A number that was used before: stored, as nobody asked for deduplication.
    again.send(b"c", sequence_id=41)
    return seen, receive(world.consumer(topic), 3)


def exclusive_access(world: World) -> object:
    topic = world.topic()
    first = world.producer(topic, access_mode=MODE.Exclusive)
    others = {
        "exclusive": refused(lambda: world.producer(topic, access_mode=MODE.Exclusive)),
        "shared": refused(lambda: world.producer(topic)),
    }
    first.send(b"mine")
    first.close()
    others["after"] = refused(lambda: world.producer(topic))
    others["beside shared"] = refused(lambda: world.producer(topic, access_mode=MODE.Exclusive))
    return others


def fencing_access(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    old_client = world.another_client()
    old = world.producer(topic, access_mode=MODE.Exclusive, client=old_client)
    old.send(b"old")
    new = world.producer(topic, access_mode=MODE.ExclusiveWithFencing)
    new.send(b"new")
    late = refused(lambda: old.send(b"late"))
    new.send(b"newer")
    return late, drain(consumer, 3)


def waiting_access(world: World) -> object:
    topic = world.topic()
    first = world.producer(topic, access_mode=MODE.Exclusive)
    made = threading.Event()

    def wait() -> None:
        producer = world.producer(topic, access_mode=MODE.WaitForExclusive)
        producer.send(b"second")
        made.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    waits = not made.wait(1)
    first.send(b"first")
    first.close()
    comes = made.wait(10)
    return waits, comes, receive(world.consumer(topic), 2)


def delayed(world: World) -> object:
    topic = world.topic()
    shared = world.shared(topic)
    exclusive = world.consumer(topic, "exclusive")
    producer = world.producer(topic)
    begun = time.monotonic()
    producer.send(b"later", deliver_after=pulsar.timedelta(seconds=6))
    producer.send(b"past", deliver_at=1)
    producer.send(b"now")
    at_once = receive(shared, 2)
    quiet = outcome(lambda: shared.receive(NOTHING).data())
    late = receive(shared, 1)
    waited = time.monotonic() - begun
    return at_once, quiet, late, 5 < waited < 15, receive(exclusive, 3)


def closed_things(world: World) -> object:
    topic = world.topic()
    client = world.another_client()
    producer = client.create_producer(topic)
    producer.close()
    after = refused(lambda: producer.send(b"x"))
    client.close()
    return after, refused(lambda: client.create_producer(topic))


def deduplicated_only_when_asked_for(world: World) -> object:
    topic = world.topic()
    for _ in range(2):
        producer = world.producer(topic, producer_name="me", initial_sequence_id=-1)
        producer.send(b"x", sequence_id=5)
        producer.close()
    return drain(world.consumer(topic), 2)
