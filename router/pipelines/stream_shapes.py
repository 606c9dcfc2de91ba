"""Parts of a SELECT that Spark takes of tables and refuses of streams, by what they read and where.

Set operations and joins depend on which of their sides are streams, an order, a limit and several
groups on the sink's mode. A side that reads a step that is not checked is neither for sure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from router.pipelines.declared_columns import offset

_ORDERS: Final = {"order": "ORDER BY", "sort": "SORT BY", "cluster": "CLUSTER BY"}
_NEVER: Final = "monotonically_increasing_id"
_SESSION: Final = "session_window"
Found = Iterator[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class StreamUse:
    """How a step is used: `sink` and its output `mode`, and what is known of what the step reads.

    `reads` returns whether a part has rows of a stream, and if all is known (`certain`), one that
    has not has those of tables. `groups` returns whether a part, or what it reads, makes groups of
    a stream. `maybe_groups`: rows of the sink may be groups. `watermarks`: the pipeline has some.
    """

    sink: str
    mode: str
    reads: Callable[[exp.Expr], bool]
    groups: Callable[[exp.Expr], bool]
    certain: bool
    maybe_groups: bool
    watermarks: bool


def refused_shapes(query: exp.Query, use: StreamUse) -> Found:
    """Yield what Spark refuses of a step: where it begins in the SQL, and why."""
    for both in query.find_all(exp.SetOperation):
        yield from _set_operation(both, use)
    for part in query.find_all(exp.Select, exp.SetOperation):
        if use.reads(part):
            yield from _order(part, use)
            yield from _limit(part, use)
    for select in query.find_all(exp.Select):
        if use.reads(select):
            yield from _joins(select, use)
            yield from _calls(select, use)
            yield from _several_groups(select, use)
    for sample in query.find_all(exp.TableSample):
        of_rows = sample.args.get("size") is not None
        if use.reads(sample.parent or sample) and (use.mode == "update" or not of_rows):
            yield offset(sample.parent or sample), "no sample of a stream can be taken"


def _set_operation(found: exp.SetOperation, use: StreamUse) -> Found:
    left, right = use.reads(found.left), use.reads(found.right)
    if isinstance(found, exp.Except) and right:
        yield offset(found.right), "EXCEPT takes no rows of a stream away: LEFT ANTI JOIN a table"
    if isinstance(found, exp.Intersect) and (left or right):
        at = found.right if right else found.left
        yield offset(at), "INTERSECT is of tables, not of streams: LEFT SEMI JOIN a table"
    if isinstance(found, exp.Union) and left != right and use.certain:
        at = found.right if left else found.left
        yield offset(at), "UNION is of streams or of tables, and this side is no stream"


def _order(part: exp.Expr, use: StreamUse) -> Found:
    if use.mode == "complete" and use.maybe_groups:
        return
    for key, words in _ORDERS.items():
        if (order := part.args.get(key)) is not None:
            yield (
                offset(order),
                f"rows of a stream come without end, so that the sink {use.sink} (mode {use.mode})"
                f" never gets them in an order: leave {words} away, and sort what reads the sink",
            )


def _limit(part: exp.Expr, use: StreamUse) -> Found:
    limit, skipped = part.args.get("limit"), part.args.get("offset")
    if skipped is not None:
        yield offset(skipped) or offset(part), "a stream has no OFFSET: leave it away"
    every = limit is None or isinstance(limit.args.get("expression"), exp.Var)
    if use.mode == "update" and not every:
        yield offset(part), f"a stream has no LIMIT for the sink {use.sink} (mode update)"


def _joins(select: exp.Select, use: StreamUse) -> Found:
    first = select.args.get("from_")
    left = first is not None and use.reads(first)
    for join in select.args.get("joins") or ():
        right = use.reads(join.this)
        if reason := _join(join, use, left=left, right=right):
            yield offset(join.this), reason
        left |= right


def _join(join: exp.Join, use: StreamUse, *, left: bool, right: bool) -> str:
    """Return why Spark refuses a join of sides that are streams or not; nothing if it does not."""
    side, kind = join.side.upper(), join.kind.upper()
    name = " ".join(word for word in (side, kind) if word)
    if right and kind == "ANTI":
        return "an ANTI JOIN has no stream on its right side"
    outer = {"LEFT": right, "RIGHT": left, "FULL": True}.get(side, kind == "SEMI" and right)
    if outer and left != right:
        reason = "needs the stream on the side whose rows are kept, and no FULL JOIN has such a one"
        return f"a {name} JOIN of a stream and a table {reason}" if use.certain else ""
    if not (left and right):
        return ""
    if (side or kind == "SEMI") and not use.watermarks:
        return (
            f"a {name} JOIN of two streams needs a watermark on both, and a condition on their"
            " times: without them no row is ever without a match"
        )
    if kind != "SEMI" and (use.mode == "complete" or (side and use.mode == "update")):
        return f"two streams are joined for sinks of mode append, and {use.sink} is {use.mode}"
    return ""


def _calls(select: exp.Select, use: StreamUse) -> Found:
    grouped = select.args.get("group") is not None
    for call in select.find_all(exp.Anonymous):
        name = str(call.this).lower()
        if call.parent_select is not select:
            continue
        if name == _NEVER:
            yield offset(call), f"a stream has no {_NEVER}(): take _partition and _index"
        if name == _SESSION and grouped and use.mode == "update":
            yield offset(call), f"{_SESSION} is for the modes append and complete of {use.sink}"


def _several_groups(select: exp.Select, use: StreamUse) -> Found:
    """Yield groups that are made of groups, which only the mode append has."""
    own = groups_of(select)
    if use.mode == "append" or own is None:
        return
    parts = [select.args.get("from_"), *(select.args.get("joins") or ())]
    if any(use.groups(part) for part in parts if part is not None):
        yield own, f"groups of groups are for sinks of mode append, and {use.sink} is {use.mode}"


def groups_of(select: exp.Select) -> int | None:
    """Return where a SELECT makes groups, DISTINCT included; None: it makes none."""
    group = select.args.get("group")
    if group is not None or select.args.get("distinct") is not None or _aggregated(select):
        return offset(group or select)
    return None


def _aggregated(select: exp.Select) -> bool:
    """Return whether a SELECT without GROUP BY is one group."""
    for column in select.expressions:
        for function in column.find_all(exp.AggFunc):
            within = function.find_ancestor(exp.Window, exp.Select)
            if within is select:
                return True
    return False


def without_watermark(select: exp.Select, watermarks: Mapping[str, str]) -> int | None:
    """Return where a SELECT makes groups that have not the column of a watermark, None: nowhere.

    `watermarks` are the columns of those views that have one alone. Only groups by columns of such
    a view are looked at.
    """
    source = select.args.get("from_")
    view = None if source is None else source.this
    if not isinstance(view, exp.Table) or view.db or select.args.get("joins"):
        return None
    marked = watermarks.get(view.name.lower())
    group = select.args.get("group")
    if marked is None or group is None:
        return None
    if any(value for key, value in group.args.items() if key != "expressions"):
        return None
    keys = [grouped_by(select, key) for key in group.expressions]
    columns = [key for key in keys if isinstance(key, exp.Column)]
    # A name may be that of a result and of a column of the view, which Spark prefers.
    named = [*columns, *(key for key in group.expressions if isinstance(key, exp.Column))]
    names = {part.lower() for key in named for part in (key.name, key.table)}
    if len(columns) < len(keys) or marked.lower() in names:
        return None
    return offset(group)


def grouped_by(select: exp.Select, key: exp.Expr) -> exp.Expr:
    """Return the expression that a number or the name of a result stands for in GROUP BY."""
    results = select.expressions
    if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.name) <= len(results):
        found: exp.Expr = results[int(key.name) - 1].unalias()
        return found
    if isinstance(key, exp.Column) and not key.table:
        for one in results:
            if isinstance(one, exp.Alias) and one.alias.lower() == key.name.lower():
                result: exp.Expr = one.this
                return result
    return key
