"""Spark's events of streaming queries, on their way to a run's progress and its log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from router.pipelines.metrics import serve
from router.pipelines.progress import PipelineProgress, SinkProgress

_log = structlog.get_logger(__name__)


class _Listener(StreamingQueryListener):
    """Called in a thread of Spark's; what it raises would be lost there."""

    def __init__(
        self,
        progress: PipelineProgress,
        pipeline: str,
        show: Callable[[str, SinkProgress], None] | None = None,
    ) -> None:
        self._progress = progress
        self._pipeline = pipeline
        self._show = show or self._log

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing: the run started it."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Take a batch, or an idle moment."""
        document = json.loads(event.progress.json)
        sink, found = self._progress.add(document)
        if found.batch_rows:
            self._show(sink, found)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing: there is no news."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Take note: events come in order."""
        self._progress.end(str(event.runId))

    def _log(self, sink: str, found: SinkProgress) -> None:
        _log.info(
            "pipeline.batch",
            pipeline=self._pipeline,
            sink=sink,
            batch=found.batch,
            rows=found.batch_rows,
            bad=found.batch_bad,
            ms=found.batch_ms,
            lag=sum(found.lag.values()) if found.lag else None,
        )


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


def watch(
    spark: SparkSession, name: str, *, metrics: str = "", show: Callable[[str], None] | None = None
) -> Callable[[], None]:
    """Tell how far the streaming queries of a session are; return what ends that.

    `metrics` is HOST:PORT, where Prometheus finds those of pipelines, with `name` as the pipeline
    and the names of queries, or their ids, as sinks; empty: nowhere. `show` takes a line for each
    batch with rows. Raises SettingError for an address that cannot be served.
    """

    def line(query: str, found: SinkProgress) -> None:
        if show is not None:
            messages, seconds = sum(found.lag.values()), found.lag_seconds
            known = "unknown" if seconds is None else f"{messages:,} messages, {seconds:.1f} s"
            show(
                f"{query}: batch {found.batch}, {found.batch_rows:,} rows in {found.batch_ms:,} ms,"
                f" lag {known}"
            )

    progress = PipelineProgress(time.monotonic)
    end = serve(metrics, name, progress) if metrics else None
    listener = _Listener(progress, name, line)
    spark.streams.addListener(listener)

    def stop() -> None:
        with suppress(Py4JError, ConnectionError):
            spark.streams.removeListener(listener)
        if end is not None:
            end()

    return stop
