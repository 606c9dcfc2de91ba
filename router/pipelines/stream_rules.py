"""What Spark refuses of a stream's SQL, told before it starts: only what is sure, with its place.

Without a watermark no group of a stream is ever complete, so a sink in append mode never gets one;
DISTINCT makes groups, too. Of a stream there is no subquery within an expression.
Windows over rows, DISTINCT within an aggregate, and an order of rows that come without end are
refused whatever the sink is, the last but for the complete mode. Spark says so only when the query
starts, without file and line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from router.pipelines.declaration import Pipeline, SinkSpec, ViewStep
from router.pipelines.declared_columns import offset

_EXPRESSIONS: Final = (exp.Predicate, exp.Binary, exp.Where, exp.Having, exp.Alias)


@dataclass(frozen=True, slots=True)
class Refused:
    """A part of a step's SQL that a stream cannot have; `offset` is where it begins there."""

    step: ViewStep
    offset: int
    reason: str


def refused(pipeline: Pipeline, parsed: Mapping[str, exp.Query]) -> Iterator[Refused]:
    """Yield what the sinks of a pipeline never get; steps that are not `parsed` are passed over."""
    steps = {step.name.lower(): step for step in pipeline.steps}
    sources = source_views(pipeline)
    for sink in pipeline.sinks:
        for name in sorted(below(sink.from_step.lower(), parsed) & parsed.keys()):
            for at in _subqueries(parsed[name], parsed, sources):
                yield Refused(
                    steps[name],
                    at,
                    "a subquery in an expression may not read a stream: join it, with a watermark"
                    " on both and a condition on their times",
                )
            for select in streaming(parsed[name], parsed, sources):
                for at, reason in _never(select, sink):
                    yield Refused(steps[name], at, reason)
        yield from _endless(pipeline, parsed, steps, sink)


def _subqueries(
    query: exp.Query, parsed: Mapping[str, exp.Query], sources: Collection[str]
) -> Iterator[int]:
    """Yield the offsets of subqueries that are values or conditions and read rows of a source."""
    for inner in query.find_all(exp.Subquery, exp.Select):
        if isinstance(inner.parent, _EXPRESSIONS) and reads_stream(inner, parsed, sources):
            yield offset(inner)


def _never(select: exp.Select, sink: SinkSpec) -> Iterator[tuple[int, str]]:
    """Yield what a SELECT of a stream has and a sink never gets."""
    order = select.args.get("order")
    if order is not None and sink.mode != "complete":
        yield (
            offset(order),
            f"rows of a stream come without end, so that the sink {sink.name} (mode {sink.mode})"
            " never gets them in an order: leave ORDER BY away, and sort what reads the sink",
        )
    for window in select.find_all(exp.Window):
        if window.parent_select is select:
            yield (
                offset(window),
                f"{window.this.sql(dialect='spark')} OVER (…) looks at rows that come later: group"
                " by window(TIME, '1 minute'), or keep the newest with max_by(COLUMN, TIME)",
            )
    for distinct in select.find_all(exp.Distinct):
        function = distinct.parent
        if isinstance(function, exp.AggFunc) and function.parent_select is select:
            yield (
                offset(function),
                f"{function.sql(dialect='spark')} would keep each value for ever:"
                " approx_count_distinct(COLUMN) counts them nearly",
            )


def _endless(
    pipeline: Pipeline,
    parsed: Mapping[str, exp.Query],
    steps: Mapping[str, ViewStep],
    sink: SinkSpec,
) -> Iterator[Refused]:
    """Yield the aggregates whose groups are never complete for a sink."""
    needed = below(sink.from_step.lower(), parsed)
    sources = {name.lower(): one for name, one in pipeline.sources().items()}
    marked = any(sources[name].watermark is not None for name in needed & sources.keys())
    if sink.mode != "append" or marked:
        return
    for name in needed:
        later = below(name, parsed) - {name}
        if any(steps[one].watermark is not None for one in later if one in steps):
            continue
        query = parsed.get(name)
        at = None if query is None else next(_aggregates(query, parsed, sources), None)
        if at is not None:
            yield Refused(
                steps[name],
                at,
                f"the aggregate has no watermark, without which the sink {sink.name} (mode append)"
                " never gets a row: declare source.watermark, or another mode of the sink",
            )


def below(name: str, parsed: Mapping[str, exp.Query]) -> set[str]:
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


def source_views(pipeline: Pipeline) -> frozenset[str]:
    """Return the names of the views of sources, in lower case."""
    return frozenset(name.lower() for name in pipeline.sources())


def streaming(
    query: exp.Query, parsed: Mapping[str, exp.Query], sources: Collection[str]
) -> Iterator[exp.Select]:
    """Yield the SELECTs of a step that read rows of a source."""
    for select in query.find_all(exp.Select):
        if reads_stream(select, parsed, sources):
            yield select


def reads_stream(
    node: exp.Expr,
    parsed: Mapping[str, exp.Query],
    sources: Collection[str],
    seen: frozenset[str] = frozenset(),
) -> bool:
    """Return whether a part of a step has rows of a source."""
    inner = {cte.alias.lower(): cte for cte in node.root().find_all(exp.CTE)}
    for name in _tables(node):
        if name in inner and name not in seen:
            if reads_stream(inner[name].this, parsed, sources, seen | {name}):
                return True
        elif not below(name, parsed).isdisjoint(sources):
            return True
    return False


def _aggregates(
    query: exp.Query, parsed: Mapping[str, exp.Query], sources: Collection[str]
) -> Iterator[int]:
    """Yield where a step has aggregates over rows of a source; DISTINCT makes groups, too."""
    for select in streaming(query, parsed, sources):
        group = select.args.get("group")
        if group is not None or select.args.get("distinct") is not None or _aggregated(select):
            yield offset(group or select)
    for union in query.find_all(exp.Union):
        if union.args.get("distinct") and reads_stream(union, parsed, sources):
            yield offset(union)


def _aggregated(select: exp.Select) -> bool:
    """Return whether a SELECT without GROUP BY is one group."""
    for column in select.expressions:
        for function in column.find_all(exp.AggFunc):
            within = function.find_ancestor(exp.Window, exp.Select)
            if within is select:
                return True
    return False
