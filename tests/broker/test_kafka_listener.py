"""Official Kafka clients at the broker's Kafka listener."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from uuid import uuid4

import pulsar
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from tests.broker.conftest import official_client
from tests.ports import free_port
from tests.processes import BrokerProcess


@dataclass
class KafkaBroker:
    """A broker that serves Kafka clients."""

    process: BrokerProcess
    address: str


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    address = f"127.0.0.1:{free_port()}"
    folder = tmp_path_factory.mktemp("broker") / "data"
    process = BrokerProcess(
        folder, free_port(), broker_kafka=address, namespaces_auto_create="true"
    )
    process.start()
    yield KafkaBroker(process, address)
    process.stop()


def test_a_client_lists_topics(broker: KafkaBroker) -> None:
    name = f"orders.{uuid4().hex}"
    pulsar_client = official_client(broker.process.url)
    pulsar_client.create_producer(f"persistent://public/default/{name}")
    pulsar_client.create_producer("persistent://acme/eu/orders")
    pulsar_client.close()
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    consumer = KafkaConsumer(bootstrap_servers=broker.address)
    try:
        assert {name, "acme.eu.orders"} <= set(admin.list_topics())
        assert consumer.partitions_for_topic(name) == {0}
        (topic,) = admin.describe_topics([name])
        assert [partition["leader_id"] for partition in topic["partitions"]] == [1]
    finally:
        consumer.close()
        admin.close()


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_a_producer_sends_reaches_a_pulsar_client(
    broker: KafkaBroker, idempotent: bool
) -> None:
    name = f"orders.{uuid4().hex}"
    producer = KafkaProducer(
        bootstrap_servers=broker.address, enable_idempotence=idempotent, compression_type="gzip"
    )
    sent = [producer.send(name, b"%d" % n, key=b"k", headers=[("h", b"1")]) for n in range(100)]
    producer.flush()
    assert [future.get(20).offset for future in sent] == list(range(100))
    producer.close()
    client = official_client(broker.process.url)
    try:
        topic = f"persistent://public/default/{name}"
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        received = [reader.read_next(20_000) for _ in range(100)]
        assert [message.data() for message in received] == [b"%d" % n for n in range(100)]
        assert {message.partition_key() for message in received} == {"k"}
        assert received[0].properties() == {"h": "1"}
    finally:
        client.close()


def test_a_consumer_reads_what_both_protocols_stored(broker: KafkaBroker) -> None:
    name = f"orders.{uuid4().hex}"
    client = official_client(broker.process.url)
    pulsar_producer = client.create_producer(f"persistent://public/default/{name}")
    for number in range(20):
        pulsar_producer.send(b"%d" % number, properties={"h": "1"}, partition_key="k")
    client.close()
    producer = KafkaProducer(bootstrap_servers=broker.address, compression_type="lz4")
    for number in range(20, 100):
        producer.send(name, b"%d" % number, key=b"k", headers=[("h", b"1")])
    producer.send(name, None, key=b"k")
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=broker.address, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    try:
        partition = TopicPartition(name, 0)
        consumer.assign([partition])
        found = list(islice(consumer, 101))
        assert [record.offset for record in found] == list(range(101))
        assert [record.value for record in found] == [*(b"%d" % n for n in range(100)), None]
        assert {record.key for record in found} == {b"k"}
        assert {tuple(record.headers) for record in found[:100]} == {(("h", b"1"),)}
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 101}
        time = found[60].timestamp
        first = next(record for record in found if record.timestamp >= time)
        (by_time,) = consumer.offsets_for_times({partition: time}).values()
        assert by_time.offset <= first.offset
    finally:
        consumer.close()
