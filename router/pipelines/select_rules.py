"""What Spark refuses of a SELECT that the parser takes: where aggregates, aliases, columns stand.

Only what is sure, as everywhere in `checks`: what is in doubt is Spark's to judge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Final

from sqlglot import TokenType, exp
from sqlglot.dialects import Spark

from router.pipelines.schema_grammar import foreign_type

_STARTS: Final = frozenset({TokenType.SELECT, TokenType.L_PAREN, TokenType.COMMA})
_ENDS: Final = frozenset(
    {TokenType.FROM, TokenType.R_PAREN, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING}
    | {TokenType.ORDER_BY, TokenType.LIMIT, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT}
)
_WINDOWS: Final = frozenset({"window", "session_window"})


def lonely_comma(sql: str) -> tuple[int, str] | None:
    """Return the offset of a comma that has nothing on one side, and which; None: there is none."""
    tokens = Spark().tokenize(sql)
    for token, after in zip(tokens, [*tokens[1:], None], strict=False):
        if token.token_type is TokenType.COMMA and (after is None or after.token_type in _ENDS):
            return int(token.start), "nothing follows a comma"
        if after is None or after.token_type is not TokenType.COMMA:
            continue
        if token.token_type in _STARTS:
            return int(after.start), "nothing is before a comma"
    return None


def foreign_cast(sql: str) -> tuple[int, str] | None:
    """Return where a CAST has a type that is none of Spark's, and why; None: none has."""
    casts: list[bool] = []
    for before, token in pairwise(Spark().tokenize(sql)):
        follows_as = before.token_type is TokenType.ALIAS and token.text.isidentifier()
        if token.token_type is TokenType.L_PAREN:
            casts.append(before.text.lower() in {"cast", "try_cast"})
        elif token.token_type is TokenType.R_PAREN:
            casts = casts[:-1]
        elif any(casts[-1:]) and follows_as and (no := foreign_type(token.text)):
            return int(token.start), no
    return None


def misplaced(query: exp.Query, names: Collection[str]) -> Iterator[tuple[exp.Expr, str]]:
    """Yield what a query has where Spark takes none, with what to write.

    `names` are those of all columns that it may read, in lower case.
    """
    for select in query.find_all(exp.Select):
        where = select.args.get("where")
        if where is not None:
            for found in where.find_all(exp.AggFunc):
                if found.parent_select is select:
                    sql = found.sql(dialect="spark")
                    yield found, f"{sql} is of groups, and WHERE of rows: HAVING is for groups"
        # What is not read FROM may have columns of the SELECT around it.
        if isinstance(select.find_ancestor(exp.From, exp.Join, exp.CTE, exp.Select), exp.Select):
            continue
        for column in _ungrouped(select):
            if column.name.lower() in names:
                sql = column.sql(dialect="spark")
                yield column, f"GROUP BY lacks {sql}: add it, or take any_value({sql})"


def _ungrouped(select: exp.Select) -> Iterator[exp.Column]:
    """Yield the columns that are selected beside groups they do not belong to."""
    group = select.args.get("group")
    # GROUP BY ALL, ROLLUP and the like have more than expressions; a number names a column.
    if group is None or any(value for key, value in group.args.items() if key != "expressions"):
        return
    if any(isinstance(one, exp.Literal) for one in group.expressions):
        return
    columns = [column for one in group.expressions for column in one.find_all(exp.Column)]
    grouped = {part.lower() for column in columns for part in (column.name, column.table)}
    known = grouped | _WINDOWS | {one.alias.lower() for one in select.expressions}
    for selected in select.expressions:
        one = selected.unalias()
        if not isinstance(one, exp.Column) or selected.alias.lower() in grouped - {""}:
            continue
        if (known - {""}).isdisjoint({one.name.lower(), one.table.lower()}):
            yield one


def aliases_in_where(query: exp.Query) -> Iterator[exp.Column]:
    """Yield the columns in WHERE that are aliases of their own SELECT.

    Columns of views have their tables in the query, as `qualify` gives them.
    """
    for select in query.find_all(exp.Select):
        where = select.args.get("where")
        aliases = {one.alias.lower() for one in select.expressions}
        columns: Iterator[exp.Column] = (
            where.find_all(exp.Column) if where is not None else iter(())
        )
        for column in columns:
            is_alias = not column.table and column.name.lower() in aliases
            if is_alias and column.parent_select is select:
                yield column


def unlike_widths(query: exp.Query) -> Iterator[tuple[exp.Expr, str]]:
    """Yield the second SELECTs, of UNION and the like, that have not as many columns."""
    for found in query.find_all(exp.SetOperation):
        left, right = found.left.named_selects, found.right.named_selects
        if "*" not in (*left, *right) and len(left) != len(right):
            counts = f"{len(left)} and {len(right)} columns"
            yield found.right, f"{found.key.upper()} of {counts}: both need as many"
