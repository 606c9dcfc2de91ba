"""The columns of `records`, as far as a declaration says them: names and Spark's types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects import Spark
from sqlglot.errors import SqlglotError

from router.errors import InvalidSchemaError
from router.errors.quoting import nearest
from router.pipelines.declaration import METADATA, SourceSpec
from router.pipelines.decoding import avro_columns
from router.pipelines.protobuf_records import protobuf_columns

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
# The first words of the types of Spark's grammar; the parser knows those of other databases too.
_SPARK_TYPES: Final = frozenset(
    {"array", "bigint", "binary", "boolean", "byte", "char", "character", "date", "dec", "decimal"}
    | {"double", "float", "geography", "geometry", "int", "integer", "interval", "long", "map"}
    | {"numeric", "real", "short", "smallint", "string", "struct", "time", "timestamp"}
    | {"timestamp_ltz", "timestamp_ntz", "tinyint", "varchar", "variant", "void"}
)
_WRITTEN: Final = "source.schema is written like id BIGINT, name STRING"
_QUOTED: Final = frozenset({TokenType.IDENTIFIER, TokenType.STRING})
_FIXED: Final = {
    "bytes": {"value": "BINARY"},
    "text": {"value": "STRING"},
    "cambria": {"key": "STRING", "value": "STRING"},
}
_DEFINED: Final = {"avro": avro_columns, "protobuf": protobuf_columns}


def columns(source: SourceSpec) -> dict[str, str] | None:
    """Return the types of all columns of `records` by name, None: the schema comes with the data.

    Raises ValueError, with a sentence, for a schema that is none.
    """
    fields = _fields(source)
    if fields is None:
        return None
    known = dict(zip(METADATA, _TYPES, strict=True))
    for name in fields:
        if name.lower() in known:
            raise ValueError(f"the column {name} is the router's own: choose another name")
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
            raise ValueError(f"source.schema is no {source.format} definition: {error}") from error
    return declared(source.schema)


def declared(schema: str) -> dict[str, str]:
    """Return the columns of `a INT, b STRING`; raise ValueError."""
    for word in _type_words(schema):
        if foreign := foreign_type(word):
            raise ValueError(f"source.schema: {foreign}")
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({schema})", dialect="spark")
    except SqlglotError as error:
        raise ValueError(f"{_WRITTEN}: {str(error).partition('.')[0]}") from error
    found: dict[str, str] = {}
    for column in table.this.expressions:
        if not isinstance(column, exp.ColumnDef) or column.kind is None:
            text = column.sql(dialect="spark")
            raise ValueError(f"{_WRITTEN}, and {text} is no name and type")
        if column.name.lower() in {name.lower() for name in found}:
            raise ValueError(f"source.schema names the column {column.name} twice")
        found[column.name] = column.kind.sql(dialect="spark")
    if not found:
        raise ValueError("source.schema names no column")
    return found


def _type_words(schema: str) -> Iterator[str]:
    """Yield the first word of each type; nothing behind what cannot be read."""
    try:
        tokens = Spark().tokenize(schema)
    except SqlglotError:
        return
    # Of each bracket around the place whether columns are in it, or types alone; then how many
    # words of a column or type are read.
    named, words, depth, kind = [True], 0, 0, ""
    for token in tokens:
        text = "" if token.token_type in _QUOTED else token.text
        depth += (text == "(") - (text == ")")
        if depth or text == ")":
            continue
        if text == "<":
            named.append(kind == "struct")
            words = 0
        elif text.strip(">") == "" and text:
            del named[max(1, len(named) - len(text)) :]
        elif text == ",":
            words = 0
        elif text != ":":
            words += 1
            if words == 1 + named[-1]:
                kind = text.lower()
                yield token.text


def foreign_type(word: str) -> str:
    """Return that Spark has no type of a name, and what to write; nothing if it has."""
    if word.lower() in _SPARK_TYPES:
        return ""
    try:
        made = sqlglot.parse_one(f"CAST(1 AS {word})", dialect="spark").find(exp.DataType)
    except SqlglotError:
        made = None
    known = "" if made is None else made.sql(dialect="spark")
    near = (
        f": write {known}" if known.lower() in _SPARK_TYPES else nearest(word.lower(), _SPARK_TYPES)
    )
    return f"Spark has no type {word}{near}"
