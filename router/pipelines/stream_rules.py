"""What Spark refuses of a stream's SQL, told before it starts: only what is sure, with its place.

Without a watermark no group of a stream is ever complete, so a sink in append mode never gets one;
DISTINCT makes groups, too. Of a stream there is no subquery within an expression.
Windows over rows and DISTINCT within an aggregate are refused whatever the sink is; what depends on
its mode, or on what is a stream, is in `stream_shapes`. Spark says so only when the query starts,
without file and line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlglot import exp

from router.pipelines.declaration import Pipeline, SinkSpec, ViewStep
from router.pipelines.declared_columns import offset
from router.pipelines.stream_shapes import (
    StreamUse,
    groups_of,
    refused_shapes,
    without_watermark,
)

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
    declared = [one.watermark for one in pipeline.sources().values()]
    declared += [step.watermark for step in pipeline.steps]
    watermarks = any(one is not None for one in declared)
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
                for at, reason in _never(select):
                    yield Refused(steps[name], at, reason)
            use = StreamUse(
                sink=sink.name,
                mode=sink.mode,
                reads=partial(reads_stream, parsed=parsed, sources=sources),
                groups=partial(_has_groups, parsed=parsed, sources=sources),
                certain=not _unknown(name, pipeline, parsed),
                maybe_groups=_maybe_groups(name, parsed, sources),
                watermarks=watermarks,
            )
            for at, reason in refused_shapes(parsed[name], use):
                yield Refused(steps[name], at, reason)
        yield from _endless(pipeline, parsed, steps, sink)
        yield from _ungrouped_time(pipeline, parsed, sink)


def _subqueries(
    query: exp.Query, parsed: Mapping[str, exp.Query], sources: Collection[str]
) -> Iterator[int]:
    """Yield the offsets of subqueries that are values or conditions and read rows of a source."""
    for inner in query.find_all(exp.Subquery, exp.Select):
        if isinstance(inner.parent, _EXPRESSIONS) and reads_stream(inner, parsed, sources):
            yield offset(inner)


def _never(select: exp.Select) -> Iterator[tuple[int, str]]:
    """Yield what a SELECT of a stream has and no sink ever gets."""
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
    query: exp.Expr, parsed: Mapping[str, exp.Query], sources: Collection[str]
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
    query: exp.Expr, parsed: Mapping[str, exp.Query], sources: Collection[str]
) -> Iterator[int]:
    """Yield where a step has aggregates over rows of a source; DISTINCT makes groups, too."""
    for select in streaming(query, parsed, sources):
        if (at := groups_of(select)) is not None:
            yield at
    for union in query.find_all(exp.Union):
        if union.args.get("distinct") and reads_stream(union, parsed, sources):
            yield offset(union)


def _has_groups(
    part: exp.Expr,
    parsed: Mapping[str, exp.Query],
    sources: Collection[str],
    seen: frozenset[str] = frozenset(),
) -> bool:
    """Return whether a part of a step, or a view that it reads, makes groups of a stream."""
    if next(_aggregates(part, parsed, sources), None) is not None:
        return True
    inner = {cte.alias.lower(): cte.this for cte in part.root().find_all(exp.CTE)}
    for name in set(_tables(part)) - seen:
        if name in inner:
            if _has_groups(inner[name], parsed, sources, seen | {name}):
                return True
        elif any(
            next(_aggregates(parsed[one], parsed, sources), None) is not None
            for one in below(name, parsed) & parsed.keys()
        ):
            return True
    return False


def _unknown(name: str, pipeline: Pipeline, parsed: Mapping[str, exp.Query]) -> bool:
    """Return whether a view reads, at any depth, what is neither declared nor checked."""
    known = parsed.keys() | source_views(pipeline) | {one.name.lower() for one in pipeline.tables}
    inner = {cte.alias.lower() for query in parsed.values() for cte in query.find_all(exp.CTE)}
    return not below(name, parsed) <= known | inner


def _maybe_groups(name: str, parsed: Mapping[str, exp.Query], sources: Collection[str]) -> bool:
    """Return whether a view's rows may be groups; the parser does not know all aggregates."""
    queries = [parsed[one] for one in below(name, parsed) & parsed.keys()]
    return any(
        query.find(exp.Pivot, exp.Anonymous) is not None
        or next(_aggregates(query, parsed, sources), None) is not None
        for query in queries
    )


def unfit_sinks(
    pipeline: Pipeline, parsed: Mapping[str, exp.Query]
) -> Iterator[tuple[SinkSpec, str, str]]:
    """Yield the sinks that Spark refuses whatever a step's SQL has, each with a key and why."""
    sources = source_views(pipeline)
    for sink in pipeline.sinks:
        name = sink.from_step.lower()
        if _unknown(name, pipeline, parsed):
            continue
        if below(name, parsed).isdisjoint(sources):
            yield sink, "from", f"no stream comes to it: {sink.from_step} reads no source"
        elif sink.mode == "complete" and not _maybe_groups(name, parsed, sources):
            yield sink, "mode", "the mode complete is of groups, and its rows are none: GROUP BY"


def _ungrouped_time(
    pipeline: Pipeline, parsed: Mapping[str, exp.Query], sink: SinkSpec
) -> Iterator[Refused]:
    """Yield the groups that a watermark never completes: its column is not among theirs."""
    steps = {step.name.lower(): step for step in pipeline.steps}
    marks = {name.lower(): one.watermark for name, one in pipeline.sources().items()}
    columns = {name: mark.column for name, mark in marks.items() if mark is not None}
    if sink.mode != "append" or any(step.watermark for step in pipeline.steps):
        return
    for name in sorted(below(sink.from_step.lower(), parsed) & parsed.keys()):
        for select in parsed[name].find_all(exp.Select):
            if (at := without_watermark(select, columns)) is not None:
                yield Refused(
                    steps[name],
                    at,
                    "GROUP BY lacks the column of the watermark, or a window of it, without which"
                    f" the sink {sink.name} (mode append) never gets a row",
                )
