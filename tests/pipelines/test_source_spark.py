"""The source under Spark: streams with checkpoints, frames, Kafka's own connector, and writing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.backends import Batch
from router.model import NOT_PARTITIONED, Message
from router.pipelines.checks import FILE
from router.pipelines.declaration import SourceSpec
from router.pipelines.listening import watch
from router.pipelines.source import frame, register
from tests.contract.conftest import stop_broker
from tests.pipelines.sourcing import WAIT, Store, fill
from tests.processes import wait_until
from tests.servers.kafka import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """The embedded broker, started when it is needed, and Kafka."""
    with ExitStack() as stack:
        if request.param == "kafka":
            server: Kafka = request.getfixturevalue("kafka")
            yield Store(stack, f"kafka://{server.address}")
        else:
            folder = tmp_path_factory.mktemp("source")
            stack.callback(stop_broker, folder)
            yield Store(stack, f"embedded:{folder}", **{"broker.linger": "1s"})


def spec(store: Store, topic: str, **told: object) -> SourceSpec:
    """Declare a source of one topic."""
    return SourceSpec(url=store.url, topics=(topic,), settings=store.settings, **told)  # type: ignore[arg-type]


def run(read: DataFrame, folder: Path) -> list[int]:
    """Have a stream take what there is; return the rows of its batches."""
    query = (
        read.selectExpr("topic", "partition", "position", "index", "cast(value AS STRING) AS value")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(280)
    assert query.exception() is None
    return [one.numInputRows for one in query.recentProgress]


def test_stream_reads_everything_once_over_restarts(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    topic = store.create(f"s-{uuid.uuid4().hex[:12]}", 2)
    told = fill(store, topic, 12, 10)
    source = spec(store, topic.local, max_rows=50)
    sizes = run(frame(spark, source, streaming=True), tmp_path)
    assert max(sizes) <= 50
    told += fill(store, topic, 4, 5)
    run(frame(spark, source, streaming=True), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row["value"].encode() for row in rows) == sorted(told)
    assert {(row["topic"], row["partition"]) for row in rows} == {
        (topic.local, 0),
        (topic.local, 1),
    }
    assert len({(row["partition"], row["index"]) for row in rows}) == len(rows)


def test_frame_has_the_columns_of_every_source(spark: SparkSession, store: Store) -> None:
    topic = store.create(f"s-{uuid.uuid4().hex[:12]}")
    some = [
        Message(b"v", b"\xff", {"a": "b"}, 1_700_000_000_123),
        Message(b"", b"gone", null=True),
    ]
    for message in some:
        store.backend.publish(Batch(topic, NOT_PARTITIONED, [message]), 60)
    read = frame(spark, spec(store, topic.local), streaming=False)
    assert read.schema.simpleString() == (
        "struct<topic:string,partition:int,position:string,index:bigint,key:binary,value:binary,"
        "properties:map<string,string>,event_time:timestamp,publish_time:timestamp,schema_version:bigint>"
    )
    first, second = read.orderBy("index").collect()
    assert (bytes(first["key"]), bytes(first["value"])) == (b"\xff", b"v")
    assert first["properties"] == {"a": "b"}
    assert first["event_time"].timestamp() == 1_700_000_000.123
    assert (second["value"], second["properties"], second["event_time"]) == (None, {}, None)
    assert [first["index"], second["index"]] == [0, 1]


def test_queries_of_a_session_show_their_lag(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    topic = store.create(f"s-{uuid.uuid4().hex[:12]}")
    fill(store, topic, 4, 10)
    lines: list[str] = []
    stop = watch(spark, "tests", show=lines.append)
    try:
        run(frame(spark, spec(store, topic.local, max_rows=10), streaming=True), tmp_path)
        wait_until(lambda: any("lag 0 messages, 0.0 s" in line for line in list(lines)), WAIT)
    finally:
        stop()
    assert "batch 0, 10 rows in" in lines[0]
    assert "lag 30 messages" in lines[0]


def test_key_and_subject_choose_the_rows(spark: SparkSession, store: Store) -> None:
    topic = store.create(f"s-{uuid.uuid4().hex[:12]}")
    for number in range(8):
        subject = f"orders.{'new' if number % 2 else 'old'}"
        message = Message(b"%d" % number, b"k%d" % (number // 4), {"Nats-Subject": subject})
        store.backend.publish(Batch(topic, NOT_PARTITIONED, [message]), 60)
    chosen = spec(store, topic.local, key="k1", subject="orders.new")
    rows = frame(spark, chosen, streaming=False).collect()
    assert sorted(bytes(row["value"]) for row in rows) == [b"5", b"7"]
    anywhere = frame(spark, spec(store, topic.local, subject="*.old"), streaming=False)
    assert anywhere.count() == 4


def test_frame_used_twice_has_all_rows_where_spark_pushes_conditions_down(
    spark: SparkSession, store: Store
) -> None:
    topic = store.create(f"s-{uuid.uuid4().hex[:12]}", 2)
    fill(store, topic, 4, 5)
    pushes_down = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(pushes_down, "true")
    try:
        read = frame(spark, spec(store, topic.local), streaming=False)
        first, second = (read.where(f"partition = {number}") for number in (0, 1))
        assert first.count() == 10
        assert read.count() == 20
        assert first.union(second).count() == 20
    finally:
        spark.conf.unset(pushes_down)


def test_what_a_frame_writes_is_read_again(spark: SparkSession, store: Store) -> None:
    register(spark)
    topic = f"s-{uuid.uuid4().hex[:12]}"
    written = spark.range(500).selectExpr(
        "concat('v', id) AS value",
        "cast(id % 7 AS STRING) AS key",
        "map('n', id || '') AS properties",
    )
    writer = written.write.format("router").mode("append").options(**store.settings)
    writer.option("url", store.url).option("topic", topic).save()
    rows = frame(spark, spec(store, topic), streaming=False).collect()
    assert sorted(bytes(row["value"]) for row in rows) == sorted(b"v%d" % n for n in range(500))
    assert all(row["properties"]["n"] == bytes(row["value"])[1:].decode() for row in rows)


def test_functions_that_a_check_knows_are_those_of_spark(spark: SparkSession) -> None:
    shown = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    # Operators are shown as well, and are no names.
    assert set(FILE.read_text().split()) == {name for name in shown if name.isidentifier()}


def test_no_process_is_started_to_write_a_checkpoint_but_for_its_permissions(
    spark: SparkSession,
) -> None:
    """Spark's own choice runs `readlink` for each file that it renames."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    found = managers.create(jvm.org.apache.hadoop.fs.Path("file:///checkpoint"), conf)
    assert found.getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"
