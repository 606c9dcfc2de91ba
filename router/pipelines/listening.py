"""Spark's events of streaming queries, on their way to a run's progress and its log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from router.pipelines.progress import PipelineProgress

_log = structlog.get_logger(__name__)


class _Listener(StreamingQueryListener):
    """Called in a thread of Spark's; what it raises would be lost there."""

    def __init__(self, progress: PipelineProgress, pipeline: str) -> None:
        self._progress = progress
        self._pipeline = pipeline

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing: the run started it."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Take a batch, or an idle moment."""
        document = json.loads(event.progress.json)
        sink, found = self._progress.add(document)
        if found.batch_rows:
            _log.info(
                "pipeline.batch",
                pipeline=self._pipeline,
                sink=sink,
                batch=found.batch,
                rows=found.batch_rows,
                bad=found.batch_bad,
                ms=found.batch_ms,
                lag=sum(found.lag.values()),
            )

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing: there is no news."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Take note: events come in order."""
        self._progress.end(str(event.runId))


@contextmanager
def listen(spark: SparkSession, progress: PipelineProgress, pipeline: str) -> Iterator[None]:
    """Feed a progress with the events of a session."""
    listener = _Listener(progress, pipeline)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        # A JVM that went away sends no more events.
        with suppress(Py4JError, ConnectionError):
            spark.streams.removeListener(listener)
