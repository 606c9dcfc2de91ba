"""A case is run: its messages are read by the pipeline's own streams, which write to memory.

Formats, steps, watermarks and output modes are those of a run. The source is a folder to which a
file is added for each batch, when all streams are done with the one before and with what followed
from it: the clock of watermarks and windows is the messages' own, as if there were time between.
What sinks do beyond the rows that they get, and Spark's functions of the present time, are not part
of it.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType

from router.errors import SettingError
from router.pipelines import session
from router.pipelines.declaration import KINDS, REGISTERED, SELF_DESCRIBED, Pipeline, SourceSpec
from router.pipelines.failures import sentence
from router.pipelines.graph import SinkFlow, flows
from router.pipelines.queries import RunFailedError
from router.pipelines.schemas import sampled_columns
from router.pipelines.sinks.columns import message_rows
from router.pipelines.sinks.files import dated
from router.pipelines.sinks.keyed import check_rows
from router.pipelines.source_columns import SCHEMA_DDL
from router.pipelines.tables import Tables
from router.pipelines.testing.cases import Case, Row, TestFile
from router.pipelines.testing.comparing import CaseResult

CASE_SECONDS: Final = 300.0
# Samples are small: what pays in the long run only, compiled code for one, is left out.
_QUICK: Final = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    session.JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_TIMES: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSS]XXX"}


def start(pipeline: Pipeline, connectors: Collection[str] = ()) -> SparkSession:
    """Return a local session for tests of a pipeline. Raises SettingError."""
    # Every call to the JVM is a line otherwise, and what is refused a page.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    resources = {**pipeline.resources, **_QUICK}
    return session.start(f"test {pipeline.name}", resources, connectors)


def results(spark: SparkSession, test: TestFile) -> Iterator[CaseResult]:
    """Yield how each case of a file goes."""
    for case in test.cases:
        begin = time.monotonic()
        came: dict[str, tuple[Row, ...]] = {}
        error = ""
        with TemporaryDirectory() as folder:
            try:
                came = run(spark, test.pipeline, case, Path(folder))
            except (SettingError, RunFailedError) as failure:
                error = str(failure)
        yield CaseResult(case, came, error, time.monotonic() - begin)


def run(
    spark: SparkSession, pipeline: Pipeline, case: Case, folder: Path
) -> dict[str, tuple[Row, ...]]:
    """Return the rows that each sink got; files of the case are left in `folder`, which is empty.

    Raises DeclarationError for what Spark refuses of steps, SettingError for rows that a sink
    refuses, and RunFailedError for a query that ends with a failure or not in time, and for what
    Spark refuses of the source.
    """
    try:
        return _run(spark, pipeline, case, folder)
    except PySparkException as error:
        raise RunFailedError(sentence(error)) from error


def _run(
    spark: SparkSession, pipeline: Pipeline, case: Case, folder: Path
) -> dict[str, tuple[Row, ...]]:
    messages = folder / "messages"
    messages.mkdir()
    sources = {
        name: _with_columns(spark, source, case) for name, source in pipeline.sources().items()
    }
    _view_tables(spark, pipeline, case, folder)
    with _Queries(spark, folder) as queries:
        for flow in flows(pipeline, sources, partial(_stream, spark, messages)):
            queries.begin(flow)
        for number, rows in enumerate(case.batches):
            part = folder / "part"
            part.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
            part.rename(messages / f"{number:06}.json")
            queries.process()
        return queries.rows()


class _Queries:
    """The streams of one case, which are stopped with it, or when its time is over."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._started: dict[str, StreamingQuery] = {}
        self._late = threading.Event()
        self._timer = threading.Timer(CASE_SECONDS, self._end)

    def __enter__(self) -> _Queries:
        self._timer.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._timer.cancel()
        self._timer.join()
        for query in self._started.values():
            query.stop()
            self._spark.catalog.dropTempView(str(query.name))

    def begin(self, flow: SinkFlow) -> None:
        """Start a query of the rows of a sink, in its mode."""
        rows, messages = flow.rows, KINDS[flow.sink.kind].messages
        if messages:
            rows = message_rows(rows, flow.sink)
        else:
            check_rows(dated(rows, flow.sink), flow.sink)
        writer = (
            rows.select(_as_json(rows, nulls=not messages).alias("row"))
            .writeStream.format("memory")
            .queryName(f"case_{uuid4().hex}")
            .outputMode(flow.sink.mode)
            .option("checkpointLocation", str(self._folder / "checkpoints" / flow.sink.name))
        )
        with self._failures(flow.sink.name):
            self._started[flow.sink.name] = writer.start()

    def process(self) -> None:
        """Return when each query has read what is there, and written what follows from it."""
        for name, query in self._started.items():
            with self._failures(name):
                query.processAllAvailable()

    def rows(self) -> dict[str, tuple[Row, ...]]:
        """Return what each query gave."""
        return {
            name: tuple(json.loads(row["row"]) for row in self._table(query).collect())
            for name, query in self._started.items()
        }

    def _table(self, query: StreamingQuery) -> DataFrame:
        return self._spark.table(str(query.name))

    def _end(self) -> None:
        self._late.set()
        for query in list(self._started.values()):
            query.stop()

    @contextmanager
    def _failures(self, sink: str) -> Iterator[None]:
        try:
            yield
        except PySparkException as error:
            raise RunFailedError(f"sink {sink}: {sentence(error)}") from error
        if self._late.is_set():
            raise RunFailedError(f"sink {sink}: the case took longer than {CASE_SECONDS:g} s")


def _as_json(rows: DataFrame, *, nulls: bool) -> Any:
    """Return a row in one column of JSON: bytes are text, or `base64:…` where they are none."""
    columns = []
    for kind in rows.schema.fields:
        column = f.col("`{}`".format(kind.name.replace("`", "``")))
        if isinstance(kind.dataType, BinaryType):
            text = column.cast("string")
            coded = f.concat(f.lit("base64:"), f.base64(column))
            column = f.when(f.is_valid_utf8(text), text).otherwise(coded).alias(kind.name)
        columns.append(column)
    return f.to_json(f.struct(*columns), {**_TIMES, "ignoreNullFields": str(not nulls).lower()})


def _stream(spark: SparkSession, messages: Path, source: SourceSpec) -> DataFrame:
    reader = spark.readStream.schema(SCHEMA_DDL).option("mode", "FAILFAST")
    rows = reader.json(str(messages))
    if source.pattern:
        return rows.where(f.col("topic").rlike(f"^(?:{source.pattern})$"))
    return rows.where(f.col("topic").isin(list(source.topics)))


def _view_tables(spark: SparkSession, pipeline: Pipeline, case: Case, folder: Path) -> None:
    """Create the views of tables: with the rows of the case, or those that are declared."""
    if case.tables is None:
        Tables(spark, pipeline.tables)
        return
    for table in pipeline.tables:
        rows = case.tables.get(table.name, ())
        if not rows and not table.schema:
            raise SettingError(
                f"the table {table.name} has no rows here: give [case.tables] {table.name}, or"
                " declare its schema"
            )
        file = folder / f"{table.name}.json"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
        reader = spark.read.option("mode", "FAILFAST")
        reader = reader.schema(table.schema) if table.schema else reader
        reader.json(str(file)).createOrReplaceTempView(table.name)


def _with_columns(spark: SparkSession, source: SourceSpec, case: Case) -> SourceSpec:
    """Return the source with the columns of its records, JSON's from the case if need be."""
    if source.schema or source.format not in SELF_DESCRIBED:
        return source
    if source.format in REGISTERED:
        raise SettingError("a test reads no registry: declare source.schema to test the pipeline")
    values = [base64.b64decode(row["value"]) for batch in case.batches for row in batch]
    texts = [value.decode(errors="replace") for value in values]
    return replace(source, schema=sampled_columns(spark, texts))
