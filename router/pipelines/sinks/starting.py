"""One streaming query for each sink, whatever its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks import files, topic
from router.pipelines.sinks.context import SinkContext
from router.pipelines.sinks.leftovers import sweep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def check_sink(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError, with one sentence, for rows or options that the sink cannot take.

    Needs a session, but starts nothing and reads nothing of the topics' messages.
    """
    if sink.kind == "topic":
        topic.check(frame, sink, context)
    elif sink.kind in files.FORMATS:
        files.check(frame, sink)
        files.check_table(sink, context)
    else:
        raise SettingError(f"sink {sink.name}: there is no kind {sink.kind!r}")


def start_sink(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> StreamingQuery:
    """Start the streaming query of a sink and return it; its name is `pipeline/sink`.

    Every row that the frame's query gives for a batch is in the sink once, whatever is killed in
    between and however the query is started again on the same checkpoint. Raises SettingError as
    `check_sink` does.
    """
    check_sink(frame, sink, context)
    sweep(frame.sparkSession, context.folder(sink.name))
    if sink.kind == "topic":
        return topic.start(frame, sink, context)
    return files.start(frame, sink, context)


def tidy_sink(sink: SinkSpec, context: SinkContext) -> None:
    """Take away the staged rows of batches that are over; to be called when the query has ended."""
    if sink.kind == "topic":
        topic.tidy(sink, context)
