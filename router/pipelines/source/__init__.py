"""The source of a pipeline: the messages of topics as rows, read in batches that can be repeated.

`frame` is the way in. Topics of the embedded broker and of Apache Pulsar are read by the Python
data source `router`, those of Kafka by Spark's own connector; the columns are the same (`rows`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from router.pipelines.source.options import SourceOptions
from router.pipelines.source.router_source import RouterSource
from router.pipelines.source_columns import SCHEMA_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from router.pipelines.declaration import SourceSpec

__all__ = ["SCHEMA_DDL", "frame", "register", "row_names"]


_KNOWN: Final = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: SparkSession) -> None:
    """Make the data source `router` known to a session; again is harmless.

    A session that has found it among the installed packages (`pyspark_router`) keeps that.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as below

    try:
        spark.dataSource.register(RouterSource)
    except PySparkException as error:
        if error.getCondition() != _KNOWN:
            raise


def row_names(source: SourceSpec, topics: Iterable[str]) -> tuple[str, ...]:
    """Return what the column `topic` says of these topics, however they are named here."""
    options = SourceOptions.of_source(source)
    found = map(options.settings.topic, topics)
    if options.kind != "kafka":
        return tuple(map(options.settings.shortest_name, found))
    from router.pipelines.source.kafka import names  # noqa: PLC0415 - as below

    return tuple(map(names(options).topic, found))


def frame(spark: SparkSession, source: SourceSpec, streaming: bool) -> DataFrame:
    """Return the messages of a source, in the columns of `SCHEMA_DDL`.

    A batch frame ends where the topics end when it is first evaluated. Raises SettingError for what
    the source says wrong; missing topics and lost messages end the query that reads them.
    """
    options = SourceOptions.of_source(source)
    if options.kind == "kafka":
        # Spark's workers import this package, and have 10 s to start: Kafka's part takes long.
        from router.pipelines.source.kafka import kafka_frame  # noqa: PLC0415

        return kafka_frame(spark, options, streaming=streaming)
    register(spark)
    reader = spark.readStream if streaming else spark.read
    return reader.format(RouterSource.name()).options(**options.texts()).load()
