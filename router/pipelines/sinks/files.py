"""What tables of files share: their options, their partitions, Spark's own streaming writers.

The commit protocols of these write a batch's files first and then its number with their names in a
log of their own (`_spark_metadata`, `_delta_log`): a batch whose number is there is not stored
again. Files that a killed run left count for nothing, but lie there for readers that list folders
(`maintain` sweeps them).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DateType, TimestampType

from router.errors import SettingError
from router.pipelines.declaration import DATE, TIMES, SinkSpec
from router.pipelines.sinks.context import SinkContext
from router.pipelines.sinks.keyed import check_rows

# What Spark is told by the sink itself, which options may not change.
_OURS: Final = frozenset({"path", "checkpointlocation", "txnappid", "txnversion"})


def check_files(frame: DataFrame, sink: SinkSpec) -> None:
    """Raise SettingError for a sink that cannot be written."""
    if not sink.path:
        raise SettingError(f"sink {sink.name}: a sink of kind {sink.kind} needs a path.")
    for option in sink.options:
        if option.lower() in _OURS:
            raise SettingError(f"sink {sink.name}: the option {option} is not for a declaration.")
    check_rows(dated(frame, sink), sink)


def start_files(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> StreamingQuery:
    """Start writing with Spark's own sink and return the query."""
    writer = context.writer(dated(frame, sink), sink).format(sink.kind).options(**sink.options)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    return writer.option("path", sink.path).start()


def dated(frame: DataFrame, sink: SinkSpec) -> DataFrame:
    """Return the rows with all columns that they are partitioned by; raise SettingError.

    A `date` that they do not have is the day (of the session's time zone) of their event_time or
    else of their publish_time, whichever of the two columns, with or without an underscore ahead,
    they have.
    """
    # Names have no case in Spark's SQL.
    columns = {field.name.lower(): field.dataType for field in frame.schema.fields}
    for name in sink.partition_by:
        if name.lower() in columns:
            continue
        times = [f.col(time) for time in TIMES if isinstance(columns.get(time), TimestampType)]
        if name != DATE or not times:
            raise SettingError(
                f"sink {sink.name}: it is partitioned by {name!r}, and its rows have no such "
                f"column, only {', '.join(columns)}."
            )
        frame = frame.withColumn(DATE, f.coalesce(*times).cast(DateType()))
    return frame
