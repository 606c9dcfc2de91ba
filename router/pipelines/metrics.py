"""A run's progress for Prometheus, on an address of the run's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from router.errors import SettingError
from router.pipelines.progress import PipelineProgress

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# name, kind, key of a sink's progress, sentence
FAMILIES: Final = (
    ("router_pipeline_rows", "counter", "rows", "Messages read for this sink."),
    ("router_pipeline_bad_records", "counter", "bad", "Messages read that were not decoded."),
    ("router_pipeline_batches", "counter", "batches", "Batches ended."),
    ("router_pipeline_lost_messages", "counter", "lost", "Messages gone before they were read."),
    ("router_pipeline_batch", "gauge", "batch", "Number of the last batch."),
    ("router_pipeline_batch_ms", "gauge", "batch_ms", "Time of the last batch, in ms."),
    ("router_pipeline_rows_per_second", "gauge", "rows_per_second", "Rate of the last batch."),
    ("router_pipeline_lag_seconds", "gauge", "lag_seconds", "Age of the oldest unread message."),
)
LAG: Final = "router_pipeline_lag_messages"


class PipelineCollector(Collector):
    """Reads the progress when it is asked."""

    def __init__(self, pipeline: str, progress: PipelineProgress) -> None:
        self._pipeline = pipeline
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        sinks = self._progress.sinks()
        for name, kind, key, sentence in FAMILIES:
            family = _family(name, kind, sentence)
            for sink, found in sinks.items():
                if found[key] is not None:
                    family.add_metric([self._pipeline, sink], float(found[key]))
            yield family
        lag = GaugeMetricFamily(
            LAG, "Messages behind the last batch.", labels=["pipeline", "sink", "partition"]
        )
        for sink, found in sinks.items():
            for partition, count in found["lag"].items():
                lag.add_metric([self._pipeline, sink, partition], float(count))
        yield lag


def _family(name: str, kind: str, sentence: str) -> CounterMetricFamily | GaugeMetricFamily:
    labels = ["pipeline", "sink"]
    if kind == "counter":
        return CounterMetricFamily(name, sentence, labels=labels)
    return GaugeMetricFamily(name, sentence, labels=labels)


def serve(address: str, pipeline: str, progress: PipelineProgress) -> Callable[[], None]:
    """Serve the progress on HOST:PORT; return what ends that. Raises SettingError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise SettingError(f"--metrics {address!r}: HOST:PORT is expected")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PipelineCollector(pipeline, progress))
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except (OSError, OverflowError) as error:
        raise SettingError(f"--metrics {address}: {error}") from error

    def end() -> None:
        closing: Any = server
        closing.shutdown()
        closing.server_close()
        thread.join(10.0)

    return end
