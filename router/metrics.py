"""Counters, gauges and histograms: what there is to count, counting it, and the text that shows it.

Each worker counts for itself in a plain dict and from time to time hands what it counted since to
the node's broker process, which adds it all up: `/metrics` then says the same on every worker.
prometheus-client's own multi-process mode was not taken, because its files grow with every worker
that comes and goes; its exposition writes the text. A histogram travels as what it is in that text:
counters `_bucket`, `_sum` and `_count`, buckets not yet accumulated.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, what its numbers are, the sentence that says what they mean."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    sentence: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        "router_http_requests_total",
        "counter",
        "HTTP requests answered.",
        ("route", "method", "status"),
    ),
    Family(
        "router_http_request_seconds",
        "histogram",
        "Time to answer an HTTP request; long-polls count under their own route.",
        ("route",),
        SECONDS,
    ),
    Family("router_published_messages_total", "counter", "Messages stored for HTTP publishers."),
    Family("router_published_bytes_total", "counter", "Bytes of those messages."),
    Family("router_publish_refused_total", "counter", "Publish requests refused.", ("code",)),
    Family("router_delivered_messages_total", "counter", "Messages answered to HTTP polls."),
    Family("router_delivered_bytes_total", "counter", "Bytes of those messages."),
    Family("router_polls_total", "counter", "Polls ended.", ("outcome",)),
    Family("router_polls_waiting", "gauge", "Polls that wait now."),
    Family("router_logins_total", "counter", "Credentials checked.", ("outcome",)),
    Family("router_broker_connections", "gauge", "Connections to the broker now."),
    Family("router_broker_topics", "gauge", "Topics of the node."),
    Family("router_broker_producers", "gauge", "Producers open now."),
    Family("router_broker_consumers", "gauge", "Consumers open now."),
    Family("router_broker_entries_total", "counter", "Entries stored."),
    Family("router_broker_bytes_total", "counter", "Bytes of the entries stored."),
    Family("router_broker_dispatched_total", "counter", "Entries sent to consumers."),
    Family("router_broker_damaged_entries_total", "counter", "Damaged entries skipped."),
    Family("router_broker_claims", "gauge", "Polls that claim partitions now."),
    Family("router_broker_grants_total", "counter", "Partitions granted to polls."),
    Family("router_broker_revokes_total", "counter", "Partitions asked back from polls."),
    Family("router_broker_empty_polls_limited_total", "counter", "Polls over the empty limit."),
)
BY_NAME: Final[Mapping[str, Family]] = {family.name: family for family in FAMILIES}


@dataclass(slots=True)
class Drained:
    """What was counted since the last drain, and the gauges as they stand."""

    counters: list[Sample] = field(default_factory=list)
    gauges: list[Sample] = field(default_factory=list)


class Metrics:
    """What one process counts. Calls never wait and may be made from any thread or greenlet.

    Names and label names are those of FAMILIES: a KeyError or ValueError is a mistake in the code.
    """

    def __init__(self) -> None:
        # Held for a few dict operations, never over anything that may switch greenlets.
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], float] = {}
        self._gauges: dict[tuple[str, Labels], float] = {}

    def inc(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""
        key = (_family(name, "counter").name, _labels(name, labels))
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Count a value in a histogram."""
        family = _family(name, "histogram")
        own = _labels(name, labels)
        index = bisect_left(family.buckets, value)
        edge = repr(float(family.buckets[index])) if index < len(family.buckets) else "+Inf"
        with self._lock:
            self._add((f"{name}_bucket", (*own, ("le", edge))), 1)
            self._add((f"{name}_sum", own), value)
            self._add((f"{name}_count", own), 1)

    def gauge(self, name: str, delta: float, **labels: str) -> None:
        """Move a gauge up or down."""
        key = (_family(name, "gauge").name, _labels(name, labels))
        with self._lock:
            self._gauges[key] = self._gauges.get(key, 0) + delta

    def drain(self) -> Drained:
        """Return the counters' growth since the last drain, and all gauges."""
        with self._lock:
            counters, self._counters = self._counters, {}
            gauges = list(self._gauges.items())
        return Drained(
            [(name, labels, value) for (name, labels), value in counters.items()],
            [(name, labels, value) for (name, labels), value in gauges],
        )

    def give_back(self, counters: Iterable[Sample]) -> None:
        """Take back what was drained and could not be handed on, so that it is not lost."""
        with self._lock:
            for name, labels, value in counters:
                self._add((name, labels), value)

    def _add(self, key: tuple[str, Labels], value: float) -> None:
        self._counters[key] = self._counters.get(key, 0) + value


def render(samples: Iterable[Sample]) -> str:
    """Return the samples, added up where name and labels agree, in the Prometheus text format."""
    # Here, not above: the import costs 80 ms, and only who shows metrics should pay for it.
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415 - see above

    summed: dict[tuple[str, Labels], float] = {}
    for name, labels, value in samples:
        key = (name, tuple(sorted(labels)))
        summed[key] = summed.get(key, 0) + value
    return generate_latest(_Collected(summed)).decode()  # type: ignore[arg-type]


class _Collected:
    """What prometheus-client's exposition asks of a registry."""

    def __init__(self, summed: Mapping[tuple[str, Labels], float]) -> None:
        self._summed = summed
