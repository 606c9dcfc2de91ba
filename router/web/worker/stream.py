"""The bytes of a connection: a buffered socket, bodies of requests, answers.

Bodies are read as WSGI reads them, never beyond their end; those in chunks are in `chunked`.

The head of an answer leaves together with the first piece of a short body: gunicorn writes the two
in two system calls, each of which wakes the client. An answer whose body is shorter than it said
closes the connection, since the client would take the next answer for the rest of this one.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from time import monotonic
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar

from gunicorn import SERVER, util

from router.web.media import FIELD_VALUE, WORD
from router.web.worker.bounds import LINGER_SECONDS, MAX_LINGER_BYTES, MIN_BYTES_PER_SECOND

RECEIVE_BYTES: Final = 64 * 1024
MAX_RECEIVE_BYTES: Final = 1024 * 1024
MAX_JOINED_BYTES: Final = 64 * 1024
"""A body up to here leaves with its head, joined: that copies it."""
MAX_LEADS: Final = 64
Failure: TypeAlias = tuple[type[BaseException], BaseException, TracebackType]
# What an answer says of its own connection is the server's to say.
_OWN: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "date", "server",
     "proxy-authenticate", "proxy-authorization"}
)  # fmt: skip
_NAME: Final = re.compile(WORD)
_TEXT: Final = re.compile(FIELD_VALUE)
_STATUS: Final = re.compile(rf"[1-9][0-9]{{2}} {FIELD_VALUE}")
_leads: dict[tuple[int, int, str, bool], str] = {}

T = TypeVar("T")


def write(client: Any, data: bytes) -> None:
    """Send all of it; raise TimeoutError when nothing goes for the socket's timeout.

    The same for a client that takes less than MIN_BYTES_PER_SECOND all the while: a timeout for
    each step alone would let one hold its answer for good.
    """
    sent = client.send(data)
    if sent == len(data):
        return
    rest = memoryview(data)[sent:]
    until = monotonic() + (client.gettimeout() or 0) + len(rest) / MIN_BYTES_PER_SECOND
    while rest:
        rest = rest[client.send(rest) :]
        if rest and client.gettimeout() and monotonic() > until:
            raise TimeoutError("the client is too slow")


def linger(client: Any) -> None:
    """Let the client read its answer: closing with input unread would reset the connection."""
    left, until = MAX_LINGER_BYTES, monotonic() + LINGER_SECONDS
    # The socket's own: TLS would give its session up with it, and what is read be no text.
    shutdown = socket.socket.shutdown
    with suppress(OSError):
        shutdown(client, socket.SHUT_WR)
        while left > 0 and (rest := until - monotonic()) > 0:
            client.settimeout(rest)
            data = client.recv(RECEIVE_BYTES)
            if not data:
                break
            left -= len(data)
    with suppress(OSError):
        shutdown(client, socket.SHUT_RDWR)


@dataclass(eq=False, slots=True)
class BufferedSocket:
    """A socket, and what was received ahead of need: at most one reading of RECEIVE_BYTES bytes."""

    socket: Any
    buffer: bytes = field(default=b"", init=False)

    def more(self) -> bool:
        """Receive once, behind what is there; return False at the end of what the client sends.

        Raises TimeoutError after the socket's timeout, OSError when the connection is lost.
        """
        data = self.socket.recv(RECEIVE_BYTES)
        self.buffer = self.buffer + data if self.buffer else data
        return bool(data)

    def take(self, limit: int) -> bytes:
        """Return up to so many bytes; none at the end of what the client sends."""
        buffer = self.buffer
        if buffer:
            self.buffer = buffer[limit:]
            return buffer[:limit] if self.buffer else buffer
        data: bytes = self.socket.recv(min(limit, MAX_RECEIVE_BYTES))
        return data

    def write(self, data: bytes) -> None:
        """Send all of it; raise TimeoutError for a client that does not take it."""
        write(self.socket, data)


@dataclass(eq=False)
class RequestBody:
    """A body of a length; 0: none. `go_on` is called before the first wait for a piece of it.

    `unread` is how much of it is left, None: unknown; `failed`: where it ends is unknown.
    Reading raises TimeoutError when it is not all there in time, OSError for a lost connection.
    """

    _stream: BufferedSocket
    unread: int | None
    _seconds: float
    _go_on: Callable[[], None] | None
    failed: bool = field(default=False, init=False)
    _until: float = field(default=0.0, init=False)

    @property
    def waited_for(self) -> bool:
        """Return whether the client still waits to be told to send it."""
        return self._go_on is not None and self.unread != 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Return so many bytes, fewer where the body ends, or a length breaks off, before."""
        if self.unread == 0:
            return b""
        limit = sys.maxsize if size is None or size < 0 else size
        parts: list[bytes] = []
        while limit > 0 and (part := self._piece(limit)):
            parts.append(part)
            limit -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line with its end."""
        limit = sys.maxsize if size is None or size < 0 else size
        line = bytearray()
        while len(line) < limit and (byte := self.read(1)):
            line += byte
            if byte == b"\n":
                break
        return bytes(line)

    def readlines(self, _hint: int = -1, /) -> list[bytes]:
        """Return the lines that are left."""
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def drain(self, limit: int) -> bool:
        """Read and forget the rest, if it is no more than so much; return whether it ended."""
        while limit > 0 and (
            part := b"" if self.failed else self._piece(min(limit, RECEIVE_BYTES))
        ):
            limit -= len(part)
        return self.unread == 0 and not self.failed

    def _piece(self, limit: int) -> bytes:
        """Return some of what is left, nothing at its end."""
        if not self.unread:
            return b""
        part = self._receive(min(limit, self.unread))
        self.unread -= len(part)
        return part

    def _receive(self, limit: int) -> bytes:
        """Return what the client sends next; `failed` at the end of that."""
        self.failed = True  # until it went well: a read that raises leaves the rest unread
        take = self._stream.take
        part = take(limit) if self._stream.buffer else self._in_time(partial(take, limit))
        self.failed = not part
        return part

    def _in_time(self, receive: Callable[[], T]) -> T:
        """Call what waits for the client, which has until the end of the body's time at most."""
        if self._go_on is not None:
            self._go_on()
            self._go_on = None
        now = monotonic()
        self._until = self._until or now + self._seconds
        if now >= self._until:
            raise TimeoutError("the body takes too long")
        client, left = self._stream.socket, self._until - now
        timeout = client.gettimeout()
        client.settimeout(left if timeout is None else min(timeout, left))
        try:
            return receive()
        finally:
            client.settimeout(timeout)


class ResponseStream:
    """One answer; `closing` says whether the connection ends with it."""

    def __init__(
        self, stream: BufferedSocket, method: str, version: tuple[int, int], *, closing: bool
    ) -> None:
        self._stream = stream
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
        if len(data) > MAX_JOINED_BYTES:
            if self._chunked:
                head += b"%x\r\n" % len(data)
            if head:
                self._stream.write(head)
            self._stream.write(data)
            if self._chunked:
                self._stream.write(b"\r\n")
        elif self._chunked:
            self._stream.write(b"%s%x\r\n%s\r\n" % (head, len(data), data))
        else:
            self._stream.write(head + data)

    def end(self) -> None:
        """Send what is left to say: the head of an answer without a body, the last chunk."""
        rest = b"" if self.begun else self._head()
        self.begun = True
        if self._chunked and not self._bodiless:
            rest += b"0\r\n\r\n"
        if rest:
            self._stream.write(rest)
        if self._length is not None and self.sent < self._length and not self._bodiless:
            self.closing = True

    def _head(self) -> bytes:
        lines = [lead(self._version[1], self.status, closing=self.closing)]
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


def lead(minor: int, status: str, *, closing: bool) -> str:
    """Return the first lines of a head, those that are the server's own; made once a second."""
    key = int(monotonic()), minor, status, closing
    found = _leads.get(key)
    if found is None:
        if len(_leads) >= MAX_LEADS:
            _leads.clear()
        found = _leads[key] = (
            f"HTTP/1.{minor} {status}\r\nServer: {SERVER}\r\nDate: {util.http_date()}\r\n"
            f"Connection: {'close' if closing else 'keep-alive'}\r\n"
        )
    return found
