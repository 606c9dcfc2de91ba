"""What the node counts for all its workers: metrics and token buckets, in memory and bounded.

A restart of the broker forgets it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from itertools import islice
from typing import Final

from router.metrics import Labels, Sample, fits, render
from router.sharing.limits import Clock, TokenBuckets

MAX_SERIES: Final = 20_000
MAX_GAUGES: Final = 1_000


class NodeCounters:
    """The node's metrics and token buckets; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Clock) -> None:
        self._buckets = TokenBuckets(clock)
        self._counters: dict[tuple[str, Labels], float] = {}
        self._watched: dict[str, Callable[[], float]] = {}
        self._collectors: list[Callable[[], Awaitable[list[Sample]]]] = []
        self._observed: list[Sample] = []
        self._pushed: dict[Hashable, list[Sample]] = {}

    def inc(self, name: str, labels: Labels = (), value: float = 1) -> None:
        """Add to a counter of the broker's own."""
        self._add((name, labels, value))

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Have a gauge of the broker's own read whenever metrics are shown."""
        self._watched[name] = read

    def observe(self, collect: Callable[[], Awaitable[list[Sample]]]) -> None:
        """Have samples collected whenever metrics are shown; they are as they stand then."""
        self._collectors.append(collect)

    async def refresh(self) -> None:
        """Collect what may take a moment, for `render`."""
        self._observed = [sample for collect in self._collectors for sample in await collect()]

    def push(self, peer: Hashable, counters: Iterable[Sample], gauges: Iterable[Sample]) -> None:
        """Add what a worker counted; its gauges replace those of its last push.

        Samples that this build does not know are left out.
        """
        for sample in filter(_known, counters):
            if sample[2] >= 0:
                self._add(sample)
        self._pushed[peer] = list(islice(filter(_known, gauges), MAX_GAUGES))

    def gone(self, peer: Hashable) -> None:
        """Forget the gauges of a worker whose connection ended."""
        self._pushed.pop(peer, None)

    def total(self, name: str, matches: Callable[[Mapping[str, str]], bool] | None = None) -> float:
        """Return a counter of workers or the broker, added up over the labels that match."""
        return sum(
            value
            for (known, labels), value in self._counters.items()
            if known == name and (matches is None or matches(dict(labels)))
        )

    async def samples(self) -> list[Sample]:
        """Collect what may take a moment, and return everything."""
        await self.refresh()
        return self._samples()

    def render(self) -> str:
        """Return everything in the Prometheus text format."""
        return render(self._samples())

    def _samples(self) -> list[Sample]:
        samples = [(name, labels, v) for (name, labels), v in self._counters.items()]
        samples += [(name, (), read()) for name, read in self._watched.items()]
        samples += self._observed
        for pushed in self._pushed.values():
            samples += pushed
        return samples

    def take_token(
        self, bucket: str, per_minute: float, burst: int, *, look_only: bool = False
    ) -> float | None:
        """Take one token of a bucket, or only look for one; None when there is one.

        Else return the seconds until there will be one.
        """
        return self._buckets.take(bucket, per_minute, burst, look_only=look_only)

    def _add(self, sample: Sample) -> None:
        name, labels, value = sample
        key = (name, labels)
        if key in self._counters or len(self._counters) < MAX_SERIES:
            self._counters[key] = self._counters.get(key, 0.0) + value


def _known(sample: Sample) -> bool:
    return fits(sample) and math.isfinite(sample[2])
