"""Spark's own Kafka connector on the router's broker, which serves Kafka clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from router.pipelines.declaration import SourceSpec
from router.pipelines.source import frame
from tests.kafka.clients import Record
from tests.kafka.clients.confluent import Confluent
from tests.kafka.scenarios import T0
from tests.ports import free_port
from tests.processes import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(400)]

PARTITIONS = 2
COUNT = 200


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    process = KafkaBroker(tmp_path_factory.mktemp("broker") / "data")
    process.start()
    yield process
    assert process.stop() == 0


class KafkaBroker(BrokerProcess):
    """A broker with both listeners; `kafka` is the address for Kafka clients."""

    def __init__(self, folder: Path) -> None:
        self.kafka = f"127.0.0.1:{free_port()}"
        super().__init__(folder, free_port(), broker_kafka=self.kafka)


@pytest.fixture
def client(broker: KafkaBroker) -> Iterator[Confluent]:
    with closing(Confluent(broker.kafka)) as opened:
        yield opened


def filled(client: Confluent) -> tuple[str, list[Record]]:
    """Return a topic and what is in it: even numbers in one partition, odd ones in the other."""
    topic = f"spark-{uuid4()}"
    client.create(topic, PARTITIONS)
    sent = [Record(b"%d" % n, b"key", (("h", b"%d" % n),), T0 + n) for n in range(COUNT)]
    for partition in range(PARTITIONS):
        client.produce(topic, sent[partition::PARTITIONS], partition=partition, codec="zstd")
    return topic, sent


def read(spark: SparkSession, address: str, topic: str, **options: str) -> DataFrame:
    """Return the rows of a topic by the connector."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    return reader.options(subscribe=topic, includeHeaders="true", **options).load()


def test_a_batch_has_the_records_with_keys_headers_and_times(
    spark: SparkSession, broker: KafkaBroker, client: Confluent
) -> None:
    topic, sent = filled(client)
    rows = read(spark, broker.kafka, topic).collect()
    found = sorted((row.partition, row.offset, bytes(row.value), bytes(row.key)) for row in rows)
    assert found == [
        (partition, place, record.value, b"key")
        for partition in range(PARTITIONS)
        for place, record in enumerate(sent[partition::PARTITIONS])
    ]
    assert all(row.headers[0].key == "h" for row in rows)
    assert all(row.headers[0].value == row.value for row in rows)
    times = sorted(int(row.timestamp.timestamp() * 1000) for row in rows)
    assert times == [record.timestamp for record in sent]


def test_a_batch_starts_at_a_time(
    spark: SparkSession, broker: KafkaBroker, client: Confluent
) -> None:
    topic, _ = filled(client)
    rows = read(spark, broker.kafka, topic, startingTimestamp=str(T0 + 150)).collect()
    assert sorted(int(row.value) for row in rows) == list(range(150, COUNT))


def test_a_stream_copies_a_topic_to_another_once(
    spark: SparkSession, broker: KafkaBroker, client: Confluent, tmp_path: Path
) -> None:
    (source, sent), target = filled(client), f"spark-{uuid4()}"
    client.create(target)
    for _ in range(2):
        stream = spark.readStream.format("kafka").options(
            subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="70"
        )
        rows = stream.option("kafka.bootstrap.servers", broker.kafka).load()
        writer = rows.selectExpr("key", "value").writeStream.format("kafka")
        options = {"topic": target, "checkpointLocation": str(tmp_path / "checkpoint")}
        options["kafka.bootstrap.servers"] = broker.kafka
        query = writer.options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    assert client.ends(target) == (0, COUNT)
    copied = sorted(one.record.value or b"" for one in client.read(target, 0, COUNT))
    assert copied == sorted(record.value or b"" for record in sent)


def test_the_source_of_pipelines_has_the_same_rows_by_both_listeners(
    spark: SparkSession, broker: KafkaBroker, client: Confluent
) -> None:
    topic, _ = filled(client)
    columns = ["topic", "partition", "key", "value", "properties"]
    shown = [
        sorted(
            map(
                str,
                frame(spark, SourceSpec(url=url, topics=(topic,)), False).select(columns).collect(),
            )
        )
        for url in (f"kafka://{broker.kafka}", f"embedded:{broker.folder}")
    ]
    assert len(shown[0]) == COUNT
    assert shown[0] == shown[1]
