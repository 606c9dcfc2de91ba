"""Record batches of Kafka between entries of Pulsar, read by clients of every protocol.

The entries are written through the store, before the broker starts: each compression, batches that
are transcoded at once, and one that is handed to a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pulsar
import pytest
from flask import Flask
from kafka import KafkaConsumer, TopicPartition

from router import settings as all_settings
from router.backends import Start, embedded
from router.broker.storage import KAFKA_FORMAT, PULSAR_FORMAT
from router.model import NOT_PARTITIONED, Grant, Message, Stored, Subscription, TopicName
from router.node.client import open_node
from router.wire.kafka.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from router.wire.kafka.records import KafkaRecord
from router.wire.pulsar import pack
from tests.broker.stored_entries import broker_on
from tests.broker.test_formats import SOON, receive, subscribe, subscribe_by_key
from tests.contract.conftest import Bell
from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until
from tests.wire.kafka.records_of import NOW, batch_of

STORED = NOW + 5_000
TOPICS = ("exclusive", "shared", "keys", "backend", "polls", "reads", "seeks", "kafka")
NO_TEXT = b"\xff\xfe"
Written = tuple[int, bytes, list[Message]]


def of_kafka(codec: int, *messages: Message) -> Written:
    """Return a batch of messages, of which each is a second later than the one before."""
    records = [
        KafkaRecord(
            place,
            1_000 * place,
            message.key,
            None if message.null else message.value,
            [(name.encode(), value.encode()) for name, value in message.properties.items()],
        )
        for place, message in enumerate(messages)
    ]
    timed = [one._replace(event_time=NOW + 1_000 * n) for n, one in enumerate(messages)]
    return KAFKA_FORMAT, batch_of(records, codec), timed


def of_pulsar(*messages: Message) -> Written:
    return PULSAR_FORMAT, pack(messages, "p", 0, 1), list(messages)


MANY = [Message(b"many-%d" % n, b"key-%d" % (n % 3)) for n in range(200)]
MIXED: Sequence[Written] = (
    of_kafka(NONE, Message(b"k0", b"a", {"of": "kafka"})),
    of_pulsar(Message(b"p1", b"a", {"of": "pulsar"}), Message(b"p2")),
    of_kafka(GZIP, Message(b"k3", b"b"), Message(b"", b"gone", null=True), Message(b"k5")),
    of_kafka(SNAPPY, Message(b"k6", NO_TEXT)),
    of_pulsar(Message(b"p7", NO_TEXT), Message(b"", b"b", null=True)),
    of_kafka(LZ4, *MANY),
    of_pulsar(*(Message(b"more-%d" % n) for n in range(100))),
    of_kafka(ZSTD, Message(b"last", b"a", {"grün": "ja", "": ""})),
)
ALL = [message for _, _, messages in MIXED for message in messages]
VALUES = [message.value for message in ALL]


@pytest.fixture(scope="module")
def kafka_address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def shared_broker(
    tmp_path_factory: pytest.TempPathFactory, kafka_address: str
) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("kafka-entries") / "data"
    with broker_on(folder, TOPICS, MIXED, time_ms=STORED, kafka_address=kafka_address) as process:
        yield process


def shown(found: pulsar.Message) -> tuple[object, ...]:
    return found.data(), found.properties(), found.event_timestamp()


def test_a_pulsar_consumer_gets_all_in_order_with_all_that_they_carry(
    client: pulsar.Client,
) -> None:
    found = receive(subscribe(client, "exclusive", pulsar.ConsumerType.Exclusive), len(ALL))
    assert [shown(one) for one in found] == [
        (message.value, message.properties, message.event_time or 0) for message in ALL
    ]
    # What a key that is no text is for this client; another key it has of the batch if of nothing.
    keys = {message.value: one.partition_key() for one, message in zip(found, ALL, strict=True)}
    assert (keys[b"k0"], keys[b"k3"], keys[b"k6"], keys[b"p7"]) == ("a", "b", "//4=", "//4=")


def test_single_records_are_acknowledged_by_a_shared_consumer(client: pulsar.Client) -> None:
    consumer = subscribe(client, "shared", pulsar.ConsumerType.Shared)
    left = {b"p2", b"k5", b"many-7", b"more-9"}
    for one in receive(consumer, len(ALL)):
        if one.data() not in left:
            consumer.acknowledge(one)
    consumer.close()
    consumer = subscribe(client, "shared", pulsar.ConsumerType.Shared)
    assert {one.data() for one in receive(consumer, len(left))} == left
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    consumer.close()


def test_a_key_goes_to_one_consumer_whichever_protocol_wrote_it(client: pulsar.Client) -> None:
    consumers = subscribe_by_key(client, "keys")
    taken: dict[bytes, str] = {}
    count = 0

    def take() -> bool:
        nonlocal count
        for consumer in consumers:
            with suppress(pulsar.Timeout):
                while True:
                    found = consumer.receive(50)
                    taken[found.data()] = consumer.consumer_name()
                    count += 1
        return count >= len(ALL)

    wait_until(take)
    assert set(taken) == set(VALUES)
    assert taken[b"k0"] == taken[b"p1"] == taken[b"last"]
    assert taken[b"k6"] == taken[b"p7"]


def test_the_router_s_client_gets_keys_values_and_tombstones(shared_broker: BrokerProcess) -> None:
    settings = all_settings.load(None, {}, {"data.dir": str(shared_broker.folder)})
    node = open_node(settings)
    backend = embedded.open_backend("embedded", settings, node)
    group = Subscription(TopicName.parse("backend"), "g")
    backend.subscribe(group, Start.EARLIEST, 10)
    found: list[Stored] = []
    consumer = backend.consume(Grant(group, NOT_PARTITIONED, 1), Bell(), 10)
    while len(found) < len(ALL):
        found += consumer.receive(1_000, 1 << 20, 10)
    consumer.close()
    assert [one.message._replace(sequence=None) for one in found] == ALL
    backend.close()
    node.close()


def test_http_polls_and_reads_are_answered_with_both_formats(app: Flask) -> None:
    client = app.test_client()
    found: list[str] = []
    while len(found) < len(ALL):
        answer = client.get("/events/polls/g/c?timeout=5000&limit=90")
        assert answer.status_code == 200
        assert answer.get_json(), "the poll ended early"
        found += answer.get_json()
    assert found == [value.decode() for value in VALUES]
    assert client.get("/events/polls/g/c?timeout=0").get_json() == []


def test_a_read_by_positions_shows_tombstones_and_keys(app: Flask) -> None:
    client = app.test_client()
    at = "/topics/public/default/reads/partitions/0/messages?timeout=5000&max_messages=50"
    found: list[dict[str, object]] = []
    query = ""
    while len(found) < len(ALL):
        answer = client.get(at + query)
        assert answer.status_code == 200, answer.text
        messages = answer.get_json()["messages"]
        assert messages, "the partition ended early"
        found += messages
        query = f"&after={found[-1]['messageId']}"
    assert [one["value"] for one in found] == [
        None if one.null else one.value.decode() for one in ALL
    ]
    assert [one["eventTime"] for one in found] == [one.event_time for one in ALL]
    assert [one["properties"] for one in found] == [dict(one.properties) for one in ALL]
    assert (found[4]["key"], found[6]["key"], found[6]["keyEncoding"]) == (
        "gone",
        "//4=",
        "base64",
    )


def test_a_reader_begins_within_a_record_batch(client: pulsar.Client) -> None:
    reader = client.create_reader("seeks", pulsar.MessageId.earliest)
    found = [reader.read_next(SOON) for _ in ALL]
    assert not reader.has_message_available()
    reader.close()
    place = VALUES.index(b"many-150")
    reader = client.create_reader("seeks", found[place].message_id())
    rest = []
    while reader.has_message_available():
        rest.append(reader.read_next(SOON).data())
    assert rest == VALUES[place + 1 :]
    reader.close()


def test_a_kafka_consumer_gets_both_formats_with_dense_offsets(
    shared_broker: BrokerProcess, kafka_address: str
) -> None:
    del shared_broker
    consumer = KafkaConsumer(bootstrap_servers=kafka_address, enable_auto_commit=False)
    try:
        partition = TopicPartition("kafka", 0)
        consumer.assign([partition])
        consumer.seek(partition, 7)  # kafka-python reads no snappy, which stands before
        wanted = ALL[7:]
        found: list[object] = []

        def complete() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.extend(
                    (one.offset, one.key, one.value, one.timestamp, dict(one.headers))
                    for one in records
                )
            return len(found) >= len(wanted)

        wait_until(complete)
    finally:
        consumer.close()
    assert found == [
        (
            7 + place,
            message.key,
            None if message.null else message.value,
            message.event_time or STORED,
            {name: value.encode() for name, value in message.properties.items()},
        )
        for place, message in enumerate(wanted)
    ]
