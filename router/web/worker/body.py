"""Bodies of requests as WSGI reads them: of a length, or in chunks, never beyond their end.

Chunks are read strictly (RFC 9112, 7.1): sizes are hexadecimal digits, lines end in CRLF,
extensions and trailers are bounded and have the form that they must have. What does not is an
error, and where the next request begins is then unknown, so the connection ends.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Final, TypeVar

from gunicorn.http.body import CHUNK_EXT_RE
from gunicorn.http.errors import (
    ChunkMissingTerminator,
    InvalidChunkExtension,
    InvalidChunkSize,
    InvalidHeader,
)

from router.web.grammar import VALUE, WORD
from router.web.worker.bounds import FIELD, FIELDS
from router.web.worker.wire import Wire
from router.web.worker.writing import STEP

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})((?:[ \t]*;.*)?)", re.DOTALL)
_TRAILER: Final = re.compile(f"({WORD}):{VALUE}".encode())
# They would say something of a message that is read already (RFC 9110, 6.5.1).
_NO_TRAILERS: Final = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"trailer", b"authorization", b"te"}
)

T = TypeVar("T")


class Body:
    """A body of a length; 0: none. `go_on` is called before the first wait for a piece of it.

    `unread` is how much of it is left, None: nobody knows; `failed`: where it ends is unknown.
    Reading raises TimeoutError when it is not all there in time, OSError for a lost connection.
    """

    def __init__(
        self, wire: Wire, length: int | None, seconds: float, go_on: Callable[[], None] | None
    ) -> None:
        self._wire = wire
        self.unread = length
        self.failed = False
        self._seconds = seconds
        self._until = 0.0
        self._go_on = go_on

    @property
    def waited_for(self) -> bool:
        """Return whether the client still waits to be told to send it."""
        return self._go_on is not None and self.unread != 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Return so many bytes, fewer where the body ends, or a length breaks off, before."""
        if self.unread == 0:
            return b""
        most = sys.maxsize if size is None or size < 0 else size
        parts: list[bytes] = []
        while most > 0 and (part := self._piece(most)):
            parts.append(part)
            most -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line with its end."""
        most = sys.maxsize if size is None or size < 0 else size
        line = bytearray()
        while len(line) < most and (byte := self.read(1)):
            line += byte
            if byte == b"\n":
                break
        return bytes(line)

    def readlines(self, _hint: int = -1, /) -> list[bytes]:
        """Return the lines that are left."""
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def drain(self, most: int) -> bool:
        """Read and forget the rest, if it is no more than so much; return whether it ended."""
        while most > 0 and (part := b"" if self.failed else self._piece(min(most, STEP))):
            most -= len(part)
        return self.unread == 0 and not self.failed

    def _piece(self, most: int) -> bytes:
        """Return some of what is left, nothing at its end."""
        if not self.unread:
            return b""
        part = self._receive(min(most, self.unread))
        self.unread -= len(part)
        return part

    def _receive(self, most: int) -> bytes:
        """Return what the client sends next; `failed` at the end of that."""
        self.failed = True  # until it went well: a read that raises leaves the rest unread
        take = self._wire.take
        part = take(most) if self._wire.ahead else self._in_time(partial(take, most))
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
        client, left = self._wire.socket, self._until - now
        patience = client.gettimeout()
        client.settimeout(left if patience is None else min(patience, left))
        try:
            return receive()
        finally:
            client.settimeout(patience)


class ChunkedBody(Body):
    """A body in chunks; it is decoded as it is read. One that breaks off raises ConnectionError."""

    def __init__(self, wire: Wire, seconds: float, go_on: Callable[[], None] | None) -> None:
        super().__init__(wire, None, seconds, go_on)
        self._left = 0
        self._begun = False

    def _piece(self, most: int) -> bytes:
        if self.unread == 0 or self.failed:
            return b""
        if not self._left:
            self._left = self._next_size()
        if not self._left:
            self._end()
            return b""
        part = self._receive(min(most, self._left))
        if not part:
            raise ConnectionAbortedError("the client left within a chunk")
        self._left -= len(part)
        return part

    def _next_size(self) -> int:
        """Read the line before a chunk, and the end of the chunk before that."""
        if self._begun and (rest := self._line()):
            raise self._wrong(ChunkMissingTerminator(rest[:2]))
        self._begun = True
        matched = _SIZE.fullmatch(line := self._line())
        if matched is None:
            raise self._wrong(InvalidChunkSize(line[:40]))
        size, extension = matched.groups()
        if not CHUNK_EXT_RE.fullmatch(extension):
            raise self._wrong(InvalidChunkExtension("it has no such form"))
        return int(size, 16)

    def _end(self) -> None:
        """Read the trailers, which nobody wants, to their end."""
        for _ in range(FIELDS):
            line = self._line()
            if not line:
                self.unread = 0
                return
            matched = _TRAILER.fullmatch(line)
            if matched is None or matched[1].lower() in _NO_TRAILERS:
                raise self._wrong(InvalidHeader("a trailer that is none"))
        raise self._wrong(InvalidHeader("too many trailers"))

    def _line(self) -> bytes:
        """Return a line without its end."""
        wire = self._wire
        self.failed = True
        while (end := wire.ahead.find(b"\n")) < 0 and len(wire.ahead) <= FIELD:
            if not self._in_time(wire.more):
                raise ConnectionAbortedError("the client left between chunks")
        line = wire.ahead[: end + 1]
        if not 2 <= len(line) <= FIELD or line[-2:] != b"\r\n" or line.find(b"\r") < end - 1:
            raise self._wrong(InvalidChunkSize(line[:40]))
        wire.ahead = wire.ahead[end + 1 :]
        self.failed = False
        return line[:-2]

    def _wrong(self, error: Exception) -> Exception:
        self.failed = True
        return error
