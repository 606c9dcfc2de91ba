"""Puts the rows of one Delta table in place of those of another, in one commit of its log.

Readers see the table before or after it. A condition has to hold for all new rows as well, which
Delta sees to: so nothing comes in that the next swap of the same range would not take out again.
The shadow stays, and the old rows too, as an earlier version of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.jobs.options import JobOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISMATCH: Final = "DELTA_METADATA_MISMATCH"


def swap(
    spark: SparkSession,
    sinks: Iterable[SinkSpec],
    options: JobOptions,
    notify: Callable[[str], None],
) -> None:
    """Replace the rows of a table as the options say.

    The table gets new columns if one of `sinks` gives it new ones. Raises SettingError without both
    tables, and for columns that the table has not.
    """
    from delta.tables import DeltaTable  # noqa: PLC0415 - only where there is a Delta table

    from router.pipelines.sinks.delta import grows, tried  # noqa: PLC0415 - as above

    table, shadow, where = (options.text(name) for name in ("table", "shadow", "where"))
    for path in (table, shadow):
        if not DeltaTable.isDeltaTable(spark, path):
            raise SettingError(f"{path} is no Delta table")
    old, new = (spark.read.format("delta").load(path) for path in (table, shadow))
    replaced = (old.where(where) if where else old).count()
    version = DeltaTable.forPath(spark, table).history(1).collect()[0].version
    writer = new.write.format("delta").mode("overwrite")
    if where:
        writer = writer.option("replaceWhere", where)
    if any(sink.path == table and grows(sink) for sink in sinks):
        writer = writer.option("mergeSchema", "true")
    try:
        tried(lambda: writer.save(table))
    except AnalysisException as error:
        if _MISMATCH not in str(error):
            raise
        raise SettingError(
            f"{shadow} has columns that {table} has not, or of other types: new ones need"
            ' options = { mergeSchema = "true" } of the sink, and another rebuild with it'
        ) from error
    notify(
        f"{table}: {replaced} rows became the {new.count()} of {shadow};"
        f" those before are its version {version}"
    )
