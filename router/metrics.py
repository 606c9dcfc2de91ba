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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as PrometheusMetric

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
    optional: bool = False
    """There is none where it does not apply, in the place of a 0."""


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
    Family(
        "router_http_refused_total",
        "counter",
        "HTTP requests and connections refused before a route was looked for, in no other counter.",
        ("status",),
    ),
    Family("router_published_messages_total", "counter", "Messages stored for HTTP publishers."),
    Family("router_published_bytes_total", "counter", "Bytes of those messages."),
    Family("router_publish_refused_total", "counter", "Publish requests refused.", ("code",)),
    Family("router_delivered_messages_total", "counter", "Messages answered to HTTP polls."),
    Family("router_delivered_bytes_total", "counter", "Bytes of those messages."),
    Family(
        "router_undecoded_messages_total",
        "counter",
        "Messages answered to HTTP polls as the bytes of what could not be taken apart.",
    ),
    Family(
        "router_oversized_entries_total",
        "counter",
        "Entries that polls passed over, larger without their compression than any answer.",
    ),
    Family("router_polls_total", "counter", "Polls ended.", ("outcome",)),
    Family("router_polls_waiting", "gauge", "Polls that wait now."),
    Family(
        "router_poll_wait_seconds",
        "histogram",
        "Time for which a poll waited for messages or for its partitions.",
        buckets=SECONDS,
    ),
    Family(
        "router_poll_service_seconds",
        "histogram",
        "Time that a poll took besides waiting, up to its answer.",
        buckets=SECONDS,
    ),
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
    Family("router_broker_leases", "gauge", "Leases that the node holds now."),
    Family("router_broker_handovers_total", "counter", "Leases let go for other nodes."),
    Family("router_broker_leases_lost_total", "counter", "Leases lost, with the coordination."),
    Family(
        "router_broker_coordination_losses_total",
        "counter",
        "Times that the coordination of the nodes could not be reached.",
    ),
    Family("router_broker_empty_polls_limited_total", "counter", "Polls over the empty limit."),
    Family(
        "router_broker_sync_seconds",
        "histogram",
        "Time that a sync of the journal took.",
        buckets=SECONDS,
    ),
    Family("router_broker_subscriptions", "gauge", "Groups of topics.", optional=True),
    Family(
        "router_backlog_messages",
        "gauge",
        "Messages that groups have not acknowledged, over all groups.",
        optional=True,
    ),
    Family(
        "router_group_backlog_messages",
        "gauge",
        "Messages that a group has not acknowledged; the groups with the largest backlog only.",
        ("topic", "group"),
    ),
    Family("router_log_bytes", "gauge", "Bytes of the messages stored.", optional=True),
    Family("router_log_segments", "gauge", "Segment files of all partitions.", optional=True),
    Family("router_journal_bytes", "gauge", "Bytes of the journal's files.", optional=True),
    Family("router_journal_files", "gauge", "Files of the journal.", optional=True),
    Family(
        "router_journal_unsynced_bytes",
        "gauge",
        "Bytes that were appended and are not on disk yet.",
        optional=True,
    ),
    Family("router_disk_size_bytes", "gauge", "Size of the data folder's disk.", optional=True),
    Family("router_disk_free_bytes", "gauge", "Bytes of it that may be written.", optional=True),
    Family(
        "router_disk_reserve_bytes",
        "gauge",
        "Free bytes below which publishing is refused (storage.reserve).",
        optional=True,
    ),
    Family(
        "router_build_info",
        "gauge",
        "1, with the build of the broker and where messages live.",
        ("version", "build", "python", "backend"),
    ),
    Family("router_broker_start_time_seconds", "gauge", "When the broker started, since 1970."),
    Family("router_processes", "gauge", "Processes, by kind.", ("process",)),
    Family(
        "router_process_resident_memory_bytes",
        "gauge",
        "Memory of the processes of a kind.",
        ("process",),
    ),
    Family(
        "router_process_open_fds", "gauge", "Open files of the processes of a kind.", ("process",)
    ),
    Family(
        "router_process_max_fds",
        "gauge",
        "Open files that the processes of a kind may have, added up.",
        ("process",),
    ),
    Family(
        "router_process_cpu_seconds_total",
        "counter",
        "CPU time of the processes of a kind.",
        ("process",),
    ),
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
        key = (name, _labels(_family(name, "counter"), labels))
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Count a value in a histogram."""
        family = _family(name, "histogram")
        own = _labels(family, labels)
        index = bisect_left(family.buckets, value)
        edge = repr(float(family.buckets[index])) if index < len(family.buckets) else "+Inf"
        with self._lock:
            self._add((f"{name}_bucket", (*own, ("le", edge))), 1)
            self._add((f"{name}_sum", own), value)
            self._add((f"{name}_count", own), 1)

    def observe_all(self, name: str, values: Sequence[float], **labels: str) -> None:
        """Count many values in a histogram, at less cost than one by one."""
        family = _family(name, "histogram")
        own = _labels(family, labels)
        found = Counter(bisect_left(family.buckets, value) for value in values)
        edges = (*(repr(float(edge)) for edge in family.buckets), "+Inf")
        with self._lock:
            for index, times in found.items():
                self._add((f"{name}_bucket", (*own, ("le", edges[index]))), times)
            self._add((f"{name}_sum", own), sum(values))
            self._add((f"{name}_count", own), len(values))

    def gauge(self, name: str, delta: float, **labels: str) -> None:
        """Move a gauge up or down."""
        key = (name, _labels(_family(name, "gauge"), labels))
        with self._lock:
            self._gauges[key] = self._gauges.get(key, 0) + delta

    def set_gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        key = (name, _labels(_family(name, "gauge"), labels))
        with self._lock:
            self._gauges[key] = value

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


class Timings:
    """A histogram without labels that one thread counts and any other reads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._buckets = _family(name, "histogram").buckets
        self._counts = [0] * (len(self._buckets) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one time."""
        self._counts[bisect_left(self._buckets, seconds)] += 1
        self._sum += seconds

    def samples(self) -> list[Sample]:
        """Return what was counted since the start."""
        counts = list(self._counts)
        edges = (*(repr(float(edge)) for edge in self._buckets), "+Inf")
        found: list[Sample] = [
            (f"{self._name}_bucket", (("le", edge),), float(count))
            for edge, count in zip(edges, counts, strict=True)
        ]
        total = float(sum(counts))
        return [*found, (f"{self._name}_sum", (), self._sum), (f"{self._name}_count", (), total)]


def fits(sample: Sample) -> bool:
    """Return whether a sample is one of FAMILIES; one that another build counted may not be."""
    family, suffix = _family_of(sample[0])
    if family is None:
        return False
    expected = (*family.labels, "le") if suffix == "_bucket" else family.labels
    return sorted(expected) == sorted(name for name, _ in sample[1])


def render(samples: Iterable[Sample]) -> str:
    """Return the samples, added up where name and labels agree, in the Prometheus text format.

    Samples that do not fit FAMILIES are left out.
    """
    # Here, not above: the import costs 80 ms, and only who shows metrics should pay for it.
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415
    from prometheus_client.metrics_core import Metric  # noqa: PLC0415

    shown = {f.name: Metric(_shown_name(f), f.sentence, f.kind) for f in FAMILIES}
    for (name, labels), value in _summed(samples).items():
        family, _ = _family_of(name)
        if family is not None:
            shown[family.name].add_sample(name, dict(labels), value)
    return generate_latest(_Collected(list(shown.values()))).decode()


class _Collected:
    """What prometheus-client's exposition asks of a registry."""

    def __init__(self, families: list[PrometheusMetric]) -> None:
        self._families = families

    def collect(self) -> list[PrometheusMetric]:
        return self._families


def _summed(samples: Iterable[Sample]) -> dict[tuple[str, Labels], float]:
    summed: dict[tuple[str, Labels], float] = {
        (f.name, ()): 0.0
        for f in FAMILIES
        if f.kind != "histogram" and not f.labels and not f.optional
    }
    for sample in samples:
        if fits(sample):
            key = (sample[0], tuple(sorted(sample[1])))
            summed[key] = summed.get(key, 0.0) + sample[2]
    return _accumulated(summed)


def _accumulated(summed: dict[tuple[str, Labels], float]) -> dict[tuple[str, Labels], float]:
    """Replace each histogram's separate buckets by the running totals that the text format has."""
    counts = [key for key in summed if key[0].endswith("_count") and _family_of(key[0])[1]]
    for name, labels in counts:
        family = BY_NAME[name.removesuffix("_count")]
        total = 0.0
        for edge in (*(repr(float(bucket)) for bucket in family.buckets), "+Inf"):
            bucket = (f"{family.name}_bucket", tuple(sorted((*labels, ("le", edge)))))
            total += summed.pop(bucket, 0.0)
            summed[bucket] = total
        # Behind their buckets, as the format's readers are used to.
        for key in ((f"{family.name}_sum", labels), (name, labels)):
            summed[key] = summed.pop(key, 0.0)
    return summed


def _family_of(name: str) -> tuple[Family | None, str]:
    if family := BY_NAME.get(name):
        return (None, "") if family.kind == "histogram" else (family, "")
    stem, _, end = name.rpartition("_")
    family = BY_NAME.get(stem)
    if family and family.kind == "histogram" and end in {"bucket", "sum", "count"}:
        return family, f"_{end}"
    return None, ""


def _shown_name(family: Family) -> str:
    # The exposition appends _total to the name of a counter itself.
    return family.name.removesuffix("_total") if family.kind == "counter" else family.name


def _family(name: str, kind: str) -> Family:
    family = BY_NAME[name]
    if family.kind != kind:
        raise ValueError(f"{name} is a {family.kind}, not a {kind}")
    return family


def _labels(family: Family, given: Mapping[str, str]) -> Labels:
    if given.keys() != set(family.labels):
        raise ValueError(f"{family.name} has the labels {family.labels}, not {tuple(given)}")
    return tuple((name, given[name]) for name in family.labels)
