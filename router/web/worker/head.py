"""Request heads, read strictly: what two readers could take for two things is refused.

A head is looked at twice. One pattern holds it to the grammar of RFC 9112, without any of the
leniencies that the RFC leaves to servers: lines end in CRLF, one space parts the words, a name is a
token right before its colon, no line is continued, no control character or NUL is anywhere. Then
llhttp takes it apart, with its own checks of lengths and codings, and must find as many fields.
llhttp alone would take some of what a proxy reads differently, such as a coding given twice or a
chunked body in HTTP/1.0; the pattern alone costs 2 µs, and knows nothing of lengths.

Bodies are not llhttp's: its Python binding cannot say where a message ends, so that the next one
would be parsed before this one is answered, and it bounds neither extensions nor trailers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httptools

from router.web.grammar import VALUE, WORD
from router.web.worker import bounds
from router.web.worker.refusals import RefusedError, malformed

_FIRST: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r")
_HEAD: Final = re.compile(
    (
        r"([A-Z-]{3,20}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])\r\n"
        rf"((?:{WORD}:{VALUE}\r\n)*)\r\n"
    ).encode()
)
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Head:
    """A request line, and the fields as they were sent."""

    method: str
    target: str
    version: tuple[int, int]
    fields: list[tuple[bytes, bytes]]


def end_of(data: bytes, seen: int) -> int:
    """Return where a head ends, 0: it goes on; raise RefusedError for what no head begins with.

    `seen` bytes were looked at before, and the head did not end in them.
    """
    found = data.find(b"\r\n\r\n", max(0, seen - 3))
    if found >= 0 and found + 4 <= bounds.HEAD:
        return found + 4
    if data[0] not in _FIRST:
        raise malformed("The request line is malformed.")
    if found < 0 and data.count(b"\n") != data.count(b"\r\n"):
        raise malformed("A line ends without a carriage return.")
    if data.find(b"\r\n", 2, bounds.LINE + 4) < 0 and len(data) > bounds.LINE + 4:
        raise RefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, "The request line is too long.")
    if found >= 0 or len(data) > bounds.HEAD:
        raise _too_large(f"The head is longer than {bounds.HEAD} bytes.")
    return 0


def read(data: bytes) -> Head:
    """Return a complete head; raise RefusedError for one that is not served."""
    if data[:2] == b"\r\n":  # one empty line is nothing, of RFC 9112, 2.2
        data = data[2:]
    if len(data) > bounds.LINE:
        _check_lengths(data)
    matched = _HEAD.fullmatch(data)
    if matched is None:
        raise malformed("The head is malformed.")
    method, target, major, minor, lines = matched.groups()
    if major != b"1":
        raise RefusedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "The version is not HTTP/1.1.")
    if minor not in b"01":
        raise malformed("There is no such version of HTTP.")
    fields = _Fields().of(data)
    if len(fields) != lines.count(b"\r\n"):
        raise malformed("The head can be read in two ways.")
    if len(fields) > bounds.FIELDS:
        raise _too_large(f"There are more than {bounds.FIELDS} fields.")
    return Head(
        method.decode(), _checked(method, target.decode()), (1, 1 if minor == b"1" else 0), fields
    )


def path_of(target: str) -> tuple[str, str]:
    """Return path and query of a target, both as they were sent."""
    if not target.startswith("/"):
        absolute = _ABSOLUTE.match(target)
        target = target[absolute.end() :] if absolute else target
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


def _checked(method: bytes, target: str) -> str:
    if method == b"CONNECT":
        raise RefusedError(HTTPStatus.NOT_IMPLEMENTED, "This is no proxy.")
    if (
        target[0] == "/"
        or (target == "*" and method == b"OPTIONS")
        or (_ABSOLUTE.match(target) is not None)
    ):
        return target
    raise malformed("The request target is neither a path nor a URL.")


def _check_lengths(data: bytes) -> None:
    if data.find(b"\r\n") > bounds.LINE:
        raise RefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, "The request line is too long.")
    if max(map(len, data.split(b"\r\n"))) > bounds.FIELD:
        raise _too_large(f"A field is longer than {bounds.FIELD} bytes.")


def _too_large(sentence: str) -> RefusedError:
    return RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, sentence)


class _Fields:
    """Collects what llhttp finds in one head."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[tuple[bytes, bytes]] = []

    def of(self, data: bytes) -> list[tuple[bytes, bytes]]:
        try:
            httptools.HttpRequestParser(self).feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # we upgrade to nothing, and say so by answering
        except httptools.HttpParserInvalidMethodError as error:
            raise RefusedError(HTTPStatus.NOT_IMPLEMENTED, "The method is unknown.") from error
        except httptools.HttpParserError as error:
            raise malformed(f"The head is malformed: {error}.") from error
        return self._found

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; called by llhttp."""
        self._found.append((name, value))
