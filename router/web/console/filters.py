"""The filter box: text, `key:`, `header:`, JSON paths, joined by and, or, not and parentheses.

    expression = conjunction *("or" conjunction)
    conjunction = unit *(["and"] unit)
    unit = "not" unit / "(" expression ")" / term
    term = phrase / "key" compared / "header:" name [compared] / path [compared]
    compared = (":" / "=" / "!=" / "<" / ">" / "<=" / ">=" / "~") value

Words beside one another are one phrase, as people search for text; quotes keep `and` and
parentheses in one. static/messages.js reads the same language, and one table of tests holds for
both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from router.errors import BadReadOptionError
from router.errors.quoting import quoted
from router.model import Message, Stored
from router.web.console import shown

MAX_CHARACTERS: Final = 1_000
"""Of one filter."""
MAX_STEPS: Final = 20
MAX_VISITED: Final = 10_000
"""Values of one message that a path visits."""
MAX_DEPTH: Final = 50
"""Parentheses and nots within one another."""
NAMES: Final = ("filter", "key", "header", "path", "partition")
_STEP: Final = re.compile(
    r'\.(\*|[^ \t.\[\]="<>!~()]+)|\[(\*|[0-9]{1,9})\]|\[("(?:[^"\\\x00-\x1f]|\\.)*")\]'
)
_BLANK: Final = " \t"
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_OPERATOR: Final = re.compile(r"!=|<=|>=|[=<>~]")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_WORD: Final = re.compile(r"[^ \t()]+")
_NAME: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^ \t()=<>!~"]+')
_KEY: Final = re.compile(r"key(?=[:=<>~]|!=)")
_WORDS: Final = frozenset({"and", "or", "not"})
_PATH: Final = 'a path such as $.order.total, $.items[0]["unit price"] or $.id=7'
Step = str | int | None
"""A name, an index, or None: every member."""
Condition = Callable[[Stored], bool]


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A place in JSON values, and what is to be there; `expected` None: anything."""

    steps: tuple[Step, ...]
    operator: str = "="
    expected: str | None = None

    @classmethod
    def read(cls, written: str) -> JsonPath:
        """Read a path; raise BadReadOptionError."""
        written = written.strip(_BLANK)
        steps, at = _steps(written, 0) if written.startswith("$") else (None, 0)
        rest = written[at:].lstrip(_BLANK)
        if steps is None or (rest and not _OPERATOR.match(rest)):
            raise BadReadOptionError(f"path: expected {_PATH}, not {quoted(written, 40)}.")
        operator = _OPERATOR.match(rest)
        if operator is None:
            return cls(steps)
        return cls(steps, operator[0], rest[operator.end() :].strip(_BLANK))

    def is_in(self, value: str) -> bool:
        """Return whether a text is JSON that has it."""
        try:
            loaded = json.loads(value, parse_int=float, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return False
        found, visited = [loaded], 0
        for step in self.steps:
            found = [member for one in found for member in _members(one, step)]
            visited += len(found)
            if visited > MAX_VISITED:
                return False
        expected = self.expected
        return any(expected is None or _is(one, self.operator, expected) for one in found)


@dataclass(frozen=True, slots=True)
class Filter:
    """What messages have to have; what is empty or None does not matter."""

    expression: Condition | None = None
    key: str = ""
    header: str = ""
    path: JsonPath | None = None
    partition: int | None = None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Filter:
        """Read the filters from the texts of their names; raise BadReadOptionError."""
        for name in NAMES:
            if len(given.get(name, "")) > MAX_CHARACTERS:
                raise BadReadOptionError(f"{name}: expected at most {MAX_CHARACTERS} characters.")
        path, partition = given.get("path", ""), given.get("partition", "").strip()
        if partition and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
            raise BadReadOptionError(
                f"partition: expected a whole number, not {quoted(partition, 40)}."
            )
        text = given.get("filter", "")
        return cls(
            _ExpressionReader(text).expression() if text.strip(_BLANK) else None,
            given.get("key", ""),
            given.get("header", ""),
            JsonPath.read(path) if path.strip(_BLANK) else None,
            int(partition) if partition else None,
        )

    def matches(self, stored: Stored) -> bool:
        """Return whether a message has all of that."""
        message = stored.message
        return (
            self.partition in {None, max(0, stored.position.partition)}
            and (not self.key or _key(message) == self.key)
            and (not self.header or self._has_header(message))
            and (self.path is None or _has_path(message, self.path))
            and (self.expression is None or self.expression(stored))
        )

    def _has_header(self, message: Message) -> bool:
        name, equals, value = self.header.partition("=")
        found = message.properties.get(name)
        return found is not None and (not equals or found == value)


class _ExpressionReader:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def expression(self) -> Condition:
        """Return what the whole text asks for; raise BadReadOptionError."""
        found = self._any()
        if self._at < len(self._text):
            raise self._failure("nothing behind the last parenthesis")
        return found

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._takes("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda one: any(part(one) for part in parts)

    def _all(self) -> Condition:
        parts = [self._unit()]
        while self._takes("and") or not (self._is_end() or self._peek() == "or"):
            parts.append(self._unit())
        return parts[0] if len(parts) == 1 else lambda one: all(part(one) for part in parts)

    def _unit(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._failure(f"at most {MAX_DEPTH} parentheses")
        try:
            if self._takes("not"):
                part = self._unit()
                return lambda one: not part(one)
            if self._takes("("):
                part = self._any()
                if not self._takes(")"):
                    raise self._failure("a closing parenthesis")
                return part
            return self._term()
        finally:
            self._depth -= 1

    def _term(self) -> Condition:
        text, at = self._text, self._at
        if self._is_end() or self._peek() in _WORDS:
            raise self._failure("a text, key:, header: or a path such as $.id")
        if text.startswith("$", at) and (len(text) == at + 1 or text[at + 1] in " \t.[=<>!~()"):
            return self._path()
        if found := _KEY.match(text, at):
            self._at = found.end()
            operator, expected = self._compared(":")
            return lambda one: _fits(_key(one.message), operator, expected)
        if text.startswith("header:", at):
            return self._header()
        if found := _QUOTED.match(text, at):
            self._at = found.end()
            return _holding(_unquoted(found[0]) or found[0][1:-1])
        return _holding(self._phrase())

    def _path(self) -> Condition:
        steps, end = _steps(self._text, self._at)
        if steps is None:
            raise self._failure(_PATH)
        self._at = end
        path = JsonPath(steps)
        blank = len(self._text) - len(self._text[end:].lstrip(_BLANK))
        if _OPERATOR.match(self._text, blank):
            self._at = blank
            path = JsonPath(steps, *self._compared(""))
        return lambda one: _has_path(one.message, path)

    def _header(self) -> Condition:
        self._at += len("header:")
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._failure("the name of a header")
        self._at = found.end()
        name = _unquoted(found[0]) or found[0]
        if not _OPERATOR.match(self._text, self._at):
            return lambda one: name in one.message.properties
        operator, expected = self._compared("")
        return lambda one: _has(one.message.properties.get(name), operator, expected)

    def _compared(self, others: str) -> tuple[str, str]:
        """Return the operator that comes, and the value behind it."""
        operator = _OPERATOR.match(self._text, self._at)
        self._at += len(others if operator is None else operator[0])
        self._blanks()
        found = _QUOTED.match(self._text, self._at) or _WORD.match(self._text, self._at)
        if found is None:
            raise self._failure("a value")
        self._at = found.end()
        return "=" if operator is None else operator[0], found[0]

    def _phrase(self) -> str:
        """Return the words up to the next operator, quote, key, header or path."""
        start = end = self._at
        while (found := _WORD.match(self._text, self._at)) and not self._begins_term(start):
            self._at = found.end()
            end = self._at
            self._blanks()
        return self._text[start:end]

    def _begins_term(self, start: int) -> bool:
        text, at = self._text, self._at
        if at == start:
            return False
        return (
            self._peek() in _WORDS
            or text.startswith(("$.", "$[", "header:"), at)
            or bool(_KEY.match(text, at) or _QUOTED.match(text, at))
        )

    def _peek(self) -> str:
        """Return the next word in small letters, or parenthesis."""
        self._blanks()
        found = _WORD.match(self._text, self._at)
        return found[0].lower() if found else self._text[self._at : self._at + 1]

    def _takes(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self._at += len(word)
        self._blanks()
        return True

    def _is_end(self) -> bool:
        return self._peek() in {"", ")"}

    def _blanks(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in _BLANK:
            self._at += 1

    def _failure(self, expected: str) -> BadReadOptionError:
        rest = self._text[self._at :]
        found = f"not {quoted(rest, 40)}" if rest else "but the filter ends"
        return BadReadOptionError(f"filter: expected {expected}, {found}.")


def _holding(text: str) -> Condition:
    expected = text.lower()

    def holds(stored: Stored) -> bool:
        message = stored.message
        if expected in shown.text(message.value)[0].lower():
            return True
        texts = [shown.text(message.key or b"")[0]]
        texts += [f"{name}: {value}" for name, value in message.properties.items()]
        return any(expected in one.lower() for one in texts)

    return holds


def _key(message: Message) -> str | None:
    return None if message.key is None else shown.text(message.key)[0]


def _has_path(message: Message, path: JsonPath) -> bool:
    value, decoded = shown.text(message.value)
    return decoded and path.is_in(value)


def _fits(found: str | None, operator: str, expected: str) -> bool:
    """Return whether a key is so; no key is another one than any."""
    return operator == "!=" if found is None else _has(found, operator, expected)


def _has(found: str | None, operator: str, expected: str) -> bool:
    """Return whether a text is so; it is compared as a number where both are numbers."""
    if found is None:
        return False
    plain = _unquoted(expected)
    expected = expected if plain is None else plain
    if operator in {"=", "!="}:
        return (found == expected) == (operator == "=")
    if operator == "~":
        return expected.lower() in found.lower()
    if _NUMBER.fullmatch(found) and _NUMBER.fullmatch(expected):
        return _ordered(float(found), operator, float(expected))
    return _ordered(found, operator, expected)


def _is(value: object, operator: str, expected: str) -> bool:
    """Return whether a value of JSON is so."""
    if operator in {"=", "!="}:
        return _equals(value, expected) == (operator == "=")
    if isinstance(value, float):
        number = operator != "~" and _NUMBER.fullmatch(expected)
        return bool(number) and _ordered(value, operator, float(expected))
    if not isinstance(value, str):
        return False
    plain = _unquoted(expected)
    expected = expected if plain is None else plain
    if operator == "~":
        return expected.lower() in value.lower()
    return _ordered(value, operator, expected)


def _ordered(one: Any, operator: str, other: Any) -> bool:
    less, same = bool(one < other), bool(one == other)
    if operator == "<":
        return less
    if operator == "<=":
        return less or same
    return not less if operator == ">=" else not (less or same)


def _steps(written: str, start: int) -> tuple[tuple[Step, ...] | None, int]:
    """Return the steps behind a `$`, None: they cannot be read, and where they end."""
    steps, at = list[Step](), start + 1
    while found := _STEP.match(written, at):
        quoted_name = found[3]
        if quoted_name is not None and _unquoted(quoted_name) is None:
            return None, at
        steps.append(_step(found))
        at = found.end()
    if len(steps) > MAX_STEPS or written[at : at + 1] in {".", "[", "]", '"'}:
        return None, at
    return tuple(steps), at


def _step(found: re.Match[str]) -> Step:
    name, index, quoted_name = found.groups()
    if quoted_name is not None:
        return _unquoted(quoted_name)
    if "*" in {name, index}:
        return None
    return int(index) if index is not None else str(name)


def _members(value: Any, step: Step) -> list[Any]:
    if step is None:
        return list(value.values()) if isinstance(value, dict) else _elements(value)
    if isinstance(step, int):
        return _elements(value)[step : step + 1]
    return [value[step]] if isinstance(value, dict) and step in value else []


def _elements(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _equals(value: object, expected: str) -> bool:
    if isinstance(value, str):
        return value in {expected, _unquoted(expected)}
    if isinstance(value, bool):
        return expected == ("true" if value else "false")
    if isinstance(value, float):
        return bool(_NUMBER.fullmatch(expected)) and float(expected) == value
    return value is None and expected == "null"


def _unquoted(expected: str) -> str | None:
    if not expected.startswith('"'):
        return None
    try:
        found = json.loads(expected)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
