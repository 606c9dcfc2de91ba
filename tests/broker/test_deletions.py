"""Messages deleted one by one, in entries of every format, read by clients of every protocol.

The entries are written and the deletions made through the store, before the broker starts; what is
deleted while the broker runs is deleted by JetStream's API, by Kafka's, and by a stream's bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pulsar
import pytest
from flask import Flask
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import KAFKA_FORMAT, NATS_FORMAT, PULSAR_FORMAT, Store, StoreOptions
from router.model import Message
from router.model.policies import Policies
from router.wire.kafka.compression import GZIP
from router.wire.kafka.records import KafkaRecord
from tests.broker.test_formats import SOON, subscribe
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.wire.kafka.records_of import batch_of

STORED_MS = 1_700_000_000_000
FULL = "persistent://public/default/{}"
TOPICS = ("exclusive", "failover", "shared", "keys", "reads", "polls", "rest", "kafka", "stats")
Written = tuple[int, Sequence[str]]
MIXED: Sequence[Written] = (
    (PULSAR_FORMAT, ("p0",)),
    (PULSAR_FORMAT, ("p1", "p2", "p3")),
    (KAFKA_FORMAT, ("k4", "k5", "k6")),
    (NATS_FORMAT, ("n7", "n8", "n9")),
    (PULSAR_FORMAT, ("p10",)),
    (KAFKA_FORMAT, ("k11", "k12")),
    (NATS_FORMAT, ("n13",)),
    (PULSAR_FORMAT, tuple(f"p{n}" for n in range(14, 94))),
    (KAFKA_FORMAT, ("k94", "k95", "k96")),
    (NATS_FORMAT, ("n97", "n98")),
    (PULSAR_FORMAT, ("p99",)),
)
"""The number in a value is that of its message."""
VALUES = [value for _, values in MIXED for value in values]
DELETED = {0, 2, 4, 6, 8, 11, 12, *range(20, 90), 96, 98, 99}
LEFT = [value for number, value in enumerate(VALUES) if number not in DELETED]
CUT = [
    value
    for _, values in MIXED
    for value in values
    if value in LEFT and not set(values) <= set(LEFT)
]
"""What is left of entries of which something is deleted."""


def entry(tag: int, values: Sequence[str]) -> bytes:
    if tag == KAFKA_FORMAT:
        records = [KafkaRecord(n, n, b"key", value.encode(), ()) for n, value in enumerate(values)]
        return batch_of(records, GZIP)
    messages = [Message(value.encode(), b"key") for value in values]
    return ENTRY_FORMATS[tag].from_messages(messages, STORED_MS)


async def write(folder: Path) -> None:
    store = await Store.open(folder, StoreOptions(), lambda: STORED_MS / 1_000)
    for name in TOPICS:
        record = await store.create_topic(FULL.format(name), 0, Policies(), {})
        ledger = store.ledger(record.ledger_ids[0])
        for tag, values in MIXED:
            ledger.append(entry(tag, values), tag, len(values), STORED_MS, lambda _: None)
        store.delete_messages(ledger, [(number, number) for number in DELETED])
    await store.close()


@pytest.fixture(scope="module")
def kafka_address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def nats_address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def shared_broker(
    tmp_path_factory: pytest.TempPathFactory, kafka_address: str, nats_address: str
) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("deletions") / "data"
    folder.mkdir(mode=0o700)
    asyncio.run(write(folder))
    process = BrokerProcess(
        folder, free_port(), broker_kafka=kafka_address, broker_nats=nats_address
    )
    process.start()
    yield process
    process.stop()


def values_of(messages: Sequence[pulsar.Message]) -> list[str]:
    return [one.data().decode() for one in messages]


def stats(app: Flask, topic: str) -> dict[str, Any]:
    answer = app.test_client().get(f"/admin/v2/persistent/public/default/{topic}/stats")
    found: dict[str, Any] = answer.get_json()
    return found


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("exclusive", pulsar.ConsumerType.Exclusive),
        ("failover", pulsar.ConsumerType.Failover),
        ("shared", pulsar.ConsumerType.Shared),
        ("keys", pulsar.ConsumerType.KeyShared),
    ],
)
@pytest.mark.parametrize("by_index", [True, False], ids=["by-index", "by-entry"])
def test_a_pulsar_consumer_gets_what_is_left_and_acknowledges_it_whole(
    app: Flask, client: pulsar.Client, topic: str, kind: pulsar.ConsumerType, by_index: bool
) -> None:
    def open_consumer() -> pulsar.Consumer:
        return client.subscribe(
            topic,
            f"s-{by_index}",
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=by_index,
        )

    consumer = open_consumer()
    found = [consumer.receive(SOON) for _ in LEFT]
    assert values_of(found) == LEFT
    (subscription,) = [
        one for name, one in stats(app, topic)["subscriptions"].items() if name == f"s-{by_index}"
    ]
    assert subscription["msgBacklog"] == len(LEFT)
    for one in found:
        consumer.acknowledge(one)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    consumer.close()
    # A client that acknowledges whole entries only waits for messages that it never gets.
    again = [] if by_index else CUT
    consumer = open_consumer()
    assert values_of([consumer.receive(SOON) for _ in again]) == again
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    consumer.close()
    backlog = stats(app, topic)["subscriptions"][f"s-{by_index}"]["msgBacklog"]
    assert backlog == len(again)


def test_a_reader_knows_that_nothing_follows(client: pulsar.Client) -> None:
    reader = client.create_reader("reads", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(SOON))
    assert values_of(found) == LEFT
    reader.close()
    # From a message that is deleted: a stretch in the middle, or the end.
    middle = found[LEFT.index("p15")].message_id()
    reader = client.create_reader("reads", middle)
    rest = []
    while reader.has_message_available():
        rest.append(reader.read_next(SOON).data().decode())
    assert rest == LEFT[LEFT.index("p16") :]
    reader.close()


def test_polls_and_reads_over_http_get_what_is_left(app: Flask) -> None:
    client = app.test_client()
    found: list[str] = []
    while len(found) < len(LEFT):
        answer = client.get("/events/polls/g/c?timeout=5000&limit=9")
        assert answer.status_code == 200
        assert answer.get_json()
        found += answer.get_json()
    assert found == LEFT
    assert client.get("/events/polls/g/c?timeout=0").get_json() == []

    address = "/topics/public/default/rest/partitions/0/messages"
    shown = client.get(f"{address}?timeout=0&max_messages=1000").get_json()["messages"]
    assert [one["value"] for one in shown] == LEFT
    behind = shown[LEFT.index("p17")]["messageId"]
    rest = client.get(f"{address}?timeout=0&max_messages=1000&after={behind}").get_json()
    assert [one["value"] for one in rest["messages"]] == LEFT[LEFT.index("p18") :]
    made = client.post(
        "/topics/public/default/rest/subscription/s", json={"start": "earliest"}
    ).get_json()
    fetched = client.get(made["base_uri"].split("/", 3)[3].join(("/", "/messages?timeout=1000")))
    assert [one["value"] for one in fetched.get_json()["messages"]] == LEFT


def test_administration_counts_and_shows_what_is_left(app: Flask) -> None:
    client = app.test_client()
    base = "/admin/v2/persistent/public/default/stats"
    made = client.put(f"{base}/subscription/s", json={"ledgerId": -1, "entryId": -1})
    assert made.status_code < 300, made.text
    found = stats(app, "stats")
    assert found["subscriptions"]["s"]["msgBacklog"] == len(LEFT)
    assert (found["msgInCounter"], found["storageSize"] > 0) == (len(LEFT), True)

    def peeked(path: str) -> tuple[int, str]:
        answer = client.get(f"{base}/{path}")
        return answer.status_code, answer.text

    first, last = "p1", "n97"
    earliest = "examinemessage?initialPosition=earliest&messagePosition=1"
    status, text = peeked(earliest)
    assert (status, first in text, "p2" in text, "p3" in text) == (200, True, False, True)
    assert first in peeked("subscription/s/position/1")[1]
    status, text = peeked("examinemessage?initialPosition=latest&messagePosition=1")
    assert (status, last in text, "n98" in text) == (200, True, False)
    shown = client.get(f"{base}/lastMessageId").get_json()
    assert (shown["entryId"], shown["batchIndex"]) == (len(MIXED) - 2, 0)


@pytest.mark.usefixtures("shared_broker")
def test_a_kafka_consumer_gets_what_is_left_at_its_offsets(kafka_address: str) -> None:
    place = TopicPartition("kafka", 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka_address, group_id=None)
    try:
        consumer.assign([place])
        assert consumer.beginning_offsets([place]) == {place: 1}
        assert consumer.end_offsets([place]) == {place: 100}
        consumer.seek(place, 0)
        found: list[tuple[int, str]] = []
        while consumer.position(place) < 100:
            records = consumer.poll(timeout_ms=2_000).get(place, ())
            found += [(record.offset, record.value.decode()) for record in records]
        assert found == [(VALUES.index(value), value) for value in LEFT]
        admin = KafkaAdminClient(bootstrap_servers=kafka_address)
        deleted = admin.delete_records({place: 16})
        admin.close()
        assert deleted[place]["low_watermark"] == 16
        assert consumer.beginning_offsets([place]) == {place: 16}
        consumer.seek_to_beginning(place)
        assert consumer.poll(timeout_ms=SOON)[place][0].value == b"p16"
    finally:
        consumer.close()


def test_messages_that_jetstream_deletes_are_gone_for_all(
    app: Flask, client: pulsar.Client, nats_address: str, kafka_address: str
) -> None:
    async def work() -> None:
        connection = await nats.connect(f"nats://{nats_address}")
        try:
            stream = connection.jetstream()
            await stream.add_stream(name="live", subjects=["live.>"], max_msgs=6)
            for number in range(10):
                await stream.publish(f"live.{number % 2}", b"%d" % number)
            assert await stream.delete_msg("live", 7)
            await stream.purge_stream("live", subject="live.0")
            info = await stream.stream_info("live")
            assert (info.state.messages, info.state.last_seq) == (3, 10)
        finally:
            await connection.close()

    asyncio.run(work())
    left = ["5", "7", "9"]
    consumer = subscribe(client, "live", pulsar.ConsumerType.Exclusive)
    assert values_of([consumer.receive(SOON) for _ in left]) == left
    consumer.close()
    reader = client.create_reader("live", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(SOON).data().decode())
    assert found == left
    assert app.test_client().get("/events/live/g/c?timeout=5000").get_json() == left
    kafka = KafkaConsumer(
        "live", bootstrap_servers=kafka_address, auto_offset_reset="earliest", group_id=None
    )
    read: list[str] = []
    with suppress(StopIteration):
        while len(read) < len(left):
            read.append(next(kafka).value.decode())
    kafka.close()
    assert read == left
    assert stats(app, "live")["msgInCounter"] == len(left)
