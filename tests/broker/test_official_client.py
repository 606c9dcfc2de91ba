"""What the official Pulsar client does, against a real broker process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pulsar
import pytest

from tests.broker.conftest import official_client
from tests.ports import free_port
from tests.processes import BrokerProcess

SOON = 5_000
NOTHING = 300


def publish(
    client: pulsar.Client, topic: str, count: int, start: int = 0
) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"m%d" % n) for n in range(start, start + count)]
    producer.close()
    return ids


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    values = []
    for _ in range(count):
        message = consumer.receive(SOON)
        values.append(message.data())
        consumer.acknowledge(message)
    return values


def quiet(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(NOTHING)
    except pulsar.Timeout:
        return True
    return False


EARLIEST = {"initial_position": pulsar.InitialPosition.Earliest}
AT_ONCE = {"negative_ack_redelivery_delay_ms": 50}


def test_messages_keep_keys_properties_and_times_when_sent_one_by_one(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    sent = producer.send(
        b"v", properties={"a": "1"}, partition_key="k", event_timestamp=1_700_000_000_000
    )
    message = consumer.receive(SOON)
    assert message.data() == b"v"
    assert message.properties() == {"a": "1"}
    assert message.partition_key() == "k"
    assert message.event_timestamp() == 1_700_000_000_000
    assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (
        sent.ledger_id(),
        sent.entry_id(),
    )
    assert message.producer_name() == producer.producer_name()


def test_batches_arrive_in_order_when_sent_asynchronously(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=5, block_if_queue_full=True
    )
    done = threading.Event()
    results: list[object] = []

    def stored(result: object, _: object) -> None:
        results.append(result)
        if len(results) == 3_000:
            done.set()

    for n in range(3_000):
        producer.send_async(b"m%d" % n, stored)
    producer.flush()
    assert done.wait(10)
    assert set(results) == {pulsar.Result.Ok}
    assert receive(consumer, 3_000) == [b"m%d" % n for n in range(3_000)]


@pytest.mark.parametrize(
    "kind",
    [
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
)
def test_compressed_batches_arrive_whole(
    client: pulsar.Client, topic: str, kind: pulsar.CompressionType
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, compression_type=kind, batching_enabled=True)
    for n in range(20):
        producer.send_async(b"value %d " % n * 50, None)
    producer.flush()
    assert receive(consumer, 20) == [b"value %d " % n * 50 for n in range(20)]


def test_message_over_the_frame_limit_arrives_whole_when_chunked(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    value = bytes(range(256)) * (6 << 12)
    producer.send(value)
    assert receive(consumer, 1) == [value]


def test_second_exclusive_consumer_is_refused(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


def test_shared_consumers_divide_the_messages(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=10)
        for _ in range(2)
    ]
    publish(client, topic, 20)
    halves = [receive(consumer, 10) for consumer in consumers]
    assert sorted(halves[0] + halves[1]) == sorted(b"m%d" % n for n in range(20))


def test_unacknowledged_messages_go_to_the_other_when_a_shared_consumer_closes(
    client: pulsar.Client, topic: str
) -> None:
    first = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    publish(client, topic, 4)
    assert [first.receive(SOON).data() for _ in range(4)] == [b"m0", b"m1", b"m2", b"m3"]
    second = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert quiet(second)
    first.close()
    assert receive(second, 4) == [b"m0", b"m1", b"m2", b"m3"]


def test_failover_consumer_takes_over_when_the_active_one_closes(
    client: pulsar.Client, topic: str
) -> None:
    active, spare = (
        client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=name)
        for name in ("a", "b")
    )
    publish(client, topic, 1)
    # Which one is chosen depends on the topic's name too; a change takes a second.
    while quiet(active):
        active, spare = spare, active
    publish(client, topic, 2, start=1)
    assert receive(active, 1) == [b"m1"]
    assert quiet(spare)
    active.close()
    assert receive(spare, 2) == [b"m0", b"m2"]


def test_redeliveries_are_counted_when_messages_are_refused(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, **AT_ONCE)
    publish(client, topic, 1)
    for count in range(3):
        message = consumer.receive(SOON)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)


def test_dead_letter_topic_gets_what_is_refused_too_often(
    client: pulsar.Client, topic: str
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "init-sub")
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, dead_letter_policy=policy, **AT_ONCE
    )
    publish(client, topic, 1)
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(SOON))
    dead = client.subscribe(f"{topic}-dead", "init-sub", **EARLIEST)
    assert receive(dead, 1) == [b"m0"]


def test_all_unacknowledged_come_again_in_order_when_an_exclusive_consumer_asks(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 3)
    messages = [consumer.receive(SOON) for _ in range(3)]
    consumer.acknowledge(messages[0])
    consumer.redeliver_unacknowledged_messages()
    again = [consumer.receive(SOON) for _ in range(2)]
    assert [m.data() for m in again] == [b"m1", b"m2"]
    assert [m.redelivery_count() for m in again] == [0, 0]


def test_acknowledgements_are_kept_when_the_client_comes_again(
    shared_broker: BrokerProcess, topic: str
) -> None:
    client = official_client(shared_broker.url)
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 3)
    messages = [consumer.receive(SOON) for _ in range(3)]
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    client.close()
    again = official_client(shared_broker.url)
    assert receive(again.subscribe(topic, "s"), 1) == [b"m1"]
    again.close()


def test_cumulative_acknowledgement_covers_all_before(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 4)
    messages = [consumer.receive(SOON) for _ in range(4)]
    consumer.acknowledge_cumulative(messages[2])
    consumer.close()
    assert receive(client.subscribe(topic, "s"), 1) == [b"m3"]


def test_rest_of_a_batch_comes_again_when_single_messages_are_acknowledged(
    client: pulsar.Client, topic: str
) -> None:
    options = {"batch_index_ack_enabled": True}
    consumer = client.subscribe(topic, "s", **options)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=1_000
    )
    for n in range(4):
        producer.send_async(b"m%d" % n, None)
    producer.flush()
    messages = [consumer.receive(SOON) for _ in range(4)]
    consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[3])
    consumer.close()
    again = client.subscribe(topic, "s", **options)
    assert receive(again, 2) == [b"m0", b"m2"]
    assert quiet(again)


def test_seek_goes_back_to_a_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    ids = publish(client, topic, 4)
    receive(consumer, 4)
    consumer.seek(ids[2])
    assert receive(consumer, 2) == [b"m2", b"m3"]


@pytest.mark.parametrize(("where", "left"), [("earliest", 3), ("latest", 0)])
def test_seek_goes_to_either_end(client: pulsar.Client, topic: str, where: str, left: int) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 3)
    receive(consumer, 2)
    consumer.seek(getattr(pulsar.MessageId, where))
    assert receive(consumer, left) == [b"m%d" % n for n in range(left)]
    assert quiet(consumer)


def test_seek_goes_to_a_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 2)
    time.sleep(0.05)
    between = round(time.time() * 1000)  # noqa: TID251 - the broker's clock
    time.sleep(0.05)
    publish(client, topic, 2, start=2)
    receive(consumer, 4)
    consumer.seek(between)
    assert receive(consumer, 2) == [b"m2", b"m3"]


def read_all(reader: pulsar.Reader) -> list[bytes]:
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(SOON).data())
    return values


def test_reader_reads_everything_from_earliest(client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 5)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert read_all(reader) == [b"m%d" % n for n in range(5)]
    publish(client, topic, 1, start=5)
    assert read_all(reader) == [b"m5"]


def test_reader_reads_nothing_old_from_latest(client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 2)
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert read_all(reader) == []
    publish(client, topic, 1, start=2)
    assert reader.read_next(SOON).data() == b"m2"


@pytest.mark.parametrize("inclusive", [True, False])
def test_reader_starts_at_a_message(client: pulsar.Client, topic: str, inclusive: bool) -> None:
    ids = publish(client, topic, 4)
    reader = client.create_reader(topic, ids[1], start_message_id_inclusive=inclusive)
    first = 1 if inclusive else 2
    assert read_all(reader) == [b"m%d" % n for n in range(first, 4)]


def test_reader_goes_back_when_it_seeks(client: pulsar.Client, topic: str) -> None:
    ids = publish(client, topic, 4)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read_all(reader)
    reader.seek(ids[2])
    assert reader.read_next(SOON).data() == b"m3"


def test_last_message_id_names_the_last_of_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    empty = consumer.get_last_message_id()
    assert (empty.ledger_id(), empty.entry_id(), empty.batch_index()) == (-1, -1, -1)
    publish(client, topic, 1)
    assert consumer.get_last_message_id().batch_index() == -1
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=1_000
    )
    for _ in range(3):
        producer.send_async(b"v", None)
    producer.flush()
    last = consumer.get_last_message_id()
    assert (last.entry_id(), last.batch_index()) == (1, 2)


def test_subscription_begins_anew_after_unsubscribe(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 2)
    receive(consumer, 2)
    consumer.unsubscribe()
    assert receive(client.subscribe(topic, "s", **EARLIEST), 2) == [b"m0", b"m1"]


def test_named_producer_is_busy_and_goes_on_counting(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, "me", initial_sequence_id=41)
    producer.send(b"v")
    assert producer.last_sequence_id() == 42
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, "me")


def test_topics_of_the_namespace_are_matched_by_pattern(client: pulsar.Client, topic: str) -> None:
    publish(client, f"{topic}-a", 1)
    publish(client, f"{topic}-b", 1)
    consumer = client.subscribe(re.compile(f"{topic}-.*"), "s", **EARLIEST)
    assert receive(consumer, 2) == [b"m0", b"m0"]


@pytest.fixture
def restartable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path_factory.mktemp("restart") / "data", free_port(), topics_auto_partitions="3"
    )
    process.start()
    yield process
    process.stop()


def test_partitioned_topic_is_spread_and_ids_name_partitions(restartable: BrokerProcess) -> None:
    client = official_client(restartable.url)
    topic = "persistent://public/default/parted"
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    sent = {producer.send(b"m%d" % n).partition() for n in range(6)}
    got = [consumer.receive(SOON) for _ in range(6)]
    assert sent == {message.message_id().partition() for message in got} == {0, 1, 2}
    assert {message.topic_name() for message in got} == {f"{topic}-partition-{n}" for n in range(3)}
    client.close()


@pytest.mark.slow
def test_clients_go_on_when_the_broker_was_killed(restartable: BrokerProcess) -> None:
    client = official_client(restartable.url)
    consumer = client.subscribe("again", "s")
    producer = client.create_producer("again", batching_enabled=False)
    producer.send(b"before")
    assert consumer.receive(SOON).data() == b"before"
    restartable.kill()
    restartable.start()
    producer.send(b"after")
    # What was not acknowledged comes again, then what is new.
    assert receive(consumer, 2) == [b"before", b"after"]
    client.close()
