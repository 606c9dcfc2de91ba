"""Charts with axes: lines over time as SVG, their scales, and what they say in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

WIDTH: Final = 600
HEIGHT: Final = 120
X_LABELS: Final = 5
SHORT_MS: Final = 10 * 60_000
"""Labels of a shorter time have seconds."""
NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
BINARY: Final = 1024


class Line(NamedTuple):
    """One line: its name, the class that colours it, and its values."""

    name: str
    kind: str
    values: Sequence[float]


def plot(
    title: str,
    lines: Sequence[Line],
    times: Sequence[float],
    write: Callable[[float], str],
    *,
    binary: bool = False,
) -> dict[str, Any]:
    """Return a chart of lines with one value at each time (ms since 1970).

    `write` words a value. `binary`: the scale counts in 1024s.
    """
    top = ceiling(max((max(line.values, default=0.0) for line in lines), default=0.0), binary)
    first, last = (times[0], times[-1]) if times else (0.0, 0.0)
    span = max(1.0, last - first)
    return {
        "title": title,
        "lines": [
            {
                "name": line.name,
                "kind": line.kind,
                "latest": write(line.values[-1]) if line.values else "",
                "points": " ".join(
                    f"{WIDTH * (at - first) / span:.1f},{HEIGHT * (1 - value / top):.1f}"
                    for at, value in zip(times, line.values, strict=True)
                ),
                "words": [write(value) for value in line.values],
            }
            for line in lines
        ],
        "y": [write(top), write(top / 2), write(0.0)],
        "x": _x_labels(first, span) if len(times) > 1 else [],
        "times": [_clock(at, seconds=True) for at in times],
        "text": f"{title}. " + " ".join(_words(line, write) for line in lines),
    }


def ceiling(largest: float, binary: bool = False) -> float:
    """Return the round number that a scale ends with, 1 at least."""
    if largest <= 1:
        return 1.0
    base = BINARY ** int(math.log(largest, BINARY)) if binary else 1
    scaled = largest / base
    if binary and scaled > BINARY / 2:  # not 1000.0 KiB
        return float(BINARY * base)
    power = 10.0 ** math.floor(math.log10(scaled))
    return next(nice for nice in NICE if nice * power >= scaled - 1e-9) * power * base


def _words(line: Line, write: Callable[[float], str]) -> str:
    if not line.values:
        return f"{line.name}: no data yet."
    least, limit = write(min(line.values)), write(max(line.values))
    return f"{line.name}: {write(line.values[-1])}, from {least} to {limit}."


def _x_labels(first: float, span: float) -> list[str]:
    short = span < SHORT_MS
    return [_clock(first + span * n / (X_LABELS - 1), seconds=short) for n in range(X_LABELS)]


def _clock(at: float, *, seconds: bool = False) -> str:
    found = datetime.fromtimestamp(at / 1000, UTC)
    return found.strftime("%H:%M:%S" if seconds else "%H:%M")
