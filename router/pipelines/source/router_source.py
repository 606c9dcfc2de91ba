"""The Python data source `router`: what Spark calls to read and write topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from router.errors import SettingError
from router.pipelines.source.offsets import TO_LATEST, Offset
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.planning import BatchPlanner
from router.pipelines.source.ranges import Range
from router.pipelines.source.reading import batches
from router.pipelines.source.writing import BatchWriter, StreamWriter, started

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
        """Return what reads batch after batch."""
        del schema
        if self._checked_options.ending != TO_LATEST:
            raise SettingError(
                "a stream has no end (`ending`, `endingOffsets`): read a frame instead, or end the"
                " stream where everything stored now ends, with trigger(availableNow=True)"
            )
        return RouterStreamReader(_readable(self._checked_options))

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
        """Return what writes a stream, of any output mode: each batch is appended."""
        del overwrite
        return StreamWriter(started(self._checked_options, schema))


class RangePartition(InputPartition):
    """The ranges that one task reads, and the broker that has them."""

    def __init__(self, read_ranges: tuple[Range, ...], broker: str) -> None:
        super().__init__(read_ranges)
        self.read_ranges = read_ranges
        self.broker = broker


class RouterBatchReader(DataSourceReader):
    """Reads a source once: from where it starts to what is stored when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[RangePartition]:
        """Return what tasks read; raise TopicNotFoundError."""
        with self._options.opened() as backend:
            planner = BatchPlanner(self._options, backend)
            start = planner.initial()
            end = planner.latest(start, target=planner.target())
            return _partitions(planner, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; there may be none at all."""
        if isinstance(partition, RangePartition):
            yield from _read(self._options, partition)


class RouterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads a stream's batches; see `planning` and `offsets`.

    One connection stays open for planning, opened when it is first needed, until `stop`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Offset | None = None
        self._open: tuple[ExitStack, BatchPlanner] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new stream begins."""
        return self._planner().initial().json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the bound of a batch, in rows."""
        rows = self._options.max_rows
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next batch; raise MessagesLostError."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        begin = Offset.of_json(start)
        end = self._planner().latest(begin, rows, self._target)
        return dict(start) if end is begin else end.json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where everything stored now ends, for the stream's lag."""
        return self._planner().ends().json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Have the stream end where everything stored now ends."""
        self._target = self._planner().ends()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[RangePartition]:
        """Return what tasks read of a batch, the same whenever it is asked; raise as above."""
        begin, upto = Offset.of_json(start), Offset.of_json(end)
        return _partitions(self._planner(), begin, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        if not isinstance(partition, RangePartition):
            raise SettingError(f"{partition!r} is none of this source's partitions")
        return _read(self._options, partition)

    def stop(self) -> None:
        """Close the connection."""
        held, self._open = self._open, None
        if held is not None:
            held[0].close()

    def _planner(self) -> BatchPlanner:
        if self._open is None:
            stack = ExitStack()
            backend = stack.enter_context(self._options.opened())
            self._open = stack, BatchPlanner(self._options, backend)
        return self._open[1]


def _partitions(planner: BatchPlanner, start: Offset, end: Offset) -> list[RangePartition]:
    tasks = planner.tasks(start, end)
    broker = planner.broker() if tasks else ""
    return [RangePartition(some, broker) for some in tasks]


def _read(options: SourceOptions, partition: RangePartition) -> Iterator[pa.RecordBatch]:
    return batches(replace(options, broker=partition.broker), partition.read_ranges)


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
