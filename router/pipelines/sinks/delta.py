"""Delta tables: appended by Spark's own streaming writer, merged by key where a sink has one."""

# A batch is merged in one commit of the table's log, which has the id of the query's checkpoint and
# the number of the batch, as those of appended batches have: a number that is there is not merged
# again. A row of which a batch has a newer one is left out first, for MERGE takes one row of a key.
# A commit that another writer's came before, such as that of `maintain`, is tried again.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BooleanType

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks.context import SinkContext
from router.pipelines.sinks.files import check_files, dated, start_files

QUERY: Final = "sql.streaming.queryId"
"""Where Spark says which query a batch is of, in the thread that runs it."""
_TRANSACTION: Final = "spark.databricks.delta.write.txn"
_CONFLICT: Final = "DELTA_CONCURRENT"
MAX_TRIES: Final = 10
_SOURCE: Final = "_router_merged"
_NUMBER: Final = "_router_number"
_OPTIONS: Final = frozenset({"mergeschema"})


def check(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError for a sink that cannot be written."""
    check_files(frame, sink)
    if not sink.key:
        return
    types = {field.name.lower(): field.dataType for field in dated(frame, sink).schema.fields}
    for name in (*sink.key, *filter(None, (sink.order, sink.deletes))):
        if name.lower() not in types:
            raise SettingError(f"sink {sink.name}: its rows have no column {name!r}.")
    if sink.deletes and not isinstance(types[sink.deletes.lower()], BooleanType):
        raise SettingError(f"sink {sink.name}: the column {sink.deletes!r} has to be a BOOLEAN.")
    for option in sink.options:
        if option.lower() not in _OPTIONS:
            raise SettingError(f"sink {sink.name}: with a key, mergeSchema is the only option.")


def start(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> StreamingQuery:
    """Start writing and return the query."""
    if not sink.key:
        return start_files(frame, sink, context)
    return context.writer(dated(frame, sink), sink).foreachBatch(partial(merge, sink)).start()


def tidy(sink: SinkSpec, context: SinkContext) -> None:
    """Do nothing: a table keeps what it has."""


def merge(sink: SinkSpec, frame: DataFrame, batch: int) -> None:
    """Merge a batch into the table once, which is made if there is none."""
    spark = frame.sparkSession
    columns = [name for name in frame.columns if name.lower() != sink.deletes.lower()]
    empty = spark.createDataFrame([], frame.select(*map(_quoted, columns)).schema)
    made = empty.write.format("delta").mode("ignore").partitionBy(*sink.partition_by)
    made.save(sink.path)
    _newest(frame, sink).createOrReplaceTempView(_SOURCE)
    with _numbered(spark, batch):
        for left in reversed(range(MAX_TRIES)):
            try:
                spark.sql(_statement(sink, columns))
            except PySparkException as error:
                if not left or _CONFLICT not in str(error):
                    raise
            else:
                return


@contextmanager
def _numbered(spark: SparkSession, batch: int) -> Iterator[None]:
    """Have commits of the session, which is one query's own, carry the number of a batch."""
    query = spark.sparkContext.getLocalProperty(QUERY)
    settings = {"AppId": f"router {query}", "Version": str(batch)}
    for name, text in settings.items():
        spark.conf.set(_TRANSACTION + name, text)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(_TRANSACTION + name)


def _newest(frame: DataFrame, sink: SinkSpec) -> DataFrame:
    """Return the newest row of each key; without an order a second one ends the query."""
    same = Window.partitionBy(*map(_quoted, sink.key))
    if sink.order:
        newest = same.orderBy(f.col(_quoted(sink.order)).desc_nulls_last())
        return frame.withColumn(_NUMBER, f.row_number().over(newest)).where(f"{_NUMBER} = 1")
    several = f.raise_error(
        f.lit(
            f"sink {sink.name}: a batch has several rows of one key: declare sink.order, a column"
            " that is larger in newer rows"
        )
    )
    counted = frame.withColumn(_NUMBER, f.count(f.lit(1)).over(same))
    return counted.where(
        f.when(f.col(_NUMBER) == 1, f.lit(True)).otherwise(several.cast("boolean"))
    )


def _statement(sink: SinkSpec, columns: list[str]) -> str:
    quoted = [_quoted(name) for name in columns]
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in map(_quoted, sink.key))
    gone = f"coalesce(s.{_quoted(sink.deletes)}, false)" if sink.deletes else "false"
    order = _quoted(sink.order)
    newer = f"coalesce(s.{order} >= t.{order}, t.{order} IS NULL)" if sink.order else "true"
    grows = any(text.lower() == "true" for text in sink.options.values())
    parts = [
        f"MERGE {'WITH SCHEMA EVOLUTION ' if grows else ''}INTO delta.{_quoted(sink.path)} AS t",
        f"USING {_SOURCE} AS s ON {same}",
        f"WHEN MATCHED AND {newer} AND {gone} THEN DELETE",
        f"WHEN MATCHED AND {newer} THEN UPDATE SET",
        ", ".join(f"t.{name} = s.{name}" for name in quoted),
        f"WHEN NOT MATCHED AND NOT {gone} THEN INSERT ({', '.join(quoted)})",
        f"VALUES ({', '.join(f's.{name}' for name in quoted)})",
    ]
    return " ".join(parts)


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))
