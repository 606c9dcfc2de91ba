"""Aggregates over streams that can never be written: without a watermark no group is ever complete.

A sink in append mode takes a group when the watermark has passed it. Spark says so only when the
query starts, without file and line. Only what is sure is refused: an aggregate over rows of the
source, in append mode, with no watermark on any step below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from router.pipelines.declaration import RECORDS, Pipeline, SinkSpec, Step


@dataclass(frozen=True, slots=True)
class Endless:
    """An aggregate of a step whose groups are never complete for a sink."""

    step: Step
    line: int
    sink: SinkSpec

    def __str__(self) -> str:
        return (
            f"step {self.step.name}: the aggregate has no watermark, without which the sink"
            f" {self.sink.name} (mode append) never gets a row: declare source.watermark, or"
            " another mode of the sink"
        )


def endless(pipeline: Pipeline, parsed: Mapping[str, exp.Query]) -> Iterator[Endless]:
    """Yield the aggregates that no sink ever gets; steps that are not `parsed` are passed over."""
    steps = {step.name.lower(): step for step in pipeline.steps}
    for sink in pipeline.sinks:
        if sink.mode != "append" or pipeline.source.watermark is not None:
            continue
        for name in _below(sink.from_step.lower(), parsed):
            later = _below(name, parsed) - {name}
            if any(steps[one].watermark is not None for one in later if one in steps):
                continue
            line = next(_aggregates(parsed[name], parsed), None) if name in parsed else None
            if line is not None:
                yield Endless(steps[name], line, sink)


def _below(name: str, parsed: Mapping[str, exp.Query]) -> set[str]:
    """Return the views that a view is made of, itself included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += _tables(parsed[one]) if one in parsed else []
    return found


def _tables(node: exp.Expr) -> list[str]:
    return [table.name.lower() for table in node.find_all(exp.Table) if not table.db]


def _aggregates(query: exp.Query, parsed: Mapping[str, exp.Query]) -> Iterator[int]:
    """Yield the lines of a step's aggregates over rows of the source."""
    inner = {cte.alias.lower(): cte for cte in query.find_all(exp.CTE)}

    def streams(node: exp.Expr, seen: frozenset[str] = frozenset()) -> bool:
        for name in _tables(node):
            if name in inner and name not in seen:
                if streams(inner[name].this, seen | {name}):
                    return True
            elif RECORDS in _below(name, parsed):
                return True
        return False

    for select in query.find_all(exp.Select):
        group = select.args.get("group")
        if (group is not None or _aggregated(select)) and streams(select):
            yield _line(group or select)


def _aggregated(select: exp.Select) -> bool:
    """Return whether a SELECT without GROUP BY is one group."""
    for column in select.expressions:
        for function in column.find_all(exp.AggFunc):
            within = function.find_ancestor(exp.Window, exp.Select)
            if within is select:
                return True
    return False


def _line(node: exp.Expr) -> int:
    return next((int(one.meta["line"]) for one in node.walk() if "line" in one.meta), 1)
