"""What a sink is given beside its rows: the run's parts that all sinks share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from router.backends import Backend
from router.errors import RouterError
from router.model import TopicName
from router.pipelines.declaration import Trigger
from router.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def wall_ms() -> int:
    """Return the time of day in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _none(_topic: TopicName) -> bool:
    """Say that the source reads nothing that a sink could write."""
    return False


def _nobody(sink: str, error: RouterError) -> None:
    """Nobody wants to know: the query's own exception tells it as well."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """One run's parts: each sink keeps its state in the folder of its name below `checkpoint`.

    `backend` is where topics live, opened with `settings`; sinks use it from their queries' threads
    and never close it. `failed` is told, in a thread of Spark's, why a sink's query is about to
    end, with the sentence for the user. `reads` tells whether the pipeline's source reads a topic.
    """

    pipeline: str
    checkpoint: str
    backend: Backend
    settings: Settings
    trigger: Trigger = field(default_factory=Trigger)
    failed: Callable[[str, RouterError], None] = _nobody
    wall_ms: Callable[[], int] = wall_ms
    reads: Callable[[TopicName], bool] = _none

    def triggered(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Return a query's writer that begins its batches when the run says so."""
        if self.trigger.available_now:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{round(self.trigger.every * 1000)} milliseconds")

    def folder(self, sink: str) -> str:
        """Return the checkpoint of one sink, as Spark is given it."""
        return f"{self.checkpoint.rstrip('/')}/{sink}"

    def local_folder(self, sink: str) -> Path:
        """Return the checkpoint of one sink as a folder; `check_local` says that it is one."""
        return Path(self.folder(sink).removeprefix("file://"))
