"""Which columns of a row make a message, and which rows are refused before anything starts."""

from __future__ import annotations

from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, TimestampType

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec

_TEXT: Final = (StringType, BinaryType)
_OPTIONAL: Final = ("key", "properties", "event_time")


def message_rows(frame: DataFrame, sink: SinkSpec) -> DataFrame:
    """Return rows of value, key, properties and event_time (ms), and topic if the rows name it.

    A frame without a column `value` gives its rows as JSON: all columns but `properties`, a key of
    bytes, and the topic that the row goes to. Raises SettingError for columns that no message has,
    and for those of another type.
    """
    # Names have no case in Spark's SQL: AS VALUE makes a value as well.
    found = {field.name.lower(): field.dataType for field in frame.schema.fields}
    if len(found) < len(frame.schema.fields):
        raise SettingError(f"sink {sink.name}: two columns have the same name.")
    routed = not sink.topic
    if routed and "topic" not in found:
        raise SettingError(
            f'sink {sink.name}: it names no topic, and its rows have no column "topic" either.'
        )
    _check_types(found, sink.name, routed=routed)
    if "value" in found:
        _check_extra(found, sink.name, routed=routed)
    chosen = [
        _value(frame, found, routed=routed).alias("value"),
        _optional(found, "key", "binary").alias("key"),
        _optional(found, "properties", "map<string,string>").alias("properties"),
        _event_time(found).alias("event_time"),
    ]
    if routed:
        chosen.append(f.col("topic").cast("string").alias("topic"))
    try:
        return frame.select(*chosen)
    except AnalysisException as error:
        raise SettingError(f"sink {sink.name}: {_first_line(error)}") from error


def _check_types(found: dict[str, DataType], sink: str, *, routed: bool) -> None:
    for name, kind in found.items():
        if name in {"value", "key"}:
            expected, fits = "text or bytes", isinstance(kind, _TEXT)
        elif name == "properties":
            expected, fits = "map<string,string>", _is_text_map(kind)
        elif name == "event_time" and "value" in found:
            expected = "a timestamp or a bigint of milliseconds"
            fits = isinstance(kind, TimestampType | LongType)
        elif name == "topic" and routed:
            expected, fits = "text", isinstance(kind, StringType)
        else:
            continue
        if not fits:
            raise SettingError(
                f'sink {sink}: its column "{name}" is {kind.simpleString()}, and a message\'s has '
                f"to be {expected}."
            )


def _is_text_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) and all(
        isinstance(part, StringType) for part in (kind.keyType, kind.valueType)
    )


def _check_extra(found: dict[str, DataType], sink: str, *, routed: bool) -> None:
    known = ["value", *_OPTIONAL, *(["topic"] if routed else [])]
    extra = [name for name in found if name not in known]
    if extra:
        raise SettingError(
            f"sink {sink}: a message has no column {', '.join(extra)}; it takes "
            f"{', '.join(known)}, or without a value the whole row as JSON."
        )


def _value(frame: DataFrame, found: dict[str, DataType], *, routed: bool) -> Column:
    if "value" in found:
        return f.col("value").cast("binary")
    left_out = {"properties"} | ({"topic"} if routed else set())
    if isinstance(found.get("key"), BinaryType):
        left_out.add("key")
    names = [name for name in frame.columns if name.lower() not in left_out]
    columns = [f.col("`{}`".format(name.replace("`", "``"))) for name in names]
    if not columns:
        return f.lit(b"{}")
    return f.to_json(f.struct(*columns), {"ignoreNullFields": "false"}).cast("binary")


def _optional(found: dict[str, DataType], name: str, kind: str) -> Column:
    column = f.col(name) if name in found else f.lit(None)
    return column.cast(kind)


def _event_time(found: dict[str, DataType]) -> Column:
    kind = found.get("event_time")
    if isinstance(kind, TimestampType):
        return f.unix_millis(f.col("event_time"))
    if isinstance(kind, LongType):
        return f.col("event_time")
    return f.lit(None).cast("bigint")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
