"""Rows of a stream in topics, Parquet and Delta, started and started again on one checkpoint."""

from __future__ import annotations

import datetime
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from router import settings as all_settings
from router.backends import memory
from router.errors import SettingError
from router.model import TopicName
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks import check_sink, tidy_sink
from router.pipelines.sinks.keyed import quoted
from tests.pipelines.sinking import Sinking, Stream, new_topic, stored

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOPIC = SinkSpec("out", "topic", topic="out")
OUT = TopicName.parse("out")


@pytest.fixture
def sinking(folder: Path) -> Iterator[Sinking]:
    """Sinks on a store in this process."""
    settings = all_settings.load(None, {}, {"data.dir": str(folder), "backend.url": "memory:"})
    backend = memory.open_backend("memory:", settings, None)
    new_topic(backend, "out", 2)
    yield Sinking(folder, backend, settings)
    backend.close()


@pytest.fixture
def stream(spark: SparkSession, folder: Path) -> Stream:
    """A stream of two files."""
    found = Stream(spark, folder / "in")
    found.add([(1, "a"), (2, "b")])
    found.add([(3, "c")])
    return found


def messages(frame: DataFrame) -> DataFrame:
    return frame.select(
        f.col("name").alias("value"),
        f.col("id").cast("string").alias("key"),
        f.create_map(f.lit("n"), f.col("name")).alias("properties"),
        f.timestamp_millis(f.col("id")).alias("event_time"),
    )


def test_topic_gets_each_row_with_its_key_properties_and_time(
    sinking: Sinking, stream: Stream
) -> None:
    sinking.run(messages(stream.frame()), TOPIC)
    found = {m.value: m for m in stored(sinking.context.backend, OUT)}
    assert sorted(found) == [b"a", b"b", b"c"]
    message = found[b"c"]
    assert (message.key, message.event_time) == (b"3", 3)
    assert message.properties == {"n": "c"}


def test_topic_gets_each_row_once_when_the_commit_of_a_batch_is_lost(
    sinking: Sinking, stream: Stream
) -> None:
    sinking.run(messages(stream.frame()), TOPIC)
    sinking.lose_commit()
    stream.add([(4, "d")])
    sinking.run(messages(stream.frame()), TOPIC)
    values = [m.value for m in stored(sinking.context.backend, OUT)]
    assert sorted(values) == [b"a", b"b", b"c", b"d"]


def test_topic_gets_fresh_rows_when_the_checkpoint_was_deleted(
    sinking: Sinking, stream: Stream
) -> None:
    sinking.run(messages(stream.frame()), TOPIC)
    shutil.rmtree(sinking.folder / "checkpoint")
    sinking.run(messages(stream.frame()), TOPIC)
    values = Counter(m.value for m in stored(sinking.context.backend, OUT))
    assert values == {b"a": 2, b"b": 2, b"c": 2}


@pytest.mark.parametrize("kind", ["topic", "parquet"])
def test_run_that_is_killed_amid_its_first_entry_of_offsets_does_not_stop_the_next(
    sinking: Sinking, stream: Stream, kind: str
) -> None:
    sink = TOPIC if kind == "topic" else SinkSpec("out", kind, path=str(sinking.folder / kind))
    offsets = sinking.folder / "checkpoint" / "out" / "offsets"
    offsets.mkdir(parents=True)
    for name in (".0.5aa1.tmp", "..0.5aa1.tmp.crc"):
        (offsets / name).write_bytes(b"v1")
    sinking.run(messages(stream.frame()), sink)
    assert {path.name for path in offsets.iterdir() if path.name.isdigit()} == {"0", "1"}


def test_topic_leaves_nothing_staged_when_it_ended_well(sinking: Sinking, stream: Stream) -> None:
    sinking.run(messages(stream.frame()), TOPIC)
    staging = sinking.folder / "checkpoint" / "out" / "staging"
    assert [path.name for path in staging.iterdir()] == ["batch=1"]
    tidy_sink(TOPIC, sinking.context)
    assert list(staging.iterdir()) == []


def test_topic_gets_whole_rows_as_json_when_they_have_no_value(
    sinking: Sinking, stream: Stream
) -> None:
    sinking.run(stream.frame(), TOPIC)
    found = [json.loads(m.value) for m in stored(sinking.context.backend, OUT)]
    expected = [(1, "a"), (2, "b"), (3, "c")]
    assert sorted((row["id"], row["name"]) for row in found) == expected


def test_topic_takes_columns_whatever_the_case_of_their_names(
    sinking: Sinking, stream: Stream
) -> None:
    sinking.run(stream.frame().selectExpr("name AS VALUE", "CAST(id AS STRING) AS Key"), TOPIC)
    found = {(m.key, m.value) for m in stored(sinking.context.backend, OUT)}
    assert found == {(b"1", b"a"), (b"2", b"b"), (b"3", b"c")}


def test_topic_of_each_row_is_what_its_column_says_when_the_sink_names_none(
    sinking: Sinking, stream: Stream
) -> None:
    named = f.concat(f.lit("to-"), f.col("name")).alias("topic")
    frame = stream.frame().select(f.col("name").alias("value"), named)
    sinking.run(frame, SinkSpec("each", "topic"))
    for name in ("a", "b", "c"):
        found = stored(sinking.context.backend, TopicName.parse(f"to-{name}"), 0.2)
        assert [m.value for m in found] == [name.encode()]


def test_query_ends_with_the_sentence_when_a_message_is_too_large(
    sinking: Sinking, stream: Stream
) -> None:
    large = stream.frame().select(f.repeat(f.col("name"), 1_000_001).alias("value"))
    with pytest.raises(PySparkException, match="a message of 1000001 bytes"):
        sinking.run(large, TOPIC)
    assert len(sinking.told) == 1
    sinking.run(messages(stream.frame()), TOPIC)
    assert len(stored(sinking.context.backend, OUT)) == 3


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (["name AS value", "id AS count"], "no column count"),
        (["id AS value"], 'column "value" is bigint'),
        (["name AS value", "id AS key"], 'column "key" is bigint'),
        (["name AS value", "name AS properties"], 'column "properties" is string'),
        (["name AS value", "name AS event_time"], "timestamp or a bigint"),
        (["name AS value", "name AS topic"], "no column topic"),
        (["name AS value", "id AS value"], "the same name"),
    ],
)
def test_check_refuses_rows_that_are_no_messages(
    sinking: Sinking, stream: Stream, columns: list[str], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        check_sink(stream.frame().selectExpr(*columns), TOPIC, sinking.context)


@pytest.mark.parametrize(
    ("sink", "sentence"),
    [
        (SinkSpec("s", "topic"), 'no column "topic"'),
        (SinkSpec("s", "topic", topic="t", options={"patience": "x"}), "a duration"),
        (SinkSpec("s", "parquet"), "needs a path"),
        (SinkSpec("s", "parquet", path="p", mode="update"), "mode append"),
        (SinkSpec("s", "delta", path="p", partition_by=("day",)), "no such column"),
        (SinkSpec("s", "delta", path="p", key=("no",)), "no column 'no'"),
        (SinkSpec("s", "delta", path="p", key=("id",), deletes="name"), "to be a BOOLEAN"),
        (SinkSpec("s", "delta", path="p", key=("id",), options={"a": "b"}), "only option"),
        (SinkSpec("s", "delta", path="p", options={"checkpointLocation": "x"}), "not for"),
        (SinkSpec("s", "jdbc", url="jdbc:postgresql://a/b?password=x", table="t"), "password_file"),
        (SinkSpec("s", "jdbc", url="jdbc:postgresql:b", key=("no",)), "no column 'no'"),
    ],
)
def test_check_refuses_sinks_that_cannot_work(
    sinking: Sinking, stream: Stream, sink: SinkSpec, sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        check_sink(stream.frame(), sink, sinking.context)


@pytest.mark.parametrize(
    ("column", "partitions", "sentence"),
    [
        ("array(struct(NULL AS a))", (), "'x' has the type void"),
        ("map(name, id * INTERVAL '1' SECOND)", (), "'x' has the type interval day to second"),
        ("struct(id)", ("x",), "no partitions by the column 'x', of the type struct<id"),
    ],
)
def test_check_refuses_the_types_that_delta_refuses_at_the_first_batch(
    sinking: Sinking, stream: Stream, column: str, partitions: tuple[str, ...], sentence: str
) -> None:
    rows = stream.frame().selectExpr("id", f"{column} AS x")
    sink = SinkSpec("s", "delta", path=str(sinking.folder / "table"), partition_by=partitions)
    with pytest.raises(SettingError, match=sentence):
        check_sink(rows, sink, sinking.context)
    check_sink(rows, replace(sink, kind="parquet"), sinking.context)
    writer = rows.writeStream.format("delta").partitionBy(*partitions).trigger(availableNow=True)
    with pytest.raises(PySparkException, match="DELTA_"):
        writer.option("checkpointLocation", str(sinking.folder / "own")).start(
            sink.path
        ).awaitTermination(60)


def test_intervals_are_text_in_a_delta_table_that_has_text_for_them(
    sinking: Sinking, stream: Stream, spark: SparkSession
) -> None:
    rows = stream.frame().selectExpr("id", "INTERVAL '1' SECOND AS x")
    sink = SinkSpec("out", "delta", path=str(sinking.folder / "table"))
    with pytest.raises(SettingError, match="'x' has the type interval second"):
        check_sink(rows, sink, sinking.context)
    spark.sql("SELECT 0L AS id, '' AS x").write.format("delta").save(sink.path)
    sinking.run(rows, sink)
    found = spark.read.format("delta").load(sink.path).where("id > 0").collect()
    assert {row["x"] for row in found} == {"INTERVAL '01' SECOND"}


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_files_have_each_row_once_in_folders_by_date_when_a_commit_is_lost(
    sinking: Sinking, stream: Stream, spark: SparkSession, kind: str
) -> None:
    path = str(sinking.folder / kind)
    sink = SinkSpec("files", kind, path=path, partition_by=("date",))
    days = f.timestamp_seconds(f.col("id") * 86_400).alias("event_time")

    def run() -> None:
        sinking.run(stream.frame().select("id", "name", days), sink)

    run()
    commits = sinking.folder / "checkpoint" / "files" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink(missing_ok=True)
    stream.add([(4, "d")])
    run()
    found = spark.read.format(kind).load(path).collect()
    assert Counter((row.id, row.name) for row in found) == Counter(
        zip((1, 2, 3, 4), "abcd", strict=True)
    )
    assert all(row.date == datetime.date(1970, 1, 1 + row.id) for row in found)
    assert (sinking.folder / kind / "date=1970-01-05").is_dir()


class Changes:
    """A stream of changes by key, merged into a Delta table."""

    def __init__(self, sinking: Sinking, spark: SparkSession, **declared: object) -> None:
        self.sinking = sinking
        self.spark = spark
        self.path = str(sinking.folder / "table`s")
        self.sink = SinkSpec("out", "delta", path=self.path, key=("name",), **declared)  # type: ignore[arg-type]

    def rows(self) -> dict[str, int]:
        """Return the table."""
        found = self.spark.read.format("delta").load(self.path).collect()
        assert len({row["name"] for row in found}) == len(found)
        return {row["name"]: row["number"] for row in found}

    def merges(self) -> int:
        """Return how many commits of the table are merges."""
        history = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.path.replace('`', '``')}`")
        return sum(row["operation"] == "MERGE" for row in history.collect())


def test_delta_keeps_the_newest_row_of_a_key_and_merges_a_batch_once(
    sinking: Sinking, spark: SparkSession
) -> None:
    stream = Stream(spark, sinking.folder / "in")
    changes = Changes(sinking, spark, order="number", deletes="gone")

    def run() -> None:
        number = "nullif(id, 7) AS number"
        rows = stream.frame().selectExpr(number, "name", "id % 10 = 0 AS gone")
        sinking.run(rows, changes.sink)

    stream.add([(2, "a"), (1, "a"), (3, "b"), (4, "c"), (10, "d")])
    stream.add([(1, "b"), (20, "c"), (5, "a")])
    run()
    assert changes.rows() == {"a": 5, "b": 3}
    assert changes.merges() == 2
    sinking.lose_commit()
    spark.sql(f"DELETE FROM delta.`{changes.path.replace('`', '``')}` WHERE name = 'a'")
    # A row that has no number is older than one that has.
    stream.add([(6, "e"), (7, "b")])
    run()
    # Had the lost batch been merged again, there were an `a`.
    assert changes.rows() == {"b": 3, "e": 6}
    assert changes.merges() == 3


@pytest.mark.parametrize("key", [("name",), ()], ids=["merged", "appended"])
def test_delta_refuses_decimals_that_a_table_would_round(
    sinking: Sinking, spark: SparkSession, key: tuple[str, ...]
) -> None:
    stream = Stream(spark, sinking.folder / "in")
    changes = Changes(sinking, spark)
    changes.sink = replace(changes.sink, key=key)
    stream.add([(1, "a")])

    def run(scale: int) -> None:
        number = f"CAST(id AS DECIMAL(9, {scale})) AS number"
        sinking.run(stream.frame().selectExpr(number, "name"), changes.sink)

    run(2)
    with pytest.raises(SettingError, match=r"2 digits behind the point, and its rows have 3"):
        run(3)
    stream.add([(2, "b")])
    run(1)
    assert changes.rows() == {"a": 1, "b": 2}
    spark.sql("SELECT 1L AS number, 'a' AS name").write.format("delta").save(changes.path + "2")
    changes.sink = replace(changes.sink, path=changes.path + "2")
    with pytest.raises(SettingError, match=r"0 digits behind the point, and its rows have 1"):
        run(1)


def test_delta_takes_wider_numbers_and_any_name_where_the_table_was_made_for_them(
    sinking: Sinking, spark: SparkSession
) -> None:
    stream = Stream(spark, sinking.folder / "in")
    changes = Changes(sinking, spark)
    changes.sink = replace(changes.sink, key=(), options={"mergeSchema": "true"})
    spark.sql(
        f"CREATE TABLE delta.{quoted(changes.path)} (number DECIMAL(9, 2), `a name` STRING)"
        " USING delta TBLPROPERTIES"
        " ('delta.enableTypeWidening' = true, 'delta.columnMapping.mode' = 'name')"
    )
    stream.add([(1, "a")])
    number = "CAST(id AS DECIMAL(12, 3)) AS number"
    sinking.run(stream.frame().selectExpr(number, "name AS `a name`"), changes.sink)
    found = spark.read.format("delta").load(changes.path)
    assert [str(row["number"]) for row in found.collect()] == ["1.000"]


def test_delta_gets_the_results_of_updated_groups_and_refuses_two_rows_of_a_key(
    sinking: Sinking, spark: SparkSession
) -> None:
    stream = Stream(spark, sinking.folder / "in")
    changes = Changes(sinking, spark, mode="update")
    stream.add([(1, "a"), (2, "a"), (3, "b")])
    stream.add([(4, "a")])
    sums = stream.frame().groupBy("name").agg(f.sum("id").alias("number"))
    sinking.run(sums, changes.sink)
    assert changes.rows() == {"a": 7, "b": 3}
    shutil.rmtree(sinking.folder / "checkpoint")
    with pytest.raises(PySparkException, match=r"several rows of one key: declare sink\.order"):
        sinking.run(stream.frame().selectExpr("id AS number", "name"), changes.sink)
    assert changes.rows() == {"a": 7, "b": 3}
