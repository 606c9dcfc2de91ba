"""The jobs that are no SQL: validate, replay and maintain, on real tables and real topics."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.backends import Backend, memory
from router.errors import SettingError
from router.model import REPLAYED
from router.pipelines.declaration import JobSpec, Pipeline, SinkSpec, SourceSpec
from router.pipelines.jobs import JobContext, maintaining, problem, run
from tests.contract.conftest import Opened, open_kafka, open_with_node, settings_for
from tests.pipelines.topics import read
from tests.processes import ManualClock
from tests.servers.kafka import Kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
ARCHIVE = (
    "topic string, partition int, position string, index bigint, key binary, value binary,"
    " properties map<string, string>, event_time timestamp, publish_time timestamp"
)
NOW = 1_790_000_000_000
Row = tuple[
    str, int, str, int, bytes | None, bytes | None, dict[str, str], datetime | None, datetime
]


@pytest.fixture
def said() -> list[str]:
    return []


class Waits(threading.Event):
    """Lets time pass where a job waits, and says stop at the last of so many waits."""

    def __init__(self, clock: ManualClock, most: int) -> None:
        super().__init__()
        self._clock = clock
        self._left = most

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0)
        self._left -= 1
        return self._left <= 0


@pytest.fixture
def job(
    spark: SparkSession, tmp_path: Path, said: list[str], clock: ManualClock
) -> Callable[..., bool]:
    """Run a job on a store, or without one."""

    def start(
        kind: str,
        store: Opened | None = None,
        waits: int = 1 << 30,
        sinks: tuple[SinkSpec, ...] = (),
        **options: object,
    ) -> bool:
        pipeline = Pipeline(
            "test",
            SourceSpec(),
            sinks=sinks,
            checkpoint=str(tmp_path / "checkpoint"),
            job=JobSpec(kind, options),
        )
        context = JobContext(
            pipeline=pipeline,
            spark=spark,
            backend=store.backend if store else open_memory(),
            settings=store.settings if store else settings_for(tmp_path),
            stop=Waits(clock, waits),
            notify=said.append,
            clock=clock,
            wall_ms=lambda: NOW,
        )
        return run(context)

    return start


def open_memory() -> Backend:
    return memory.open_backend("memory", settings_for(Path()), None)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.java)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    with ExitStack() as stack:
        if request.param == "kafka":
            kafka: Kafka = request.getfixturevalue("kafka")
            yield open_kafka(kafka.address, tmp_path / "data", stack)
        else:
            yield open_with_node("embedded", tmp_path / "data", stack)


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + seconds, UTC)


def archived(count: int, partition: int = 0) -> list[Row]:
    """Return rows as `archive` keeps them, with what is easily lost: empty, absent, not text."""
    return [
        (
            "orders",
            partition,
            f"1:{number // 10}:{number % 10}",
            number,
            [None, b"", b"key", b"\xff\x00"][number % 4],
            [b"", None, bytes([number % 256, 0xFF]), b'{"id": 1}'][number % 4],
            {} if number % 3 else {"a": "1", "\u00fc": ""},
            at(number) if number % 2 else None,
            at(number),
        )
        for number in range(count)
    ]


def test_replay_is_the_same_bytes_in_order_and_goes_on_after_a_stop(
    spark: SparkSession,
    job: Callable[..., bool],
    store: Opened,
    tmp_path: Path,
    said: list[str],
    clock: ManualClock,
) -> None:
    rows = archived(500) + archived(300, 1) + archived(70, 2)
    table = str(tmp_path / "archive")
    spark.createDataFrame(sorted(rows, key=str) + rows[:50], ARCHIVE).repartition(3).write.parquet(
        table
    )
    topic = f"{store.new_name().local}-replayed"
    options = {"archive": table, "format": "parquet", "to": topic, "rate": 500, "chunk": 100}

    # It stops within a file, and goes on at another rate, by which appends would have more rows.
    assert job("replay", store, 7, **{**options, "rate": 30})
    stopped = re.fullmatch(r"stopped: (\d+) of 870 messages are replayed for certain", said[-1])
    assert stopped is not None
    left = 870 - int(stopped[1])
    assert 0 < left < 870
    begun = clock()
    assert job("replay", store, **options)
    assert said[-1] == "replayed all 870 messages"
    assert (left - 100) / 500 - 1e-6 <= clock() - begun <= left / 500
    assert job("replay", store, **options)
    assert said[-1].startswith("an earlier run replayed all 870 messages, and this one none")

    found = read(store.backend, topic)
    assert len(found) == 3
    for partition, stored in enumerate(found):
        expected = [row for row in rows if row[1] == partition]
        assert [dict(one.message.properties)[REPLAYED] for one in stored] == [
            f"orders:{partition}:{row[2]}" for row in expected
        ]
        for one, (_, _, _, _, key, value, properties, event_time, _) in zip(
            stored, expected, strict=True
        ):
            got = one.message
            assert (got.key, None if got.null else got.value) == (key, value)
            assert {k: v for k, v in got.properties.items() if k != REPLAYED} == properties
            ms = round(event_time.timestamp() * 1000) if event_time else None
            assert got.event_time == ms


def test_replay_takes_only_the_topics_and_times_that_were_asked_for(
    spark: SparkSession, job: Callable[..., bool], tmp_path: Path, said: list[str]
) -> None:
    table = str(tmp_path / "archive")
    other = [("bills", *row[1:]) for row in archived(10)]
    spark.createDataFrame(archived(30) + other, ARCHIVE).write.format("delta").save(table)
    with ExitStack() as stack:
        store = open_with_node("embedded", tmp_path / "data", stack)
        assert job("replay", store, archive=table, topics=["orderz"])
        assert said[-1] == f"{table} has no message of these topics and times"
        assert job(
            "replay",
            store,
            archive=table,
            topics=["orders"],
            to="{topic}.again",
            rate=1e6,
            **{"from": at(5).isoformat(), "until": at(25).isoformat()},
        )
        [stored] = read(store.backend, "orders.again")
    assert [one.message.properties[REPLAYED] for one in stored] == [
        f"orders:0:{row[2]}" for row in archived(30)[5:25]
    ]


def test_replay_says_what_is_wrong_when_there_is_no_archive(
    job: Callable[..., bool], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        store = open_with_node("embedded", tmp_path / "data", stack)
        with pytest.raises(SettingError, match="is no archive") as error:
            job("replay", store, archive=str(tmp_path / "nothing"), format="parquet")
    assert "\n" not in str(error.value)


def test_validate_says_for_each_message_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    (tmp_path / "orders.json").write_text(json.dumps(schema))
    found = problem(JobSpec("validate", {"schemas": {"orders": "orders.json"}}), tmp_path)
    rows = [
        ("orders", b'{"id": 1}'),
        ("orders", b'{"id": "x"}'),
        ("orders", b"\xff"),
        ("orders", None),
        ("bills", b"{}"),
    ]
    frame = spark.createDataFrame(rows, "topic string, value binary")
    errors = [row[0] for row in frame.select(found(frame.topic, frame.value)).collect()]
    assert errors[0] is None
    assert errors[1] == "$.id: 'x' is not of type 'integer'"
    assert errors[2].startswith("no JSON: ")
    assert errors[3:] == ["there is no value", "there is no schema for bills"]


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("part-*.parquet"))


def test_maintain_makes_small_files_of_a_delta_table_into_large_ones(
    spark: SparkSession, job: Callable[..., bool], tmp_path: Path, said: list[str]
) -> None:
    table = tmp_path / "delta table"
    for number in range(6):
        frame = spark.range(number * 10, number * 10 + 10).selectExpr("id", "id % 2 AS part")
        frame.coalesce(1).write.format("delta").partitionBy("part").mode("append").save(str(table))
    before = len(files(table))
    assert job("maintain", table=str(table), where="part = 1", vacuum=False)
    assert said == [f"{table}: 6 files became 1"]
    said.clear()
    sinks = (
        SinkSpec("table", "delta", path=str(table)),
        SinkSpec("later", "parquet", path=str(tmp_path / "later")),
        SinkSpec("topic", "topic", topic="t"),
    )
    assert job("maintain", sinks=sinks, vacuum=False)
    read_back = spark.read.format("delta").load(str(table))
    assert sorted(row.id for row in read_back.collect()) == list(range(60))
    assert (before, len(read_back.inputFiles())) == (12, 2)
    assert said == [f"{table}: 6 files became 1", f"{tmp_path / 'later'}: not there yet"]
    assert job("maintain", table=str(table), compact=False)
    assert len(files(table)) == 14, "what was named within a week stays"
    changed = ("spark.databricks.delta.retentionDurationCheck.enabled", maintaining.LISTING)
    assert [spark.conf.get(name, None) for name in changed] == [None, None]


def test_maintain_leaves_a_parquet_table_that_spark_writes_readable(
    spark: SparkSession, job: Callable[..., bool], tmp_path: Path, said: list[str]
) -> None:
    source, table, into = (tmp_path / name for name in ("source", "table", "into"))
    for number in range(4):
        frame = spark.range(number * 10, number * 10 + 10).selectExpr("id", "id % 2 AS part")
        frame.coalesce(1).write.mode("append").parquet(str(source))
    stream = spark.readStream.schema("id bigint, part bigint").option("maxFilesPerTrigger", 1)
    query = (
        stream.parquet(str(source))
        .writeStream.partitionBy("part")
        .option("checkpointLocation", str(tmp_path / "checkpoint of the stream"))
        .trigger(availableNow=True)
        .start(str(table), format="parquet")
    )
    assert query.awaitTermination(120)
    committed = files(table)
    torn = table / "part=0" / "part-00000-of-a-killed-run.parquet"
    torn.write_bytes(b"PAR1")
    young = table / "part=1" / "part-00001-of-a-run-that-writes.parquet"
    young.write_bytes(b"PAR1")
    old = NOW / 1000 - 8 * 86_400
    for path in [torn, *committed]:
        os.utime(path, (old, old))
    os.utime(young, (NOW / 1000, NOW / 1000))
    # `check` lets a checkpoint be here.
    hidden = table / ".checkpoint" / "offsets" / "0"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("v1\n")
    os.utime(hidden, (old, old))

    assert job("maintain", table=str(table), format="parquet", into=str(into))

    assert hidden.exists()

    assert files(table) == sorted([*committed, young])
    for folder in (table, into):
        rows = spark.read.parquet(str(folder)).collect()
        assert sorted((row.id, row.part) for row in rows) == [(n, n % 2) for n in range(40)]
    assert len(committed) == 8
    assert len(files(into)) == 2
    assert said == [
        f"{table}: deleted 1 files that its log does not name, 4 bytes",
        f"{table}: 8 files became 2 in {into}, 40 rows; {table} stays as it is",
    ]
    with pytest.raises(SettingError, match="exists already"):
        job("maintain", table=str(table), format="parquet", into=str(into))


def test_maintain_of_sinks_takes_a_condition_where_tables_have_its_partitions(
    spark: SparkSession, job: Callable[..., bool], tmp_path: Path, said: list[str]
) -> None:
    plain, parted, empty = (tmp_path / name for name in ("plain", "parted", "empty"))
    for number in range(2):
        rows = spark.range(number, number + 1).selectExpr("id", "1 AS part").coalesce(1)
        rows.write.format("delta").mode("append").save(str(plain))
        rows.write.format("delta").partitionBy("part").mode("append").save(str(parted))
    # As a sink leaves it that has had no rows yet.
    (empty / maintaining.LOG).mkdir(parents=True)
    (empty / maintaining.LOG / "0").write_text("v1\n")
    sinks = (
        SinkSpec("plain", "delta", path=str(plain)),
        SinkSpec("empty", "parquet", path=str(empty)),
        SinkSpec("parted", "delta", path=str(parted)),
    )
    assert job("maintain", sinks=sinks, where="part = 1")
    assert f"{empty}: deleted 0 files that its log does not name, 0 bytes" in said
    assert said[-1] == f"{parted}: 2 files became 1"
    assert any(line.startswith(f"{plain}: Predicate references non-partition") for line in said)
    with pytest.raises(SettingError, match=r"not all tables are maintained: .*non-part"):
        job("maintain", sinks=sinks, where="none = 1", vacuum=False)
    with pytest.raises(SettingError, match="is no Delta table"):
        job("maintain", sinks=(SinkSpec("e", "delta", path=str(empty)), *sinks), vacuum=False)
    assert said[-1] == f"{parted}: 0 files became 0"


def test_maintain_says_so_when_there_is_no_table(job: Callable[..., bool], tmp_path: Path) -> None:
    for kind in ("delta", "parquet"):
        extra = {"into": str(tmp_path / "into")} if kind == "parquet" else {}
        with pytest.raises(SettingError, match=r"no Delta table|does not exist"):
            job("maintain", table=str(tmp_path / "nothing"), format=kind, **extra)
