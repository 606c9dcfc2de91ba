"""The Python data source `router`: what Spark calls to read and write topics."""

from __future__ import annotations

from collections.abc import MutableMapping
from types import ModuleType
from typing import Final

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from router.errors import SettingError
from router.pipelines.source.batch_reader import RouterBatchReader
from router.pipelines.source.offsets import TO_LATEST
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.writing import BatchWriter, started

NAME: Final = "router"


class RouterSource(DataSource):
    """Topics of the embedded broker, and of Apache Pulsar; written also those of Kafka.

    Options are those of `SourceOptions`; all that is wrong with them is a SettingError. Reading
    gives the columns of `SCHEMA_DDL`. Writing is at least once, and what it takes is said in
    `writing`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked_options = SourceOptions.of_texts(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns."""
        return self._checked_options.layout.value

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads everything there is when it is planned."""
        del schema
        return RouterBatchReader(_readable(self._checked_options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what reads batch after batch; raise SettingError before Spark 4.2."""
        del schema
        if self._checked_options.ending != TO_LATEST:
            raise SettingError(
                "a stream has no end (`ending`, `endingOffsets`): read a frame instead, or end the"
                " stream where everything stored now ends, with trigger(availableNow=True)"
            )
        reader: DataSourceStreamReader = _streams().RouterStreamReader(
            _readable(self._checked_options)
        )
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a frame; raise SettingError if it is to replace what is there."""
        if overwrite:
            raise SettingError(
                'messages are appended to a topic: write with mode("append"). To replace what a'
                " topic has, delete the topic first"
            )
        return BatchWriter(started(self._checked_options, schema))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return what writes a stream, of any output mode: each batch is appended.

        Raises SettingError before Spark 4.2.
        """
        del overwrite
        writer: DataSourceStreamWriter = _streams().StreamWriter(
            started(self._checked_options, schema)
        )
        return writer


def _readable(options: SourceOptions) -> SourceOptions:
    if options.kind == "kafka":
        # Loaded here only: each of Spark's workers imports this module.
        from router.pipelines.source.kafka import access_options  # noqa: PLC0415

        servers = access_options(options)["kafka.bootstrap.servers"]
        raise SettingError(
            "topics of Kafka are read by Spark's own connector:"
            f' format("kafka").option("kafka.bootstrap.servers", "{servers}"), with the package'
            f" org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
            " in spark.jars.packages"
        )
    return options.of_reading()


def _streams() -> ModuleType:
    """Return what reads and writes streams; raise SettingError where Spark lacks what it needs."""
    try:
        from router.pipelines.source import streams  # noqa: PLC0415 - it needs Spark 4.2
    except ImportError as error:
        if not (error.name or "").startswith("pyspark."):
            raise
        raise SettingError(
            f"streams of topics need Spark 4.2 or later, and this is {pyspark.__version__}: read"
            " and write frames, with spark.read and write"
        ) from error
    return streams
