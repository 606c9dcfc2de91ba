"""Where a pipeline's rows go: a module for each kind of sink, chosen by its name.

`start_sink` starts one streaming query for one sink; `check_sink` refuses what cannot work before
that; `tidy_sink`, after a query ended well, takes away what only a replay would have needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks import delta, jdbc, parquet_files, topic
from router.pipelines.sinks.context import SinkContext

__all__ = ["Sink", "SinkContext", "check_sink", "start_sink", "tidy_sink"]

# An object of the JVM's Hadoop file system.
Hadoop = Any


class Sink(Protocol):
    """What a kind of sink is, a module for each of the declaration's KINDS."""

    def check(self, frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
        """Raise SettingError for rows or options that the sink cannot take."""
        ...

    def start(self, frame: DataFrame, sink: SinkSpec, context: SinkContext) -> StreamingQuery:
        """Start writing and return the query."""
        ...

    def tidy(self, sink: SinkSpec, context: SinkContext) -> None:
        """Take away what only a repeat of a batch would have needed."""
        ...


_SINKS: Final[Mapping[str, Sink]] = {
    "topic": topic,
    "parquet": parquet_files,
    "delta": delta,
    "jdbc": jdbc,
}


def check_sink(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError, with one sentence, for rows or options that the sink cannot take.

    Needs a session, but starts nothing and reads nothing of the topics' messages.
    """
    if sink.kind not in _SINKS:
        raise SettingError(f"sink {sink.name}: there is no kind {sink.kind!r}")
    _SINKS[sink.kind].check(frame, sink, context)


def start_sink(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> StreamingQuery:
    """Start the streaming query of a sink and return it; its name is `pipeline/sink`.

    Every row that the frame's query gives for a batch is in the sink once, whatever is killed in
    between and however the query is started again on the same checkpoint. Raises SettingError as
    `check_sink` does.
    """
    check_sink(frame, sink, context)
    _sweep(frame.sparkSession, context.folder(sink.name))
    return _SINKS[sink.kind].start(frame, sink, context)


def tidy_sink(sink: SinkSpec, context: SinkContext) -> None:
    """Take away the staged rows of batches that are over; to be called when the query has ended."""
    _SINKS[sink.kind].tidy(sink, context)


# Spark writes each entry of a checkpoint's logs to a hidden file first and renames it. A run that
# is killed in the middle of its very first entry leaves the hidden file alone, and the next one
# would be refused for a checkpoint without offsets that is not empty: for good, although nothing
# was read yet. Spark's check itself stays on, for it finds checkpoints whose offsets somebody
# deleted.
def _sweep(spark: SparkSession, checkpoint: str) -> None:
    """Delete unfinished entries from a log of offsets that has no other; any file system's."""
    # The class that Spark Connect shares has neither; a driver of ours has both.
    context = cast("Any", spark.sparkContext)
    folder: Hadoop = context._jvm.org.apache.hadoop.fs.Path(checkpoint, "offsets")
    files: Hadoop = folder.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(folder):
        return
    found = [status.getPath() for status in files.listStatus(folder)]
    if all(str(path.getName()).startswith(".") for path in found):
        for path in found:
            files.delete(path, False)
