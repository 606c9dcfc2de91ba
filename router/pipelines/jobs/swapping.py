"""Puts the rows of one Delta table in place of those of another, in one commit of its log.

Readers see the table before or after it. A condition has to hold for all new rows as well, which
Delta sees to: so nothing comes in that the next swap of the same range would not take out again.
The shadow stays, and the old rows too, as an earlier version of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from router.errors import SettingError
from router.pipelines.jobs.options import JobOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def swap(spark: SparkSession, options: JobOptions, notify: Callable[[str], None]) -> None:
    """Replace the rows of a table as the options say; raise SettingError without both tables."""
    from delta.tables import DeltaTable  # noqa: PLC0415 - only where there is a Delta table

    from router.pipelines.sinks.delta import tried  # noqa: PLC0415 - as above

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
    tried(lambda: writer.save(table))
    notify(
        f"{table}: {replaced} rows became the {new.count()} of {shadow};"
        f" those before are its version {version}"
    )
