"""Rows of tables: what they need, and which of them count where they are merged by key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    NullType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec

_NUMBER: Final = "_router_number"
_MAPPING: Final = "columnMapping.mode"
_TYPE_CHECK: Final = "spark.databricks.delta.schema.typeCheck.enabled"
_INTERVALS: Final = (CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType)
_NO_PARTITIONS: Final = (ArrayType, MapType, StructType, VariantType)
_NOT_IN_DELTA: Final = frozenset(" ,;{}()\n\t=")


def check_rows(frame: DataFrame, sink: SinkSpec) -> None:
    """Raise SettingError for rows whose columns a table cannot have."""
    names = [name.lower() for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"sink {sink.name}: two columns are called {twice[0]!r}: rename one.")
    if sink.partition_by and set(names) <= {name.lower() for name in sink.partition_by}:
        raise SettingError(f"sink {sink.name}: partition_by leaves no column for the files.")
    odd = [name for name in frame.columns if _NOT_IN_DELTA & set(name)]
    if sink.kind == "delta" and odd and not _maps_names(frame, sink):
        raise SettingError(
            f"sink {sink.name}: no column of Delta is called {odd[0]!r}: rename it, without blanks"
            " and , ; { } ( ) =."
        )
    if sink.kind == "delta" and not sink.key:
        _check_types(frame, sink)
    if sink.key:
        check_key(frame, sink)


def _check_types(frame: DataFrame, sink: SinkSpec) -> None:
    """Raise SettingError for types that Delta refuses at the first batch.

    A merge by key casts rows to what an existing table has, and is left to Delta, as are intervals
    where there is a table: it may have text for them.
    """
    known = frame.sparkSession.conf.get(_TYPE_CHECK, "true") != "false"
    refused = (NullType, *_INTERVALS) if known else (NullType,)
    partitions = {name.lower() for name in sink.partition_by}
    for field in frame.schema.fields:
        for kind in _parts(field.dataType):
            cast = isinstance(kind, _INTERVALS) and _is_there(frame, sink)
            if isinstance(kind, refused) and not cast:
                raise SettingError(
                    f"sink {sink.name}: the column {field.name!r} has the type"
                    f" {kind.simpleString()}, which Delta has not: cast it."
                )
        if field.name.lower() in partitions and isinstance(field.dataType, _NO_PARTITIONS):
            raise SettingError(
                f"sink {sink.name}: Delta has no partitions by the column {field.name!r}, of the"
                f" type {field.dataType.simpleString()}."
            )


def _is_there(frame: DataFrame, sink: SinkSpec) -> bool:
    with suppress(PySparkException):
        return bool(frame.sparkSession.read.format("delta").load(sink.path).columns)
    return False


def _parts(kind: DataType) -> Iterator[DataType]:
    """Yield a type, and those within it."""
    yield kind
    if isinstance(kind, StructType):
        within = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        within = [kind.elementType]
    else:
        within = [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
    for one in within:
        yield from _parts(one)


def _maps_names(frame: DataFrame, sink: SinkSpec) -> bool:
    """Return whether columns of a Delta table have other names in its files: all are allowed."""
    default = frame.sparkSession.conf.get(
        f"spark.databricks.delta.properties.defaults.{_MAPPING}", ""
    )
    with suppress(PySparkException):
        default = properties(frame, sink).get(f"delta.{_MAPPING}", default)
    return default in {"name", "id"}


def properties(frame: DataFrame, sink: SinkSpec) -> dict[str, str]:
    """Return the properties of a Delta table; raise PySparkException where there is none."""
    rows = frame.sparkSession.sql(f"DESCRIBE DETAIL delta.{quoted(sink.path)}")
    found: dict[str, str] = rows.collect()[0]["properties"]
    return found


def check_key(frame: DataFrame, sink: SinkSpec) -> None:
    """Raise SettingError for rows without the columns that a sink with a key names."""
    types = {field.name.lower(): field.dataType for field in frame.schema.fields}
    for name in (*sink.key, *filter(None, (sink.order, sink.deletes))):
        if name.lower() not in types:
            raise SettingError(f"sink {sink.name}: its rows have no column {name!r}.")
    if sink.deletes and not isinstance(types[sink.deletes.lower()], BooleanType):
        raise SettingError(f"sink {sink.name}: the column {sink.deletes!r} has to be a BOOLEAN.")


def check_scale(name: str, kind: DataType, scale: int | None, sink: SinkSpec, table: str) -> None:
    """Raise SettingError for numbers that a table would round, whose column has this scale.

    `kind` is their type in rows. None: the column has no scale. The scale of an array is that of
    its elements. Floating numbers have no scale either: they are refused where a column has whole
    numbers alone.
    """
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    if scale is None:
        return
    if isinstance(kind, DecimalType) and kind.scale > scale:
        has = f"its rows have {kind.scale} ({kind.simpleString()})"
    elif isinstance(kind, FloatType | DoubleType) and scale <= 0:
        has = f"its rows are {kind.simpleString()}"
    else:
        return
    raise SettingError(
        f"sink {sink.name}: the column {name} of {table} has {scale} digits behind the"
        f" point, and {has}: cast them."
    )


def kept(frame: DataFrame, sink: SinkSpec) -> list[str]:
    """Return the columns that the table gets: all but the one that says what is deleted."""
    return [name for name in frame.columns if name.lower() != sink.deletes.lower()]


def newest(frame: DataFrame, sink: SinkSpec) -> DataFrame:
    """Return the newest row of each key, for a merge takes one; see `SinkSpec`.

    Without an order a second one ends the query.
    """
    same = Window.partitionBy(*map(quoted, sink.key))
    if sink.order:
        newest = same.orderBy(f.col(quoted(sink.order)).desc_nulls_last())
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


def quoted(name: str) -> str:
    """Return a name as Spark's SQL takes it, whatever is in it."""
    return "`{}`".format(name.replace("`", "``"))
