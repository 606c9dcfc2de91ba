"""JSON bodies: one message for each object, its text exactly as it was sent.

Theory of operation. The parser of the standard library reads one object at a time and says where it
ends; the message is the slice of the body between. Its values are thrown away but for the key, and
numbers are not even converted, so that integers of any size pass. The alternatives: orjson, which
is faster, does not say where a value ends; a scanner of our own is slower than the parser, which is
written in C.

The parser builds what it reads, and an object of many tiny arrays takes twenty times its text. It
therefore sees the body through a window of a few megabytes, moved on when an object does not end in
it; a message fits into a window by far. Nesting is bounded, because the parser recurses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from router.errors import BadJsonError, MessageTooLargeError
from router.model import Message

T = TypeVar("T")

MAX_DEPTH: Final = 500
KEY: Final = "cambria.partition"
MAX_WINDOW: Final = 4 * 1024 * 1024
_MAX_TOKEN: Final = 16
# In steps, and possessive, as a pattern holds the interpreter's lock while it matches.
_BLANK: Final = re.compile(r"[ \t\n\r]{1,65536}+")
_SEPARATOR: Final = re.compile(r"([,\]])[ \t\n\r]{0,64}+")
_BLANKS: Final = frozenset(" \t\n\r")
_NESTING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def _no_constant(name: str) -> NoReturn:
    raise BadJsonError(f"{name} is no JSON.")


# Numbers become the length of their text: nothing needs them, and a huge one may cost or fail.
# The documented raw_decode wraps this call and loses the place of an early end.
_decoder: Final[Any] = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_no_constant)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _decoder.scan_once


def objects(body: bytes, default_key: bytes | None, longest: int) -> Iterator[Message]:
    """Read all objects, of arrays and one after the other.

    A text field `cambria.partition` is an object's key, else it has the default. `longest` bounds a
    message: raises MessageTooLargeError where it can be seen early, and BadJsonError.
    """
    reader = _reader(body, longest)
    take = partial(reader.message, default_key)
    while reader.at < len(reader.text):
        if reader.text[reader.at] == "[":
            yield from _elements(reader, take)
        else:
            yield take()
        reader.blank()


def texts(body: bytes, longest: int, *, array: bool) -> Iterator[str]:
    """Yield the text of each object of the one array that a body is, or of the one object.

    Raises what `objects` raises.
    """
    reader = _reader(body, longest)
    if not array:
        yield reader.skip()
    elif reader.peek() == "[":
        yield from _elements(reader, reader.skip)
    else:
        raise BadJsonError(f"Expected an array at character {reader.at}.")
    reader.blank()
    if reader.at < len(reader.text):
        raise BadJsonError(f"More follows at character {reader.at}.")


def members(text: str) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and text of each member of an object that `texts` gave.

    Numbers in values are the lengths of their texts.
    """
    at = _after_blanks(text, 1)
    while text[at] != "}":
        name, at = _scan(text, at)
        at = _after_blanks(text, _after_blanks(text, at) + 1)
        value, end = _scan(text, at)
        yield name, value, text[at:end]
        at = _after_blanks(text, end)
        if text[at] == ",":
            at = _after_blanks(text, at + 1)


def _after_blanks(text: str, at: int) -> int:
    """Return the place behind white space."""
    while text[at] in _BLANKS and (blank := _BLANK.match(text, at)):
        at = blank.end()
    return at


def _reader(body: bytes, longest: int) -> _ObjectReader:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BadJsonError(f"The body is not UTF-8 at byte {error.start}.") from error
    if text.startswith("\ufeff"):
        raise BadJsonError("The body begins with a byte order mark; send it without one.")
    reader = _ObjectReader(text, body if text.isascii() else None, max(MAX_WINDOW, 2 * longest))
    reader.blank()
    return reader


def _elements(reader: _ObjectReader, take: Callable[[], T]) -> Iterator[T]:
    """Yield what is taken for each object of an array."""
    reader.at += 1
    reader.blank()
    if reader.peek() == "]":
        reader.at += 1
        return
    while True:
        reader.blank()
        yield take()
        reader.blank()
        separator = _SEPARATOR.match(reader.text, reader.at)
        if separator is None:
            raise BadJsonError(f"Expected ',' or ']' at character {reader.at}.")
        reader.at = separator.end()
        if separator[1] == "]":
            return


class _ObjectReader:
    """A place in a text, with the window through which the parser sees it."""

    def __init__(self, text: str, ascii_body: bytes | None, width: int) -> None:
        self.text = text
        self.at = 0
        self._ascii = ascii_body
        self._width = width
        self._base = 0
        self._window = text if len(text) <= width else text[:width]

    def peek(self) -> str:
        """Return the next character, or nothing at the end."""
        return self.text[self.at : self.at + 1]

    def blank(self) -> None:
        """Go beyond white space."""
        while self.peek() in _BLANKS and (blank := _BLANK.match(self.text, self.at)):
            self.at = blank.end()

    def message(self, default_key: bytes | None) -> Message:
        begin = self.at
        value = self._value()
        if self._ascii is not None:
            raw = self._ascii[begin : self.at]
        else:
            raw = self.text[begin : self.at].encode()
        key = value.get(KEY)
        return Message(raw, _key(key) if isinstance(key, str) and key else default_key)

    def skip(self) -> str:
        """Read one object; return its text."""
        begin = self.at
        self._value()
        return self.text[begin : self.at]

    def _value(self) -> dict[str, Any]:
        if not self.text.startswith("{", self.at):
            raise BadJsonError(f"Expected an object at character {self.at}.")
        try:
            value, end = self._scanned()
        except RecursionError:
            raise _too_deep(self.at) from None
        begin = self.at - self._base
        if _nested(self._window, begin, end) and _depth(self._window[begin:end]) > MAX_DEPTH:
            raise _too_deep(self.at)
        self.at = self._base + end
        return value

    def _scanned(self) -> tuple[dict[str, Any], int]:
        while True:
            try:
                return _scan(self._window, self.at - self._base)
            except (json.JSONDecodeError, StopIteration) as error:
                self._move(error)

    def _move(self, error: json.JSONDecodeError | StopIteration) -> None:
        """Move the window to the present place if that may help, else raise what went wrong."""
        at, reason = _reason(error)
        last = self._base + len(self._window) >= len(self.text)
        if last or self.at == self._base:
            # Where the window cuts the text, the cut looks like an error at or before its end.
            cut = at >= len(self._window) - _MAX_TOKEN or reason.startswith("Unterminated")
            if cut and not last:
                raise MessageTooLargeError(
                    f"The object at character {self.at} has more than {self._width} characters."
                ) from None
            raise BadJsonError(f"{reason} at character {self._base + at}.") from None
        self._base = self.at
        self._window = self.text[self.at : self.at + self._width]


def _reason(error: json.JSONDecodeError | StopIteration) -> tuple[int, str]:
    if isinstance(error, json.JSONDecodeError):
        return error.pos, error.msg
    return int(error.value), "Expected a value"


def _key(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise BadJsonError(f"{KEY} holds half a surrogate pair.") from error


def _nested(text: str, begin: int, end: int) -> bool:
    """Return whether an object may be nested too deep; counting costs ten times the first check."""
    if text.find("{", begin + 1, end) < 0 and text.find("[", begin, end) < 0:
        return False
    return text.count("{", begin, end) + text.count("[", begin, end) > MAX_DEPTH


def _depth(text: str) -> int:
    depth = deepest = 0
    for token in _NESTING.finditer(text):
        if token[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= 1
    return deepest


def _too_deep(at: int) -> BadJsonError:
    return BadJsonError(f"The object at character {at} is nested more than {MAX_DEPTH} deep.")
