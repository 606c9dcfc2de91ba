"""The figures of `bench.growth` as tables in Markdown and as curves in SVG."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bench.charts import Panel, svg


class Measured(Protocol):
    """A point of `bench.growth`."""

    axis: str
    size: int
    grown: dict[str, float]
    new: dict[str, float]


def tables(points: Sequence[Measured]) -> str:
    """Return a table for each axis: a row for each figure, the ratio to the new router in it."""
    return "\n".join(
        _table(axis, [point for point in points if point.axis == axis])
        for axis in dict.fromkeys(point.axis for point in points)
    )


def _table(axis: str, points: Sequence[Measured]) -> str:
    sizes = [short(point.size) for point in points]
    lines = [
        "",
        f"### {axis}",
        "| | new, in the same turns | " + " | ".join(sizes) + " | ratio |",
        "| --- |" + " --- |" * (len(points) + 2),
    ]
    for title in points[-1].grown:
        new = [point.new.get(title) for point in points]
        cells = [point.grown.get(title) for point in points]
        ratios = [
            f"{cell / base:.2f}" if cell is not None and base else "-"
            for cell, base in zip(cells, new, strict=True)
        ]
        row = [", ".join(dict.fromkeys(map(_figure, new))), *map(_figure, cells), ", ".join(ratios)]
        lines.append(f"| {title} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1_000_000:
        return short(round(value))
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def short(size: int) -> str:
    """Return a size with its unit."""
    for unit, name in ((10**9, " GB"), (10**6, " MB")):
        if size >= unit:
            return f"{size / unit:.3g}{name}"
    return f"{size:,}"


RATIOS = (
    "POST c=1 p50, ms",
    "POST c=1, us",
    "POST to waiting GET, us",
    "start after stop, processor time of all, s",
    "start after kill, processor time of all, s",
    "poll from the oldest message, ms",
)
"""Figures that are drawn as their ratio to those of the new router in the same turns."""
AMOUNTS = ("broker's memory, idle, MiB", "retention pass, ms", "gauges, ms")
SMALLEST = {"topics": 1, "groups": 1, "log": 1_000, "singles": 1_000}
"""The size of a new router: one topic, one group, a message of 1 KiB."""


def draw(runs: Mapping[str, Sequence[Measured]], folder: Path) -> None:
    """Write a picture for each axis, with a line for each run."""
    for axis, smallest in SMALLEST.items():
        of_axis = {name: [p for p in points if p.axis == axis] for name, points in runs.items()}
        sizes = sorted({point.size for points in of_axis.values() for point in points})
        if not sizes:
            continue
        labels = {float(size): short(size) for size in (smallest, *sizes)}
        panels = [
            Panel(
                _ratio(title), {n: _ratios(found, title, smallest) for n, found in of_axis.items()}
            )
            for title in RATIOS
        ] + [
            Panel(title, {n: _line(found, title, smallest) for n, found in of_axis.items()})
            for title in AMOUNTS
        ]
        (folder / f"growth-{axis}.svg").write_text(svg(panels, labels))


def _line(points: Sequence[Measured], title: str, smallest: int) -> list[tuple[float, float]]:
    """Return a figure over the sizes, from the new router's median on."""
    new = [point.new[title] for point in points if title in point.new]
    first = [(float(smallest), statistics.median(new))] if new else []
    return first + [(float(p.size), p.grown[title]) for p in points if title in p.grown]


def _ratio(title: str) -> str:
    """Return what a panel of ratios is called."""
    name = title.rpartition(", ")[0].removesuffix(", processor time of all")
    return f"{name}: ratio" + ("" if title.endswith(", ms") else " (processor)")


def _ratios(points: Sequence[Measured], title: str, smallest: int) -> list[tuple[float, float]]:
    """Return the ratios of a figure over the sizes, from 1 on."""
    found = [
        (float(p.size), p.grown[title] / p.new[title])
        for p in points
        if p.new.get(title) and title in p.grown
    ]
    return [(float(smallest), 1.0), *found] if found else []
