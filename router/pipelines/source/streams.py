"""Streams of a source, batch after batch, by what Spark has for them from 4.2 on.

Before, a source was not told where a batch begins, so that it could neither bound the first one
after a restart nor see what was lost before it, and 4.0 has no writer of Arrow's rows for streams.
Frames do without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from router.errors import SettingError
from router.pipelines.source.batch_reader import RangePartition, planned_partitions, task_rows
from router.pipelines.source.offsets import Offset
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.planning import BatchPlanner
from router.pipelines.source.writing import Written, publish


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
        return planned_partitions(self._planner(), begin, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        if not isinstance(partition, RangePartition):
            raise SettingError(f"{partition!r} is none of this source's partitions")
        return task_rows(self._options, partition)

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


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch after batch; `options` are those that `started` returned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one task; when it returns they are stored."""
        return Written(publish(self._options, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what tasks published is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what tasks published stays."""
