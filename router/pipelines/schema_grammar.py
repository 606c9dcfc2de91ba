"""Spark's grammar of `name TYPE, …`, as far as it decides which schemas Spark reads.

The parser of SQL takes more than Spark does: constraints, defaults, a comma too many, INT(11).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from router.errors.quoting import nearest

# The first words of the types of Spark's grammar; the parser knows those of other databases too.
_SPARK_TYPES: Final = frozenset(
    {"array", "bigint", "binary", "boolean", "byte", "char", "character", "date", "dec", "decimal"}
    | {"double", "float", "geography", "geometry", "int", "integer", "interval", "long", "map"}
    | {"numeric", "real", "short", "smallint", "string", "struct", "time", "timestamp"}
    | {"timestamp_ltz", "timestamp_ntz", "tinyint", "varchar", "variant", "void"}
)
# How few and how many numbers stand in parentheses behind a type; none behind others.
_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("dec", "decimal", "numeric"), (0, 2)),
    **dict.fromkeys(("char", "character", "varchar", "geography", "geometry"), (1, 1)),
    "time": (0, 1),
}
_MAX_DIGITS: Final = 38
_UNITS: Final = (("year", "month"), ("day", "hour", "minute", "second"))
_ZONES: Final = (("without", "time", "zone"), ("with", "local", "time", "zone"))
WRITTEN: Final = "the schema is written like id BIGINT, name STRING"
_TOKEN: Final = re.compile(
    r"(?P<space>(?:\s|--[^\n]*|/\*.*?\*/)+)|(?P<quoted>`(?:[^`]|``)+`)"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>[A-Za-z0-9_]+)|.",
    re.DOTALL,
)
_NUMBER: Final = re.compile(r"\d+(e\d+)?(bd|[dflsy])?", re.IGNORECASE)


class BadColumnsError(ValueError):
    """A schema that is none; `offset` is where it is not, in characters, None: as a whole."""

    def __init__(self, sentence: str, offset: int | None = None) -> None:
        super().__init__(sentence)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A column of a schema: its type is text of Spark's grammar; `offset` is that of its name."""

    name: str
    type: str
    offset: int


def read_columns(schema: str) -> Iterator[DeclaredColumn]:
    """Yield the columns of a schema in order; raise BadColumnsError where Spark cannot read it."""
    reader = _Reader(schema)
    if reader.kind:
        yield from reader.several(lambda: reader.column(nested=False))
    if reader.kind:
        raise reader.error(f"{WRITTEN}, with nothing behind, and not {reader.shown()}")


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


class _Reader:
    """A schema with the place of the next token, whose `kind` is empty at the end."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        found = [one for one in _TOKEN.finditer(schema) if one.lastgroup != "space"]
        self._tokens = [(one[0], one.lastgroup or one[0], one.start()) for one in found]
        self._place = 0
        self._end = 0

    @property
    def kind(self) -> str:
        """What the next token is: quoted, text, word, or a sign."""
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def word(self) -> str:
        """Return the next token in lower case if it is a word without quotes."""
        return self._tokens[self._place][0].lower() if self.kind == "word" else ""

    def shown(self) -> str:
        """Return the next token for a sentence."""
        return self._tokens[self._place][0] if self.kind else "its end"

    def at(self) -> int:
        """Return where the next token begins."""
        return self._tokens[self._place][2] if self.kind else self._end

    def error(self, sentence: str, at: int | None = None) -> BadColumnsError:
        """Return the error about the next token, or another place."""
        return BadColumnsError(sentence, self.at() if at is None else at)

    def take(self) -> str:
        """Pass a token and return it."""
        text, _, start = self._tokens[self._place]
        self._place += 1
        self._end = start + len(text)
        return text

    def takes(self, *words: str) -> bool:
        """Pass words or a sign if they come next; return whether they did."""
        ahead = self._tokens[self._place : self._place + len(words)]
        if tuple(text.lower() for text, *_ in ahead) != words:
            return False
        for _ in words:
            self.take()
        return True

    def several(self, one: Callable[[], DeclaredColumn]) -> Iterator[DeclaredColumn]:
        """Yield columns with commas between them."""
        yield one()
        while self.kind == ",":
            comma = self.at()
            self.take()
            if self.kind in {"", ",", ">"}:
                raise self.error("the schema: nothing follows a comma", comma)
            yield one()

    def column(self, *, nested: bool) -> DeclaredColumn:
        """Pass a name and its type, or a field of a STRUCT if it is `nested`."""
        start = self.at()
        if self.kind not in {"word", "quoted"}:
            quotes = ": a name stands in backquotes" if self.kind == "text" else ""
            raise self.error(f"the schema: a name is needed, and not {self.shown()}{quotes}")
        if _NUMBER.fullmatch(self.word()):
            raise self.error(f"the schema: {self.shown()} is a number: write `{self.shown()}`")
        given = self.take()
        name = given[1:-1].replace("``", "`") if given[0] == "`" else given
        touching = self.kind not in {"", ",", ":", "<"} and self.at() == self._end
        if nested:
            self.takes(":")
        if self.kind != "word":
            quotes = f": write `{name}…` if more belongs to the name" if touching else ""
            raise self.error(f"{WRITTEN}, and {name} is no name and type{quotes}", start)
        begin = self.at()
        self.type()
        kind = self._schema[begin : self._end]
        self.takes("not", "null")
        if self.word() == "comment":
            self.take()
            if self.kind != "text":
                raise self.error(f"the schema: a comment is text in quotes, not {self.shown()}")
            self.take()
        if self.kind not in {"", ",", ">"}:
            known = "NOT NULL, COMMENT 'TEXT' or a comma"
            sentence = f"the schema: behind {kind} comes {known}, not {self.shown()}"
            raise self.error(sentence)
        return DeclaredColumn(name, kind, start)

    def type(self) -> None:
        """Pass a type."""
        start, shown, word = self.at(), self.shown(), self.word()
        if foreign := foreign_type(shown) if word else f"a type is needed, and not {shown}":
            raise self.error(f"the schema: {foreign}")
        self.take()
        if word in {"array", "map"}:
            self._of_types(shown, 1 + (word == "map"))
        elif word == "struct":
            self._fields()
        elif word == "interval":
            self._units()
        elif word == "timestamp":
            any(self.takes(*zone) for zone in _ZONES)
        elif word == "string" and self.takes("collate"):
            self.take()
        if self.kind == "(" or _NUMBERS.get(word, (0, 0))[0]:
            self._numbers(shown, word, start)

    def _of_types(self, shown: str, count: int) -> None:
        written = f"the schema: {shown} is written {('ARRAY<TYPE>', 'MAP<TYPE, TYPE>')[count - 1]}"
        for sign in ("<", ",")[:count]:
            if not self.takes(sign):
                raise self.error(f"{written}, and here is {self.shown()}")
            self.type()
        if not self.takes(">"):
            raise self.error(f"{written}, and here is {self.shown()}")

    def _fields(self) -> None:
        written = "the schema: STRUCT is written STRUCT<NAME: TYPE, …>"
        if not self.takes("<"):
            raise self.error(f"{written}, and here is {self.shown()}")
        if self.kind != ">":
            for _ in self.several(lambda: self.column(nested=True)):
                pass
        if not self.takes(">"):
            raise self.error(f"{written}, and here is {self.shown()}")

    def _units(self) -> None:
        units = next((units for units in _UNITS if self.word() in units), ())
        if not units:
            return
        first = units.index(self.take().lower())
        if self.takes("to"):
            if self.word() not in units[first + 1 :]:
                raise self.error(f"the schema: no INTERVAL ends with {self.shown()}")
            self.take()

    def _numbers(self, shown: str, word: str, start: int) -> None:
        """Pass numbers in parentheses behind a type that begins at `start`."""
        least, most = _NUMBERS.get(word, (0, 0))
        if not most:
            raise self.error(f"the schema: {shown} has no length: write {shown} alone")
        found: list[str] = []
        while self.takes("," if found else "("):
            if not (self.word().isdigit() or (self.word() == "any" and word.startswith("geo"))):
                raise self.error(f"the schema: a number is needed, and not {self.shown()}")
            found.append(self.take())
        if not least <= len(found) <= most or not self.takes(")"):
            count = f"{least} to {most}" if least < most else str(least)
            raise self.error(f"the schema: {shown} has {count} numbers in parentheses", start)
        digits = [int(number) for number in found if number.isdigit()]
        if most > 1 and digits and not max(digits) == digits[0] <= _MAX_DIGITS:
            limits = f"at most {_MAX_DIGITS} digits, of which no more are behind the point"
            raise self.error(f"the schema: {shown} has {limits}", start)
