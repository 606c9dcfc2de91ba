"""Small charts of rates and lag, as SVG and as words; charts.js draws them on as time goes by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from router.services.history import SPAN_MS, Sample

WIDTH: Final = 300
HEIGHT: Final = 60
KINDS: Final = {
    "rate": "Messages a second",
    "lag": "Lag",
    "delivered": "Acknowledged a second",
}
MAX_ROW_SAMPLES: Final = 60
"""Of a chart in a row of a table, of which a page has many."""


def chart(kind: str, samples: Sequence[Sample], now_ms: int) -> dict[str, Any]:
    """Return a chart of one kind: where its line goes, and what it says in words."""
    values = list(_values(kind, samples))
    most = max((value for _, value in values), default=0.0)
    return {
        "kind": kind,
        "name": KINDS[kind],
        "latest": _short(values[-1][1]) if values else None,
        "points": " ".join(_point(at, value, most, now_ms) for at, value in values),
        "text": _text(kind, [value for _, value in values]),
    }


def series(samples: Sequence[Sample], most: int | None = None) -> list[list[int]]:
    """Return samples for programs, the last one and evenly as many before it as there may be."""
    step = 1 if most is None else max(1, -(-len(samples) // most))
    return [list(sample) for sample in samples[::-1][::step][::-1]]


def _values(kind: str, samples: Sequence[Sample]) -> Iterator[tuple[int, float]]:
    """Yield time and value; what retention took is not a rate."""
    if kind == "lag":
        yield from ((sample.at, float(sample.lag)) for sample in samples)
        return
    for before, after in pairwise(samples):
        grown = after.messages - before.messages
        if grown < 0:
            continue
        if kind == "delivered":
            grown = max(0, grown - (after.lag - before.lag))
        yield after.at, grown * 1000 / max(1, after.at - before.at)


def _point(at: int, value: float, most: float, now_ms: int) -> str:
    x = WIDTH * (1 - min(1.0, max(0.0, (now_ms - at) / SPAN_MS)))
    y = HEIGHT * (1 - value / most) if most else HEIGHT
    return f"{x:.1f},{y:.1f}"


def _text(kind: str, values: Sequence[float]) -> str:
    if not values:
        return f"{KINDS[kind]}: no data yet"
    latest, least, most = map(_short, (values[-1], min(values), max(values)))
    return f"{KINDS[kind]}: {latest}, from {least} to {most} in 15 minutes"


def _short(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
