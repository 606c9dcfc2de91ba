"""gunicorn's answers, in fewer pieces, and the last one wherever they have to be.

gunicorn writes an answer's head and body in two system calls, each of which wakes the client; here
both leave together: a tenth of a small request.

gunicorn keeps a connection behind a body that could not be read, and closes it without a word; it
reads a body that nobody wanted to its end, however far that is; of several words in a Connection
header it sees none; it serves a request of HTTP/1.1 without a host, or with one that is none; and
it waits for a chunk whose size has no end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gunicorn.http import wsgi
from gunicorn.http.errors import InvalidChunkSize, InvalidHeader

from router.web.worker.bounds import DRAIN
from router.web.worker.refusals import bad_host
from router.web.worker.writing import SHORT, write

_ENDLESS: Final = 1 << 64


class ClosingResponse(wsgi.Response):  # type: ignore[misc] # gunicorn has no type hints
    """An answer that knows when its connection ends with it."""

    def should_close(self) -> bool:
        """Return whether the connection ends with this answer."""
        body = self.req.body
        return bool(
            super().should_close()
            or body.failed
            or getattr(body.reader, "length", 0) > DRAIN
            or any(name == "CONNECTION" and _says_close(value) for name, value in self.req.headers)
        )


class Response(ClosingResponse):
    """An answer whose head leaves together with the first piece of a short body."""

    headers_sent: bool
    _head = b""

    def send_headers(self) -> None:
        """Hold the head back until a piece of the body, or the end, comes."""
        if not self.headers_sent:
            own = [f"{name}: {value}\r\n" for name, value in self.headers]
            self._head = "".join((*self.default_headers(), *own, "\r\n")).encode("latin-1")
            self.headers_sent = True

    def can_sendfile(self) -> bool:
        """Return False: files would overtake the head."""
        return False

    def close(self) -> None:
        """End the answer."""
        self.send_headers()
        self._send_head()
        super().close()

    def _emit_body(self, data: bytes) -> None:
        if self.chunked:
            self._head += b"%x\r\n" % len(data)
        if len(data) <= SHORT:
            data, self._head = self._head + data, b""
        self._send_head()
        write(self.sock, data + b"\r\n" if self.chunked else data)

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head:
            write(self.sock, head)


def check(request: Any) -> None:
    """Raise gunicorn's InvalidHeader for a request without a host that it could be meant for.

    It is raised as well for an attribute of a CloudEvent that is there twice: of both gunicorn
    would make one.
    Its chunks are bounded from here on.
    """
    host = next((value for name, value in request.headers if name == "HOST"), None)
    if wrong := bad_host(host, request.version):
        raise InvalidHeader(wrong, req=request)
    attributes = [name for name, _ in request.headers if name.startswith("CE-")]
    if len(set(attributes)) < len(attributes):
        raise InvalidHeader("an attribute of a CloudEvent is there twice", req=request)
    reader = request.body.reader
    if measure := getattr(reader, "parse_chunk_size", None):
        reader.parse_chunk_size = partial(_measured, measure)


def _measured(measure: Callable[..., tuple[int, bytes]], *args: Any, **named: Any) -> Any:
    size, rest = measure(*args, **named)
    if size >= _ENDLESS:
        raise InvalidChunkSize(b"more than 64 bits")
    return size, rest


def _says_close(value: str) -> bool:
    return "close" in (word.strip(" \t") for word in value.lower().split(","))
