"""Streams of several topics with a schema each, joined with each other and with tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from router.model import Message
from router.pipelines.declaration import TableSpec
from router.pipelines.progress import PipelineProgress
from router.pipelines.queries import RESTART_SECONDS, Queries, Retries
from router.pipelines.tables import Tables
from router.pipelines.testing.cases import load
from router.pipelines.testing.running import run
from router.services.pipelines import read_status
from tests.pipelines.running import Site, site
from tests.pipelines.topics import create, publish, read
from tests.processes import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAIT = 240

pytestmark = [pytest.mark.timeout(600), pytest.mark.java, pytest.mark.slow]
DECLARED = """
bad_records = "dlq"

[source]
topics = ["orders"]
format = "json"
schema = "id BIGINT, customer STRING"
watermark = { column = "_publish_time", delay = "1 minute" }

[[stream]]
name = "payments"
topics = ["payments"]
format = "csv"
schema = "number BIGINT, cents BIGINT"
watermark = { column = "_publish_time", delay = "1 minute" }

[[table]]
name = "customers"
path = "customers"
format = "parquet"
schema = "name STRING, country STRING"

[[step]]
name = "paid"
sql = '''
SELECT o.id, c.country, p.cents
FROM records o
JOIN payments p ON o.id = p.number
    AND p._publish_time BETWEEN o._publish_time - INTERVAL 1 MINUTE
    AND o._publish_time + INTERVAL 1 HOUR
LEFT JOIN customers c ON o.customer = c.name
'''

[[sink]]
kind = "parquet"
path = "paid"
"""
CASE = """
pipeline = "paid.toml"
[[case]]
[[case.batch]]
records = '{"id": 1, "customer": "anna"}'
[[case.batch]]
topic = "payments"
records = '''
1,500
2,700
3'''
[[case.batch]]
records = '{"id": 2, "customer": "bert"}'
[case.tables]
customers = '{"name": "anna", "country": "AT"}'
[case.expect]
parquet = '''
{"id": 1, "country": "AT", "cents": 500}
{"id": 2, "country": null, "cents": 700}
'''
dead-letters = '{"topic": "payments.dlq", "value": "3"}'
"""


@pytest.fixture
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with site("embedded", request, tmp_path) as found:
        yield found


def test_rows_of_two_topics_and_a_table_meet(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "paid.toml").write_text(DECLARED)
    file = tmp_path / "test.toml"
    file.write_text(CASE)
    test = load(file, tmp_path)
    (tmp_path / "case").mkdir()
    came = run(spark, test.pipeline, test.cases[0], tmp_path / "case")
    assert sorted(came["parquet"], key=lambda row: row["id"]) == [
        {"id": 1, "country": "AT", "cents": 500},
        {"id": 2, "country": None, "cents": 700},
    ]
    assert [row["topic"] for row in came["dead-letters"]] == ["payments.dlq"]


def test_each_topic_is_read_from_its_own_positions(here: Site) -> None:
    customers = str(here.folder / "customers")
    here.spark.createDataFrame([("anna", "AT")], "name STRING, country STRING").write.parquet(
        customers
    )
    text = DECLARED.replace('path = "customers"', f"path = {json.dumps(customers)}")
    orders, payments = create(here.backend, "orders", 2), create(here.backend, "payments")
    publish(here.backend, orders, [Message(b'{"id": %d, "customer": "anna"}' % n) for n in (1, 2)])
    publish(here.backend, payments, [Message(b"1,10"), Message(b"x")])
    here.run(text)
    publish(here.backend, payments, [Message(b"2,20")])
    here.run(text)
    rows = here.spark.read.parquet(str(here.folder / "paid")).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "AT", 10), (2, "AT", 20)]
    dead = [one.message.value for part in read(here.backend, "payments.dlq") for one in part]
    assert dead == [b"x"]
    status = read_status(here.folder / "checkpoints" / "test") or {}
    assert set(status["sinks"]["parquet"]["lag"]) == {"orders/0", "orders/1", "payments/0"}


def test_running_stream_sees_the_files_that_a_table_has_after_a_refresh(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows, table, now = tmp_path / "rows", tmp_path / "table", [0.0]
    for folder in (rows, table):
        folder.mkdir()
    (table / "1.json").write_text('{"id": 1, "name": "one"}\n')
    spec = TableSpec("names", str(table), "json", "id INT, name STRING", refresh=60.0)
    tables = Tables(spark, [spec], lambda: now[0])
    spark.readStream.schema("id INT").json(str(rows)).createOrReplaceTempView("numbers")
    joined = spark.sql("SELECT n.id, name FROM numbers n LEFT JOIN names t ON n.id = t.id")
    query = joined.writeStream.format("memory").queryName("named").start()

    def named(number: int) -> list[str | None]:
        (tmp_path / "part").write_text('{"id": 2}\n')
        (tmp_path / "part").rename(rows / f"{number}.json")
        query.processAllAvailable()
        return [row["name"] for row in spark.table("named").collect()]

    try:
        assert named(1) == [None]
        (table / "2.json").write_text('{"id": 2, "name": "two"}\n')
        now[0] = 59.0
        tables.refresh()
        assert named(2) == [None, None]
        now[0] = 60.0
        tables.refresh()
        assert sorted(map(str, named(3))) == ["None", "None", "two"]
    finally:
        query.stop()


def test_table_that_was_written_again_is_read_again_once_it_has_files(
    spark: SparkSession, tmp_path: Path, clock: ManualClock
) -> None:
    rows, table, empty = (tmp_path / name for name in ("rows", "table", "empty"))
    for folder in (rows, table, empty):
        folder.mkdir()
    (table / "1.json").write_text('{"id": 1, "name": "old"}\n')
    (rows / "1.json").write_text('{"id": 1}\n')
    columns = "id INT, name STRING"
    specs = [
        TableSpec("kept", str(table), "json", columns),
        TableSpec("never", str(empty), "json", columns),
    ]
    tables = Tables(spark, specs, clock)
    spark.readStream.schema("id INT").json(str(rows)).createOrReplaceTempView("numbers")
    joined = spark.sql("SELECT n.id, name FROM numbers n LEFT JOIN kept t ON n.id = t.id")

    started: list[StreamingQuery] = []

    def start() -> StreamingQuery:
        writer = joined.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.append(writer.trigger(availableNow=True).start())
        return started[-1]

    (table / "1.json").unlink()
    found = Queries(PipelineProgress(clock), Retries(WAIT, lambda _: False, clock), tables.reread)
    found.start("out", start)
    with pytest.raises(StreamingQueryException):
        started[0].awaitTermination(WAIT)
    found.check({})
    assert not tables.reread()
    (table / "2.json").write_text('{"id": 1, "name": "new"}\n')
    clock.advance(RESTART_SECONDS)
    found.check({})
    assert started[1].awaitTermination(WAIT)
    found.check({})
    assert not found.running()
    assert [row["name"] for row in spark.read.parquet(str(tmp_path / "out")).collect()] == ["new"]
