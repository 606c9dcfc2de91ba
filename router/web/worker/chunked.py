"""Bodies of requests that come in chunks.

Chunks are read strictly (RFC 9112, 7.1): sizes are hexadecimal digits, lines end in CRLF,
extensions and trailers are bounded and have the form that they must have. A body that is malformed
ends the connection, since the start of the next request is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gunicorn.http.body import CHUNK_EXT_RE
from gunicorn.http.errors import (
    ChunkMissingTerminator,
    InvalidChunkExtension,
    InvalidChunkSize,
    InvalidHeader,
)

from router.web.media import FIELD_VALUE, WORD
from router.web.worker.bounds import MAX_FIELD_BYTES, MAX_FIELDS
from router.web.worker.stream import BufferedSocket, RequestBody

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})((?:[ \t]*;.*)?)", re.DOTALL)
_TRAILER: Final = re.compile(f"({WORD}):{FIELD_VALUE}".encode())
# They would say something of a message that is read already (RFC 9110, 6.5.1).
_NO_TRAILERS: Final = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"trailer", b"authorization", b"te"}
)


class ChunkedBody(RequestBody):
    """A body in chunks; it is decoded as it is read. One that breaks off raises ConnectionError."""

    def __init__(
        self, stream: BufferedSocket, seconds: float, go_on: Callable[[], None] | None
    ) -> None:
        super().__init__(stream, None, seconds, go_on)
        self._left = 0
        self._begun = False

    def _piece(self, limit: int) -> bytes:
        if self.unread == 0 or self.failed:
            return b""
        if not self._left:
            self._left = self._next_size()
        if not self._left:
            self._end()
            return b""
        part = self._receive(min(limit, self._left))
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
        """Read and drop the trailers."""
        for _ in range(MAX_FIELDS):
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
        stream = self._stream
        self.failed = True
        while (end := stream.buffer.find(b"\n")) < 0 and len(stream.buffer) <= MAX_FIELD_BYTES:
            if not self._in_time(stream.more):
                raise ConnectionAbortedError("the client left between chunks")
        line = stream.buffer[: end + 1]
        if (
            not 2 <= len(line) <= MAX_FIELD_BYTES
            or line[-2:] != b"\r\n"
            or line.find(b"\r") < end - 1
        ):
            raise self._wrong(InvalidChunkSize(line[:40]))
        stream.buffer = stream.buffer[end + 1 :]
        self.failed = False
        return line[:-2]

    def _wrong(self, error: Exception) -> Exception:
        self.failed = True
        return error
