"""Several consumers of one subscription: who gets what, and in which order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import pulsar

from tests.interop.brokers import path_of
from tests.interop.world import World, drain, refused, shares, until, values_of

MODE = pulsar.KeySharedMode
OF_LOW = 15
"""How many of the keys k0 to k19 have a hash of at most 32767."""


def fair_shares(world: World) -> object:
    topic = world.topic()
    consumers = [world.shared(topic, receiver_queue_size=10) for _ in range(2)]
    world.publish(topic, 20)
    # Each has room for its half, and for more once somebody takes from its queue.
    until(lambda: _given(world, topic) == 20)
    got = [values_of(share) for share in shares(consumers, 20)]
    return [len(share) for share in got], sorted(chain(*got))


def a_full_consumer_is_passed_over(world: World) -> object:
    topic = world.topic()
    slow = world.shared(topic, receiver_queue_size=1)
    fast = world.shared(topic, receiver_queue_size=100)
    world.publish(topic, 30)
    seen = drain(fast, 28)
    return len(seen) >= 28, len(seen) + len(drain(slow, 30 - len(seen)))


def keys_stay_with_their_consumer(world: World) -> object:
    topic = world.topic()
    consumers = [_keyed(world, topic) for _ in range(3)]
    _publish_keys(world, topic, 60, 12)
    got = _by_key(consumers, 60)
    return _facts(got, 12), _orders(got)


def keys_move_when_a_consumer_goes(world: World) -> object:
    topic = world.topic()
    consumers = [_keyed(world, topic) for _ in range(2)]
    _publish_keys(world, topic, 20, 10)
    before = _by_key(consumers, 20)
    consumers[0].close()
    _publish_keys(world, topic, 20, 10)
    (after,) = _by_key(consumers[1:], 20)
    return _facts(before, 10), len(after), _orders([after])


def keys_wait_for_what_was_given_before(world: World) -> object:
    topic = world.topic()
    first = _keyed(world, topic)
    _publish_keys(world, topic, 20, 10)
    held = [first.receive(5_000) for _ in range(20)]
    second = _keyed(world, topic)
    _publish_keys(world, topic, 20, 10)
    while_held = drain(second)
    for message in held:
        first.acknowledge(message)
    got = _by_key((first, second), 20)
    return while_held, _facts(got, 10), _orders(got)


def ordering_key_counts_before_the_key(world: World) -> object:
    topic = world.topic()
    consumers = [_keyed(world, topic) for _ in range(2)]
    producer = world.producer(topic)
    for number in range(20):
        producer.send(b"m%d" % number, partition_key=f"k{number}", ordering_key="same")
    return sorted(map(len, shares(consumers, 20)))


def without_a_key_one_gets_all(world: World) -> object:
    topic = world.topic()
    consumers = [_keyed(world, topic) for _ in range(2)]
    # What has no key is spread by its producer's name and sequence number.
    world.publish(topic, 20, producer_name="p")
    return sorted(chain(*map(values_of, shares(consumers, 20))))


def sticky_ranges(world: World) -> object:
    topic = world.topic()
    low = _sticky(world, topic, [(0, 32767)])
    high = _sticky(world, topic, [(32768, 65535)])
    _publish_keys(world, topic, 40, 20)
    return [sorted(share) for share in _by_key((low, high), 40)]


def sticky_ranges_that_overlap(world: World) -> object:
    topic = world.topic()
    _sticky(world, topic, [(0, 40000)])
    return refused(lambda: _sticky(world, topic, [(40000, 65535)]))


def a_gap_between_sticky_ranges(world: World) -> object:
    topic = world.topic()
    low = _sticky(world, topic, [(0, 32767)])
    _publish_keys(world, topic, 20, 20)
    (of_low,) = _by_key([low], OF_LOW)
    high = _sticky(world, topic, [(32768, 65535)])
    (of_high,) = _by_key([high], 20 - sum(map(len, of_low.values())))
    return sorted(of_low), sorted(of_high)


def modes_that_differ(world: World) -> object:
    topic = world.topic()
    _keyed(world, topic)
    return refused(lambda: _sticky(world, topic, [(0, 65535)]))


def keys_in_batches(world: World) -> object:
    topic = world.topic()
    consumers = [_keyed(world, topic) for _ in range(2)]
    producer = world.producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=30_000,
    )
    for number in range(40):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 8}")
    producer.flush()
    got = _by_key(consumers, 40)
    return _facts(got, 8), _orders(got)


def _keyed(world: World, topic: str) -> pulsar.Consumer:
    return world.consumer(topic, consumer_type=pulsar.ConsumerType.KeyShared)


def _sticky(world: World, topic: str, ranges: Sequence[tuple[int, int]]) -> pulsar.Consumer:
    policy = pulsar.ConsumerKeySharedPolicy(MODE.Sticky, True, list(ranges))
    return world.consumer(
        topic, consumer_type=pulsar.ConsumerType.KeyShared, key_shared_policy=policy
    )


def _publish_keys(world: World, topic: str, count: int, keys: int) -> None:
    producer = world.producer(topic)
    for number in range(count):
        producer.send(b"%d" % number, partition_key=f"k{number % keys}")
    producer.close()


def _by_key(consumers: Sequence[pulsar.Consumer], count: int) -> list[dict[str, list[int]]]:
    """Return the numbers by key of what each consumer gets: so many messages in all."""
    found = []
    for messages in shares(consumers, count):
        numbers: dict[str, list[int]] = defaultdict(list)
        for message in messages:
            numbers[message.partition_key()].append(int(message.data()))
        found.append(dict(numbers))
    return found


def _facts(got: list[dict[str, list[int]]], keys: int) -> dict[str, object]:
    """Return what does not depend on which consumer a key happens to fall to."""
    owners = [key for share in got for key in share]
    return {
        "all keys": len(set(owners)) == keys,
        "one owner each": len(owners) == len(set(owners)),
    }


def _orders(got: list[dict[str, list[int]]]) -> bool:
    return all(numbers == sorted(numbers) for share in got for numbers in share.values())


def _given(world: World, topic: str) -> int:
    """Return how many messages consumers have, unacknowledged, by the topic's statistics."""
    stats = json.loads(world.server.told("GET", f"{path_of(topic)}/stats")[1])
    return sum(found["unackedMessages"] for found in stats["subscriptions"].values())
