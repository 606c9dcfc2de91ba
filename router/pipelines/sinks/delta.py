"""Delta tables: appended by Spark's own streaming writer, merged by key where a sink has one."""

# A batch is merged in one commit of the table's log, which has the id of the query's checkpoint and
# the number of the batch, as those of appended batches have: a number that is there is not merged
# again. A commit that another writer's came before, such as that of `maintain`, is tried again.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, DataType, DecimalType, IntegralType, MapType, StructType

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks.context import QUERY, SinkContext
from router.pipelines.sinks.files import check_files, dated, start_files
from router.pipelines.sinks.keyed import check_scale, kept, newest, properties, quoted

_TRANSACTION: Final = "spark.databricks.delta.write.txn"
_CONFLICT: Final = "DELTA_CONCURRENT"
MAX_TRIES: Final = 10
_SOURCE: Final = "_router_merged"
_OPTIONS: Final = frozenset({"mergeschema"})
_WIDENING: Final = "delta.enableTypeWidening"
T = TypeVar("T")


def check(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError for a sink that cannot be written."""
    check_files(frame, sink)
    for option in sink.options if sink.key else ():
        if option.lower() not in _OPTIONS:
            raise SettingError(f"sink {sink.name}: with a key, mergeSchema is the only option.")


def start(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> StreamingQuery:
    """Start writing and return the query; raise SettingError for what the table would round."""
    _check_scales(dated(frame, sink), sink)
    if not sink.key:
        return start_files(frame, sink, context)
    return context.writer(dated(frame, sink), sink).foreachBatch(partial(merge, sink)).start()


def tidy(sink: SinkSpec, context: SinkContext) -> None:
    """Do nothing: a table keeps what it has."""


def merge(sink: SinkSpec, frame: DataFrame, batch: int) -> None:
    """Merge a batch into the table once, which is made if there is none."""
    spark = frame.sparkSession
    columns = kept(frame, sink)
    empty = spark.createDataFrame([], frame.select(*map(quoted, columns)).schema)
    made = empty.write.format("delta").mode("ignore").partitionBy(*sink.partition_by)
    made.save(sink.path)
    newest(frame, sink).createOrReplaceTempView(_SOURCE)
    with _numbered(spark, batch):
        tried(lambda: spark.sql(_statement(sink, columns)))


def grows(sink: SinkSpec) -> bool:
    """Return whether a table gets the columns that rows have and it has not."""
    return any(
        name.lower() == "mergeschema" and text.lower() == "true"
        for name, text in sink.options.items()
    )


def _check_scales(frame: DataFrame, sink: SinkSpec) -> None:
    """Raise SettingError for numbers that the table would round without a word."""
    try:
        found = frame.sparkSession.read.format("delta").load(sink.path).schema
        if grows(sink) and properties(frame, sink).get(_WIDENING, "") == "true":
            return  # types of columns grow as the rows do
    except PySparkException:
        return  # the first batch makes the table
    for name, kind, scale in scales(frame.schema, found):
        check_scale(name, kind, scale, sink, sink.path)


def scales(given: DataType, table: DataType, name: str = "") -> Iterator[tuple[str, DataType, int]]:
    """Yield what a table has bounded numbers for: name and type in rows, and the table's scale.

    Both are types of Spark; parts of structs are those of one name, which has no case.
    """
    if isinstance(given, StructType) and isinstance(table, StructType):
        known = {field.name.lower(): field.dataType for field in table.fields}
        for field in given.fields:
            if (kind := known.get(field.name.lower())) is not None:
                yield from scales(field.dataType, kind, f"{name}.{field.name}".lstrip("."))
    elif isinstance(given, ArrayType) and isinstance(table, ArrayType):
        yield from scales(given.elementType, table.elementType, name)
    elif isinstance(given, MapType) and isinstance(table, MapType):
        yield from scales(given.keyType, table.keyType, f"{name}.key")
        yield from scales(given.valueType, table.valueType, f"{name}.value")
    elif isinstance(table, DecimalType | IntegralType):
        yield name, given, table.scale if isinstance(table, DecimalType) else 0


def tried(commit: Callable[[], T]) -> T:
    """Return what a commit returns, tried again where that of another writer came before."""
    for left in reversed(range(MAX_TRIES)):
        try:
            return commit()
        except PySparkException as error:
            if not left or _CONFLICT not in str(error):
                raise
    raise AssertionError("the last try returns or raises")


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


def _statement(sink: SinkSpec, columns: list[str]) -> str:
    names = [quoted(name) for name in columns]
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in map(quoted, sink.key))
    gone = f"coalesce(s.{quoted(sink.deletes)}, false)" if sink.deletes else "false"
    order = quoted(sink.order)
    newer = f"coalesce(s.{order} >= t.{order}, t.{order} IS NULL)" if sink.order else "true"
    evolving = "WITH SCHEMA EVOLUTION " if grows(sink) else ""
    parts = [
        f"MERGE {evolving}INTO delta.{quoted(sink.path)} AS t",
        f"USING {_SOURCE} AS s ON {same}",
        f"WHEN MATCHED AND {newer} AND {gone} THEN DELETE",
        f"WHEN MATCHED AND {newer} THEN UPDATE SET",
        ", ".join(f"t.{name} = s.{name}" for name in names),
        f"WHEN NOT MATCHED AND NOT {gone} THEN INSERT ({', '.join(names)})",
        f"VALUES ({', '.join(f's.{name}' for name in names)})",
    ]
    return " ".join(parts)
