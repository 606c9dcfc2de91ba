"""What a sink is given beside its rows: the run's parts that all sinks share, a topic's options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from router.backends import Backend
from router.backends.opening import scheme
from router.clocks import wall_ms
from router.errors import RouterError, SettingError
from router.model import TopicName
from router.pipelines.declaration import SinkSpec, Trigger
from router.settings import Settings, duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

QUERY: Final = "sql.streaming.queryId"
"""Where Spark says which query a batch is of, in the thread that runs it."""
# Apache Pulsar's brokerDeduplicationProducerInactivityTimeoutMinutes, Kafka's
# offsets.retention.minutes, as both come.
_PULSAR_SECONDS: Final = 6 * 3600.0
_KAFKA_SECONDS: Final = 7 * 86_400.0
_PUBLISH: Final = {"fail": False, "publish": True}


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

    def writer(self, rows: DataFrame, sink: SinkSpec) -> DataStreamWriter:
        """Return the writer of a sink's query, on its checkpoint, with batches as the run says."""
        writer = (
            rows.writeStream.queryName(f"{self.pipeline}/{sink.name}")
            .outputMode(sink.mode)
            .option("checkpointLocation", self.folder(sink.name))
        )
        if self.trigger.available_now:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{round(self.trigger.every * 1000)} milliseconds")

    def folder(self, sink: str) -> str:
        """Return the checkpoint of one sink, as Spark is given it."""
        return f"{self.checkpoint.rstrip('/')}/{sink}"

    def local_folder(self, sink: str) -> Path:
        """Return the checkpoint of one sink as a folder; `check_local` says that it is one."""
        return Path(self.folder(sink).removeprefix("file://"))


@dataclass(frozen=True, slots=True)
class SinkTopicOptions:
    """The options of a topic.

    `retry_seconds`: for which a failure that may pass is waited out. `remembered`: seconds after
    which the store may have forgotten what it has of a batch. `publish_forgotten`: a batch that was
    broken off longer ago is published all the same.
    """

    retry_seconds: float
    remembered: float
    publish_forgotten: bool

    @classmethod
    def from_settings(cls, sink: SinkSpec, settings: Settings) -> SinkTopicOptions:
        """Return the options of a sink; raise SettingError for a value that is not valid."""
        return cls(
            _read(sink, "patience", duration, 120.0),
            _read(sink, "remembered", duration, _remembered(settings)),
            _read(sink, "on_forgotten", _PUBLISH.__getitem__, False),
        )


def _remembered(settings: Settings) -> float:
    """Return how long the store remembers, unless it was set up otherwise."""
    kind = scheme(settings)
    if kind == "kafka":
        return _KAFKA_SECONDS
    return _PULSAR_SECONDS if kind.startswith("pulsar") else settings.seconds("dedup.window")


def _read(sink: SinkSpec, name: str, parse: Callable[[str], Any], default: Any) -> Any:
    text = sink.options.get(name)
    if text is None:
        return default
    try:
        return parse(text)
    except (ValueError, KeyError) as error:
        expected = "fail or publish" if name == "on_forgotten" else "a duration such as 90s or 12h"
        raise SettingError(f"sink {sink.name}: {name} = {text!r} has to be {expected}.") from error
