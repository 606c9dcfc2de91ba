"""Answers as they go out: the head together with the first piece of a short body.

gunicorn writes head and body in two system calls, each of which wakes the client. What an answer
says of its own end is kept: one whose body is shorter than it said closes the connection, for the
client would take the next answer for the rest of this one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from time import monotonic
from types import TracebackType
from typing import Any, Final, TypeAlias

from gunicorn import SERVER
from gunicorn.util import http_date

from router.web.grammar import VALUE, WORD
from router.web.worker.wire import Wire
from router.web.worker.writing import SHORT

Failure: TypeAlias = tuple[type[BaseException], BaseException, TracebackType]
# What an answer says of its own connection is the server's to say.
_OWN: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "date", "server",
     "proxy-authenticate", "proxy-authorization"}
)  # fmt: skip
_NAME: Final = re.compile(WORD)
_TEXT: Final = re.compile(VALUE)
_STATUS: Final = re.compile(rf"[1-9][0-9]{{2}} {VALUE}")
_dates: dict[int, str] = {}


class Answer:
    """One answer; `closing` says whether the connection ends with it."""

    def __init__(self, wire: Wire, method: str, version: tuple[int, int], *, closing: bool) -> None:
        self._wire = wire
        self._method = method
        self._version = version
        self.closing = closing
        self.status = ""
        self.headers: list[tuple[str, str]] = []
        self.sent = 0  # bytes of the body
        self.begun = False
        self._length: int | None = None
        self._chunked = False
        self._bodiless = False

    def start_response(
        self, status: str, headers: Sequence[tuple[str, str]], failure: Failure | None = None
    ) -> Any:
        """Take status and headers, as PEP 3333 has it; nothing is sent yet."""
        if failure is not None and self.begun:
            raise failure[1].with_traceback(failure[2])
        if self.status and failure is None:
            raise AssertionError("start_response was called already")
        code = _code(status)
        self.status = status
        self.headers = []
        self._length = None
        for name, value in headers:
            lower = _lower(name)
            # Nearly all values are such, and to ask costs less than the pattern.
            if not (value.isascii() and value.isprintable()) and not _TEXT.fullmatch(value):
                raise ValueError(f"the header {name!r} is none")
            if lower not in _OWN:
                self.headers.append((name, value))
                if lower == "content-length":
                    self._length = int(value)
        self._frame(code)
        return self.write

    def _frame(self, code: int) -> None:
        empty = code in {204, 304} or code < 200
        self._bodiless = empty or self._method == "HEAD"
        if code == 204 or code < 200:
            self.headers = [(n, v) for n, v in self.headers if n.lower() != "content-length"]
        self._chunked = not empty and self._length is None and self._version >= (1, 1)
        if self._length is None and not self._chunked and not self._bodiless:
            self.closing = True  # the end of the connection is the end of the body

    def write(self, data: bytes) -> None:
        """Send a piece of the body; nothing is sent for an empty one."""
        if not data or self._bodiless:
            return
        if self._length is not None and self.sent + len(data) > self._length:
            data = data[: self._length - self.sent]
        self.sent += len(data)
        head = b"" if self.begun else self._head()
        self.begun = True
        if len(data) > SHORT:
            if self._chunked:
                head += b"%x\r\n" % len(data)
            if head:
                self._wire.write(head)
            self._wire.write(data)
            if self._chunked:
                self._wire.write(b"\r\n")
        elif self._chunked:
            self._wire.write(b"%s%x\r\n%s\r\n" % (head, len(data), data))
        else:
            self._wire.write(head + data)

    def end(self) -> None:
        """Send what is left to say: the head of an answer without a body, the last chunk."""
        rest = b"" if self.begun else self._head()
        self.begun = True
        if self._chunked and not self._bodiless:
            rest += b"0\r\n\r\n"
        if rest:
            self._wire.write(rest)
        if self._length is not None and self.sent < self._length and not self._bodiless:
            self.closing = True

    def _head(self) -> bytes:
        lines = [
            f"HTTP/1.{self._version[1]} {self.status}\r\nServer: {SERVER}\r\nDate: {_date()}\r\n"
            f"Connection: {'close' if self.closing else 'keep-alive'}\r\n"
        ]
        if self._chunked:
            lines.append("Transfer-Encoding: chunked\r\n")
        lines += [f"{name}: {value}\r\n" for name, value in self.headers]
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")


@lru_cache(maxsize=64)
def _code(status: str) -> int:
    if not _STATUS.fullmatch(status):
        raise ValueError(f"{status!r} is no status")
    return int(status[:3])


@lru_cache(maxsize=1_000)
def _lower(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"the header {name!r} is none")
    return name.lower()


def _date() -> str:
    """Return the time of this second, made once."""
    second = int(monotonic())
    found = _dates.get(second)
    if found is None:
        _dates.clear()
        found = _dates[second] = http_date()
    return found
