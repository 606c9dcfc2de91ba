"""How the present or last run of a pipeline stands, as lines for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from router.services.pipelines import read_status, run_state


def told(name: str, folder: Path) -> tuple[list[str], bool]:
    """Return lines on a pipeline whose state is in `folder`, and whether all is well."""
    found = read_status(folder)
    if found is None:
        return [f"{name}: never ran with the checkpoint {folder}"], False
    state = run_state(found, folder)
    lines = [
        f"{name}: {state}, process {found.get('pid')} on {found.get('host')},"
        f" since {found.get('started')}, told at {found.get('updated')}"
    ]
    if found.get("error"):
        lines.append(f"  {found['error']}")
    sinks = found.get("sinks") or {}
    width = max(map(len, sinks), default=0)
    lines += [f"  {sink:<{width}}  {_sink(one)}" for sink, one in sinks.items()]
    if found.get("dead_letters"):
        lines.append(f"  bad records: {found['dead_letters']:,}")
    return lines, state not in {"failed", "killed"}


def _sink(sink: dict[str, Any]) -> str:
    lag = sink.get("lag") or {}
    behind = sorted(((name, n) for name, n in lag.items() if n), key=lambda one: -one[1])[:5]
    parts = [
        f"batch {sink.get('batch')}",
        f"{sink.get('rows', 0):,} rows",
        f"{sink.get('rows_per_second', 0):,.0f} rows/s",
        f"{sink.get('batch_ms', 0):,} ms",
        f"lag {sum(lag.values()):,}",
        *(f"{name} {count:,}" for name, count in behind),
    ]
    if sink.get("lost"):
        parts.append(f"lost {sink['lost']:,}")
    return "  ".join(parts)
