"""The columns of `records`, as far as a declaration says them: names and Spark's types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.dialects import Spark
from sqlglot.errors import ParseError, SqlglotError

from router.errors import InvalidSchemaError
from router.errors.quoting import nearest
from router.pipelines.declaration import METADATA, SourceSpec
from router.pipelines.decoding import avro_columns
from router.pipelines.protobuf_records import protobuf_columns
from router.pipelines.reading import offset_of

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
_WRITTEN: Final = "the schema is written like id BIGINT, name STRING"
_TABLE: Final = "CREATE TABLE t ("
_QUOTED: Final = frozenset({TokenType.IDENTIFIER, TokenType.STRING})
_FIXED: Final = {
    "bytes": {"value": "BINARY"},
    "text": {"value": "STRING"},
    "cambria": {"key": "STRING", "value": "STRING"},
}
_DEFINED: Final = {"avro": avro_columns, "protobuf": protobuf_columns}


class BadColumnsError(ValueError):
    """A schema that is none; `offset` is where it is not, in characters, None: as a whole."""

    def __init__(self, sentence: str, offset: int | None = None) -> None:
        super().__init__(sentence)
        self.offset = offset


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
    names: list[Token] = []
    for is_name, word in _words(schema):
        if is_name:
            names.append(word)
        elif foreign := foreign_type(word.text):
            raise BadColumnsError(f"the schema: {foreign}", word.start)
    text = f"{_TABLE}{_quoted(schema, names)})"

    def in_schema(at: int) -> int:
        at -= len(_TABLE)
        return at - 2 * sum(name.start + 2 * place < at for place, name in enumerate(names))

    found: dict[str, str] = {}
    for column in _definitions(text, in_schema):
        at = in_schema(offset(column))
        if not isinstance(column, exp.ColumnDef) or column.kind is None:
            raise BadColumnsError(f"{_WRITTEN}, and {column.name} is no name and type", at)
        if column.name.lower() in {name.lower() for name in found}:
            raise BadColumnsError(f"the schema names the column {column.name} twice", at)
        found[column.name] = column.kind.sql(dialect="spark")
    if not found:
        raise BadColumnsError("the schema names no column")
    return found


def _definitions(text: str, in_schema: Callable[[int], int]) -> list[exp.Expr]:
    """Return what a statement that makes a table says of each column; raise BadColumnsError."""
    try:
        table = sqlglot.parse_one(text, dialect="spark")
    except SqlglotError as error:
        at = in_schema(failed_at(text, error)[0]) if isinstance(error, ParseError) else None
        raise BadColumnsError(f"{_WRITTEN}: {str(error).partition('.')[0]}", at) from error
    if not isinstance(table.this, exp.Schema):
        raise BadColumnsError(f"{_WRITTEN}, with nothing behind")
    found: list[exp.Expr] = table.this.expressions
    return found


def _quoted(schema: str, names: Sequence[Token]) -> str:
    """Return a schema with names in quotes: Spark takes any word, the parser not LIKE or UNIQUE."""
    for name in reversed(names):
        schema = f"{schema[: name.start]}`{name.text}`{schema[name.end + 1 :]}"
    return schema


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


def _words(schema: str) -> Iterator[tuple[bool, Token]]:
    """Yield the first word of each type, and with True the name of each column without quotes.

    Nothing behind what cannot be read.
    """
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
                yield False, token
            elif words == len(named) == 1 and text.isidentifier():
                yield True, token


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
