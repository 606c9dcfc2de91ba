"""A histogram of durations with a bounded relative error, as HdrHistogram has it.

Buckets are linear within each power of two: SUB_BUCKETS of them, so that a value is off by less
than 1/SUB_BUCKETS of itself, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

SUB_BITS: Final = 7
SUB_BUCKETS: Final = 1 << SUB_BITS
MAX_MICROSECONDS: Final = 1 << 40
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


@dataclass(slots=True)
class Histogram:
    """Counts of durations in whole microseconds; not for several threads at once."""

    counts: dict[int, int] = field(default_factory=dict)
    count: int = 0
    total: int = 0
    least: int = MAX_MICROSECONDS
    most: int = 0

    def record(self, seconds: float) -> None:
        """Count a duration; a negative one is none, a huge one the largest there is."""
        value = min(max(0, round(seconds * 1_000_000)), MAX_MICROSECONDS)
        index = _index(value)
        self.counts[index] = self.counts.get(index, 0) + 1
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def add(self, other: Histogram) -> None:
        """Count what another one has counted."""
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def percentile(self, percent: float) -> int:
        """Return the duration that so many percent do not exceed, in µs; 0 if there are none."""
        rank = max(1, -(-self.count * percent // 100))
        passed = 0
        for index in sorted(self.counts):
            passed += self.counts[index]
            if passed >= rank:
                return min(_highest(index), self.most)
        return 0

    def summary(self) -> dict[str, float | None]:
        """Return count aside what is reported of it, in milliseconds; None: nothing was counted."""
        names = ["min", "mean", *(f"p{percent:g}" for percent in PERCENTILES), "max"]
        if not self.count:
            return dict.fromkeys(names)
        values = [self.least, self.total / self.count]
        values += [*map(self.percentile, PERCENTILES), self.most]
        return {name: round(value / 1000, 3) for name, value in zip(names, values, strict=True)}

    def doublings(self) -> Iterator[tuple[float, int]]:
        """Yield for each power of two its upper bound in milliseconds, and how many are in it."""
        found: dict[int, int] = {}
        for index, count in self.counts.items():
            power = _highest(index).bit_length()
            found[power] = found.get(power, 0) + count
        for power in range(min(found, default=0), max(found, default=-1) + 1):
            yield (1 << power) / 1000, found.get(power, 0)

    def as_json(self) -> dict[str, Any]:
        """Return the summary and the buckets, for programs."""
        return self.summary() | {
            "count": self.count,
            "buckets": [{"below_ms": bound, "count": count} for bound, count in self.doublings()],
        }


def _index(value: int) -> int:
    """Return the bucket of a value: its highest bits, and how many there are below them."""
    shift = max(0, value.bit_length() - SUB_BITS - 1)
    return (shift << (SUB_BITS + 1)) + (value >> shift)


def _highest(index: int) -> int:
    """Return the largest value of a bucket."""
    shift, top = index >> (SUB_BITS + 1), index & (2 * SUB_BUCKETS - 1)
    return ((top + 1) << shift) - 1
