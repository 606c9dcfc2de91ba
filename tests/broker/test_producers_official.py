"""Producers of the official Pulsar client: access modes, chunks, duplicates, reconnects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pulsar
import pytest

from router.wire.node import node_pb2 as pb
from tests.broker.conftest import Connect, greeted, official_client
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess

SOON = 10_000
NOTHING = 300
EXCLUSIVE = pulsar.ProducerAccessMode.Exclusive
WAIT = pulsar.ProducerAccessMode.WaitForExclusive
FENCE = pulsar.ProducerAccessMode.ExclusiveWithFencing

Terminate = Callable[[str], None]


@pytest.fixture
def rival(shared_broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """Another client, with a connection of its own."""
    made = official_client(shared_broker.url)
    yield made
    made.close()


@pytest.fixture
def deduplicated(raw: RawClient, topic: str) -> str:
    """A topic whose policy is to drop duplicates."""
    raw.send("ADMIN", request_id=1, create_topic=dropping_duplicates(topic))
    assert not raw.expect("ADMIN_RESPONSE").HasField("code")
    return topic


def dropping_duplicates(topic: str) -> pb.CreateTopic:
    return pb.CreateTopic(topic=topic, policies=pb.Policies(deduplication=True))


def everything(client: pulsar.Client, topic: str) -> list[bytes]:
    """All messages of a topic, in order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(SOON).data())
    reader.close()
    return found


def test_second_producer_of_a_held_topic_is_refused(
    client: pulsar.Client, rival: pulsar.Client, topic: str
) -> None:
    holder = client.create_producer(topic, access_mode=EXCLUSIVE)
    with pytest.raises(pulsar.ProducerFenced):
        rival.create_producer(topic, access_mode=EXCLUSIVE)
    with pytest.raises(pulsar.ProducerBusy):
        rival.create_producer(topic)
    holder.send(b"v")
    holder.close()
    rival.create_producer(topic).send(b"v")


def test_producer_waits_for_its_turn(
    client: pulsar.Client, rival: pulsar.Client, topic: str
) -> None:
    holder = client.create_producer(topic, access_mode=EXCLUSIVE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rival.create_producer, topic, access_mode=WAIT)
        sleep(0.5)
        assert not waiting.done()
        holder.send(b"first")
        holder.close()
        waiting.result(30).send(b"second")
    assert everything(client, topic) == [b"first", b"second"]


def test_fenced_producer_is_told_when_it_sends(
    client: pulsar.Client, rival: pulsar.Client, topic: str
) -> None:
    fenced = client.create_producer(topic, access_mode=EXCLUSIVE)
    bystander = client.create_producer(f"{topic}-other")
    holder = rival.create_producer(topic, access_mode=FENCE)
    with pytest.raises(pulsar.ProducerFenced):
        fenced.send(b"stale")
    holder.send(b"fresh")
    bystander.send(b"v")
    assert everything(client, topic) == [b"fresh"]


def test_chunks_arrive_whole_among_other_messages(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    chunking = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    single = client.create_producer(topic)
    large = [bytes([n]) * (11 << 20) for n in range(2)]
    for value in large:
        chunking.send_async(value, None)
        single.send(b"between")
    chunking.flush()
    received = [consumer.receive(SOON) for _ in range(4)]
    assert sorted(m.data() for m in received) == sorted([*large, b"between", b"between"])
    for message in received:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s")
    with pytest.raises(pulsar.Timeout):
        again.receive(NOTHING)


def test_duplicates_are_dropped_chunked_or_not(client: pulsar.Client, deduplicated: str) -> None:
    large = b"large" * (2 << 20)
    for _ in range(2):
        producer = client.create_producer(
            deduplicated, "me", initial_sequence_id=7, chunking_enabled=True, batching_enabled=False
        )
        assert producer.send(b"one") is not None
        producer.send(large)
        producer.send(b"three")
        producer.close()
    assert everything(client, deduplicated) == [b"one", large, b"three"]


def test_duplicate_batches_are_dropped(client: pulsar.Client, deduplicated: str) -> None:
    for _ in range(2):
        producer = client.create_producer(
            deduplicated, "me", initial_sequence_id=7, batching_enabled=True
        )
        for n in range(10):
            producer.send_async(b"%d" % n, None)
        producer.flush()
        producer.close()
    assert everything(client, deduplicated) == [b"%d" % n for n in range(10)]


def test_named_producer_goes_on_where_it_was(client: pulsar.Client, deduplicated: str) -> None:
    for expected in (-1, 0, 1):
        producer = client.create_producer(deduplicated, "me")
        assert producer.last_sequence_id() == expected
        producer.send(b"v")
        producer.close()


def test_terminated_topic_refuses_and_keeps_what_it_has(
    client: pulsar.Client, raw: RawClient, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"last")
    raw.send("ADMIN", request_id=1, terminate_topic=pb.TopicRef(topic=topic))
    assert not raw.expect("ADMIN_RESPONSE").HasField("code")
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert everything(client, topic) == [b"last"]


@pytest.mark.parametrize("mode", [pulsar.ProducerAccessMode.Shared, EXCLUSIVE])
def test_each_message_is_stored_once_when_the_broker_is_killed(
    tmp_path_factory: pytest.TempPathFactory,
    connect: Connect,
    topic: str,
    mode: pulsar.ProducerAccessMode,
) -> None:
    broker = BrokerProcess(tmp_path_factory.mktemp("killed") / "data", free_port())
    broker.start()
    client = official_client(broker.url)
    try:
        raw = greeted(connect(broker))
        raw.send("ADMIN", request_id=1, create_topic=dropping_duplicates(topic))
        raw.expect("ADMIN_RESPONSE")
        producer = client.create_producer(
            topic, batching_enabled=True, access_mode=mode, max_pending_messages=5_000
        )
        # A client of C++ that has had no receipt yet counts its messages anew when it reconnects.
        producer.send(b"0")
        for n in range(1, 2_000):
            producer.send_async(b"%d" % n, None)
            if n == 1_000:
                broker.kill()
                broker.start()
        producer.flush()
        assert everything(client, topic) == [b"%d" % n for n in range(2_000)]
    finally:
        client.close()
        broker.stop()
