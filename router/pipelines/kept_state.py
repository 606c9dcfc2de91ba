"""What a checkpoint keeps for a sink beside offsets: groups, aggregates and joins, from the SQL.

Spark compares types alone, when a query starts: it refuses some changes in words of its own, and
goes on with a sum that becomes a maximum. Names of results, filters and columns that are neither
grouped nor counted may change. Steps that are not checked are left to Spark altogether.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from sqlglot import exp

from router.pipelines.checks import STAND_IN, parsed_steps
from router.pipelines.declaration import Pipeline, SinkSpec
from router.pipelines.declared_columns import columns
from router.pipelines.stream_rules import below, reads_stream, source_views, streaming
from router.pipelines.stream_shapes import grouped_by


def state_of(pipeline: Pipeline, sink: SinkSpec) -> list[str]:
    """Return what is kept for a sink, a line for each part, in the order of the steps.

    Raises DeclarationError for bad SQL.
    """
    parsed = parsed_steps(pipeline)
    needed = below(sink.from_step.lower(), parsed)
    sources = source_views(pipeline)
    types = {
        name.lower(): kind
        for source in reversed(pipeline.sources().values())
        for name, kind in (columns(source) or {}).items()
    }
    return [
        re.sub(STAND_IN, "window", f"{name}: {part}", flags=re.IGNORECASE)
        for name, query in parsed.items()
        if name in needed
        for select in streaming(query, parsed, sources)
        for part in _parts(select, parsed, types, sources)
    ]


def _parts(
    select: exp.Select,
    parsed: Mapping[str, exp.Query],
    types: Mapping[str, str],
    sources: Collection[str],
) -> Iterator[str]:
    group = select.args.get("group")
    having = select.args.get("having")
    places = [*select.expressions, *([having] if having is not None else [])]
    found = [one for place in places for one in place.find_all(exp.AggFunc)]
    aggregates = list(dict.fromkeys(one.sql(dialect="spark") for one in found))
    grouped = [grouped_by(select, one) for one in group.expressions] if group is not None else []
    if aggregates or grouped:
        keys = ", ".join(one.sql(dialect="spark") for one in grouped) or "all rows"
        kept = ", ".join(aggregates) or "no aggregate"
        yield f"{kept} by {keys}{_typed([*found, *grouped], types)}"
    if select.args.get("distinct") is not None:
        names = ", ".join(one.sql(dialect="spark") for one in select.expressions)
        yield f"distinct {names}{_typed(select.expressions, types)}"
    for join in select.args.get("joins") or ():
        if reads_stream(join.this, parsed, sources):
            yield " ".join(join.sql(dialect="spark").split())


def _typed(parts: list[exp.Expr], types: Mapping[str, str]) -> str:
    """Return the declared types of the columns that are kept, in parentheses."""
    names = {one.name.lower() for part in parts for one in part.find_all(exp.Column)}
    known = ", ".join(f"{name} {types[name]}" for name in sorted(names & types.keys()))
    return f" ({known})" if known else ""
