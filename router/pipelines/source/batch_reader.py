"""Reading a source once: what the driver plans, and what each task reads of it.

Conditions are not pushed down (Spark's `pushFilters`): up to 4.3 Spark keeps the ranges that the
last condition left for all uses of a frame. A union of two conditions would lack the rows of the
first one, and the frame itself, used after a condition, all rows that this one did not want.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from router.pipelines.source.offsets import Offset
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.planning import BatchPlanner
from router.pipelines.source.ranges import Range
from router.pipelines.source.reading import batches


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
            return planned_partitions(planner, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; there may be none at all."""
        if isinstance(partition, RangePartition):
            yield from task_rows(self._options, partition)


def planned_partitions(planner: BatchPlanner, start: Offset, end: Offset) -> list[RangePartition]:
    """Return what tasks read between two offsets."""
    tasks = planner.tasks(start, end)
    broker = planner.broker() if tasks else ""
    return [RangePartition(some, broker) for some in tasks]


def task_rows(options: SourceOptions, partition: RangePartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; raise BackendUnavailableError where its broker is another one."""
    return batches(replace(options, broker=partition.broker), partition.read_ranges)
