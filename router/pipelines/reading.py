"""Tables of a declaration, read key by key: every key is known, and of its type, or is refused.

Sentences name the line and the column of a value, or of a character of a text such as SQL. The
standard library's parser, which says what the file means, keeps no places. `places` reads the same
text once more, where there is something to say, and understands only so much of TOML as
declarations are written in: headers, keys at the beginning of a line, and texts of several lines.
A key that it does not find is said to stand where its table begins, so a sentence may be a few
lines off, and never wrong.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from router.errors import SettingError
from router.errors.quoting import nearest
from router.settings import duration

Place = tuple[str | int, ...]
_HEADER: Final = re.compile(
    r"[ \t]*(\[\[?)[ \t]*([^\[\]\n]+?)[ \t]*\]\]?[ \t]*(?:#.*)?$", re.MULTILINE
)
_KEY: Final = re.compile(
    r"""[ \t]*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:[ \t]*\.[ \t]*[\w"'-]+)*)[ \t]*=[ \t]*"""
)
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_TEXT_OF_LINES: Final = re.compile(r'''"""(?:\\.|[^\\])*?"""|\'{3}.*?\'{3}''', re.DOTALL)
# A line break directly behind the opening quotes is no part of the text.
_QUOTES: Final = re.compile(r'''("""|\'{3})\n?|["\']''')
# What stands for one character in quotes that know escapes; the first stands for none.
_CHARACTER: Final = re.compile(r"(\\[ \t]*\n\s*)|\\u.{4}|\\U.{8}|\\.|.", re.DOTALL)


def places(text: str) -> dict[Place, int]:
    """Return where each table and key begins, in characters; tables of an array count from 0."""
    found: dict[Place, int] = {}
    table: Place = ()
    counts: dict[Place, int] = {}
    at = 0
    while 0 <= at < len(text):
        if header := _HEADER.match(text, at):
            table = _table(header, counts)
            found[table] = header.start(1)
        elif key := _KEY.match(text, at):
            found[table + tuple(_parts(key[1]))] = key.start(1)
            several = _TEXT_OF_LINES.match(text, key.end())
            at = several.end() if several else at
        at = text.find("\n", at) + 1 or len(text)
    return found


def offset_of(text: str, line: int, column: int) -> int:
    """Return where a line of a text, from 1, and a column of it, from 0, are in characters."""
    return sum(len(one) + 1 for one in text.split("\n")[: line - 1]) + column


def _character(text: str, at: int, offset: int) -> int:
    """Return where the character `offset` of a value stands, which begins at `at` if it is text."""
    quotes = _QUOTES.match(text, at)
    if quotes is None:
        return at
    if "'" in quotes[0]:
        return quotes.end() + offset
    for one in _CHARACTER.finditer(text, quotes.end()):
        offset -= not one[1]
        if offset < 0:
            return one.start()
    return at


def _table(header: re.Match[str], counts: dict[Place, int]) -> Place:
    """Return the path of a header's table; `counts` are of the arrays so far, by their paths."""
    path: Place = ()
    # Nothing: a line within a text that looks like a header, such as [*].
    *around, last = _parts(header[2]) or [""]
    for part in around:
        path = (*path, part)
        path = (*path, counts[path]) if path in counts else path
    path = (*path, last)
    if header[1] != "[[":
        return path
    counts[path] = counts.get(path, -1) + 1
    return (*path, counts[path])


def _parts(key: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(key)]


T = TypeVar("T")
_WORDS: Final[dict[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


class DeclarationError(SettingError):
    """A declaration that says nothing that could be run.

    The sentence begins with FILE:LINE:COLUMN, as compilers write it: both count from 1, columns in
    characters. What stands nowhere in the file has no column.
    """


@dataclass(frozen=True, slots=True)
class DeclarationOrigin:
    """A file and its text, whose lines end with a line feed: what sentences about it begin with."""

    file: Path = Path()
    text: str = ""

    def refuse(self, path: Place, sentence: str) -> NoReturn:
        """Raise DeclarationError about the value of a key."""
        raise self.error(path, sentence)

    def error(self, path: Place, sentence: str, offset: int | None = None) -> DeclarationError:
        """Return the error about the value of a key, or about a character of the text that it is.

        What is not found is said of the table around it.
        """
        at = self._place(path)
        if at is None:
            return DeclarationError(f"{self.file}:1: {sentence}")
        if key := _KEY.match(self.text, at):
            at = key.end() if offset is None else _character(self.text, key.end(), offset)
        return self._at(at, sentence)

    def key_error(self, path: Place, sentence: str) -> DeclarationError:
        """Return the error about a key itself."""
        at = self._place(path)
        return self.error(path, sentence) if at is None else self._at(at, sentence)

    def _at(self, at: int, sentence: str) -> DeclarationError:
        line, column = self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        return DeclarationError(f"{self.file}:{line}:{column}: {sentence}")

    def _place(self, path: Place) -> int | None:
        """Return where a key, or the first of its tables, or else what is around it begins."""
        found = places(self.text)
        while path:
            for known, at in found.items():
                if known[: len(path)] == path:
                    return at
            path = path[:-1]
        return None


def document(text: str, file: Path) -> Table:
    """Return the table that a file's text is; raise DeclarationError."""
    # The parser takes lines for what they are without the carriage returns, too.
    origin = DeclarationOrigin(file, text.replace("\r\n", "\n"))
    try:
        return Table(origin, (), tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        where = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
        at, sentence = (f"{where[2]}:{where[3]}", where[1]) if where else ("1", str(error))
        raise DeclarationError(f"{file}:{at}: no TOML: {sentence}") from error


class Table:
    """One table; `done` refuses the keys that were not read, and names the nearest known one."""

    def __init__(self, origin: DeclarationOrigin, path: Place, values: Mapping[str, Any]) -> None:
        self.origin = origin
        self.path = path
        self.values = dict(values)
        self._read_keys: list[str] = []

    def has(self, key: str) -> bool:
        """Return whether the key is there; it counts as known from now on."""
        self._read_keys.append(key)
        return key in self.values

    def refuse(self, key: str, sentence: str) -> NoReturn:
        """Raise DeclarationError about a key of this table."""
        self.origin.refuse((*self.path, key), sentence)

    def text(self, key: str, default: str = "") -> str:
        """Return a text."""
        return self._typed(key, str, default)

    def number(self, key: str, default: int, least: int) -> int:
        """Return a whole number that is not below `least`."""
        number = self._typed(key, int, default)
        if number < least:
            self.refuse(key, f"{self._name(key)} = {number}: the least is {least}")
        return number

    def share(self, key: str, default: float) -> float:
        """Return a number from 0 to 1."""
        whole = isinstance(self.values.get(key), int)
        share = self._typed(key, int, 0) if whole else self._typed(key, float, default)
        if not 0 <= share <= 1:
            self.refuse(key, f"{self._name(key)} = {share}: a number from 0 to 1 is expected")
        return float(share)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        return self._typed(key, bool, default)

    def seconds(self, key: str, default: float) -> float:
        """Return a time, which is written like `10s`."""
        if not self.has(key):
            return default
        try:
            return duration(self.text(key))
        except ValueError as error:
            self.refuse(key, f"{self._name(key)}: {error}")

    def choice(self, key: str, known: Sequence[str], default: str) -> str:
        """Return one of some words."""
        word = self.text(key, default)
        if word not in known:
            near = nearest(word, known)
            reason = f"is none of {', '.join(known)}{near}"
            self.refuse(key, f"{self._name(key)} = {word!r} {reason}")
        return word

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; one text is a list of one."""
        if isinstance(self.values.get(key), str):
            return (self.text(key),)
        found = self._typed(key, list, list[Any]())
        for word in found:
            if not isinstance(word, str) or not word:
                self.refuse(key, f"{self._name(key)}: {word!r} is no name")
        return tuple(found)

    def texts(self, key: str) -> dict[str, str]:
        """Return a table of texts; numbers, true and false are written as such."""
        found = {}
        for name, value in self._typed(key, dict, dict[str, Any]()).items():
            if isinstance(value, bool):
                found[name] = str(value).lower()
            elif isinstance(value, str | int | float):
                found[name] = str(value)
            else:
                self.origin.refuse(
                    (*self.path, key, name), f"{self._name(key)}.{name} is neither text nor number"
                )
        return found

    def table(self, key: str) -> Table:
        """Return a table within, which is empty where there is none."""
        if isinstance(self.values.get(key), list):
            name = self._name(key)
            self.refuse(key, f"{name} is one table: [{name}], not [[{name}]]")
        return Table(self.origin, (*self.path, key), self._typed(key, dict, dict[str, Any]()))

    def tables(self, key: str) -> list[Table]:
        """Return an array of tables."""
        if isinstance(self.values.get(key), dict):
            self.refuse(key, f"{self._name(key)} is written as tables, [[{key}]]")
        found = self._typed(key, list, list[Any]())
        for value in found:
            if not isinstance(value, dict):
                self.refuse(key, f"{self._name(key)} is written as tables, [[{key}]]")
        path = (*self.path, key)
        return [Table(self.origin, (*path, place), value) for place, value in enumerate(found)]

    def rest(self) -> dict[str, object]:
        """Return the keys that were not asked for, which count as known from now on."""
        left = {key: value for key, value in self.values.items() if key not in self._read_keys}
        self._read_keys += left
        return left

    def done(self) -> None:
        """Raise DeclarationError for a key that is not known."""
        for key in self.values:
            if key not in self._read_keys:
                near = nearest(key, self._read_keys)
                sentence = f"there is no key {self._name(key)!r}{near}"
                raise self.origin.key_error((*self.path, key), sentence)

    def _typed(self, key: str, kind: type[T], default: T) -> T:
        if not self.has(key):
            return default
        value = self.values[key]
        # A flag is a number to Python, and no number to people.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            name = self._name(key)
            self.refuse(key, f"{name} = {_shown(value)}: {_WORDS[kind]} is expected")
        return value

    def _name(self, key: str) -> str:
        return ".".join([*(str(part) for part in self.path if isinstance(part, str)), key])


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
