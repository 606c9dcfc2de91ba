"""Small charts as SVG: panels of lines over a logarithmic scale of sizes, from zero upwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 300, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 30, 30, 30
COLUMNS = 3
COLORS = ("#1763a6", "#b8562a", "#9a9a9a")

Line = Sequence[tuple[float, float]]
"""Pairs of a size, which is above zero, and a value."""


@dataclass(frozen=True)
class Panel:
    """A chart: its title, and a line for each label."""

    title: str
    lines: Mapping[str, Line]


def svg(panels: Sequence[Panel], labels: Mapping[float, str]) -> str:
    """Return the panels in rows as an SVG; `labels` are those of the sizes."""
    panels = [panel for panel in panels if any(panel.lines.values())]
    rows = math.ceil(len(panels) / COLUMNS)
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    width, height = COLUMNS * WIDTH, rows * HEIGHT + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, name in enumerate(names):
        at = LEFT + 220 * number
        color = COLORS[number % len(COLORS)]
        parts.append(f'<path d="M{at} 14h22" stroke="{color}" stroke-width="2.5"/>')
        parts.append(_text(at + 28, 18, name))
    for number, panel in enumerate(panels):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT + 24
        parts += _panel(panel, labels, names, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    panel: Panel, labels: Mapping[float, str], names: Sequence[str], x: int, y: int
) -> list[str]:
    values = [value for line in panel.lines.values() for _, value in line]
    top = _round_up(max(values))
    low, high = math.log(min(labels)), math.log(max(labels))
    left, right = x + LEFT, x + WIDTH - RIGHT
    upper, lower = y + TOP, y + HEIGHT - BOTTOM

    def place(size: float, value: float) -> tuple[float, float]:
        across = (math.log(size) - low) / (high - low or 1)
        return left + across * (right - left), lower - value / top * (lower - upper)

    parts = [_text(left, y + 20, panel.title, weight="bold")]
    for step in range(3):
        value = top * step / 2
        _, at = place(min(labels), value)
        parts.append(f'<path d="M{left} {at:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(_text(left - 6, at + 4, f"{value:g}", anchor="end"))
    for size, label in labels.items():
        across, _ = place(size, 0)
        parts.append(_text(across, lower + 16, label, anchor="middle"))
    for name, line in panel.lines.items():
        color = COLORS[names.index(name) % len(COLORS)]
        points = [place(size, value) for size, value in line]
        path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{color}"/>'
            for across, up in points
        ]
    return parts


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 3, 4, 6 and 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 2, 3, 4, 6, 8, 10) if n * power >= value)


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
        f' fill="#333333">{escape(words)}</text>'
    )
