"""Counters, gauges and histograms: counting, and the text that shows it; see also metric_families.

Each worker counts for itself in a plain dict and from time to time hands what it counted since to
the node's broker process, which adds it all up: `/metrics` then says the same on every worker.
prometheus-client's own multi-process mode was not taken, because its files grow with every worker
that comes and goes; its exposition writes the text. A histogram travels as what it is in that text:
counters `_bucket`, `_sum` and `_count`, buckets not yet accumulated.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from router.metrics.families import BY_NAME, FAMILIES, Family

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as PrometheusMetric

T = TypeVar("T")
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


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
        self._sources: list[Callable[[], None]] = []

    def before_drain(self, count: Callable[[], None]) -> None:
        """Have this called before each drain, by what counts on its own meanwhile."""
        self._sources.append(count)

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
        ranked = sorted(values)
        below = [bisect_right(ranked, edge) for edge in family.buckets]
        found = zip(
            (*map(repr, map(float, family.buckets)), "+Inf"), (*below, len(ranked)), strict=True
        )
        counted = 0
        with self._lock:
            for edge, upto in found:
                if upto > counted:
                    self._add((f"{name}_bucket", (*own, ("le", edge))), upto - counted)
                    counted = upto
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
        for count in self._sources:
            count()
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


def taken(queue: deque[T]) -> list[T]:
    """Take what is in a queue out of it; other threads may append, and take out, meanwhile."""
    found: list[T] = []
    with suppress(IndexError):
        while True:
            found.append(queue.popleft())
    return found


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
