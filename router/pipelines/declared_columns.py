"""The columns of `records`, as far as a declaration says them: names and Spark's types."""

from __future__ import annotations

from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from router.errors import InvalidSchemaError
from router.pipelines.declaration import METADATA, SourceSpec
from router.pipelines.decoding import avro_columns
from router.pipelines.protobuf_records import protobuf_columns
from router.pipelines.reading import offset_of
from router.pipelines.schema_grammar import BadColumnsError, read_columns

_TYPES: Final = (
    "STRING",
    "INT",
    "STRING",
    "BIGINT",
    "BINARY",
    "BINARY",
    "MAP<STRING, STRING>",
    "TIMESTAMP",
    "TIMESTAMP",
    "BIGINT",
)
_TABLE: Final = "CREATE TABLE t (c {})"
_FIXED: Final = {
    "bytes": {"value": "BINARY"},
    "text": {"value": "STRING"},
    "cambria": {"key": "STRING", "value": "STRING"},
}
_DEFINED: Final = {"avro": avro_columns, "protobuf": protobuf_columns}


def columns(source: SourceSpec) -> dict[str, str] | None:
    """Return the types of all columns of `records` by name, None: the schema comes with the data.

    Raises BadColumnsError, with a sentence, for a schema that is none.
    """
    fields = _fields(source)
    if fields is None:
        return None
    known = dict(zip(METADATA, _TYPES, strict=True))
    for name in fields:
        if name.lower() in known:
            raise BadColumnsError(f"the column {name} is the router's own: choose another name")
    return fields | known


def _fields(source: SourceSpec) -> dict[str, str] | None:
    if source.format in _FIXED:
        return _FIXED[source.format]
    if not source.schema:
        return None
    if columns_of := _DEFINED.get(source.format):
        try:
            return columns_of(source.schema)
        except InvalidSchemaError as error:
            raise BadColumnsError(
                f"the schema is no {source.format} definition: {error}"
            ) from error
    return declared(source.schema)


def declared(schema: str) -> dict[str, str]:
    """Return the columns of `a INT, b STRING`; raise BadColumnsError."""
    found: dict[str, str] = {}
    for column in read_columns(schema):
        if column.name.lower() in {name.lower() for name in found}:
            sentence = f"the schema names the column {column.name} twice"
            raise BadColumnsError(sentence, column.offset)
        found[column.name] = _written(column.type)
    if not found:
        raise BadColumnsError("the schema names no column")
    return found


def _written(kind: str) -> str:
    """Return a type as the parser writes it, by which checkpoints know it."""
    try:
        column = sqlglot.parse_one(_TABLE.format(kind), dialect="spark").find(exp.ColumnDef)
    except SqlglotError:
        return kind
    known = None if column is None else column.args.get("kind")
    return kind if known is None else str(known.sql(dialect="spark"))


def failed_at(text: str, error: ParseError) -> tuple[int, str, str]:
    """Return where a token begins at which parsing failed, in characters, the token, and why."""
    first = error.errors[0] if error.errors else {}
    token = str(first.get("highlight") or "")
    # The parser says where a token ends.
    end = offset_of(text, int(first.get("line") or 1), int(first.get("col") or 0))
    return end - len(token), token, str(first.get("description") or error)


def offset(node: exp.Expr) -> int:
    """Return where the first token of a part that has a place begins, in characters of the SQL."""
    return min((int(one.meta["start"]) for one in node.walk() if "start" in one.meta), default=0)
