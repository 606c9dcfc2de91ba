"""The gthread worker that serves the router: gunicorn's own parser and threads, with our bounds.

Each port that has TLS gets a handshake in a thread. What gunicorn leaves open is closed here: it
serves a request of HTTP/1.1 without a host, or with one that is none; it takes chunks of any size;
of several words in a Connection header it sees none; it does not say that a connection ends behind
a body that it cannot read to its end; and it bounds the time of a piece of an answer, however
large that is.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gunicorn import util
from gunicorn.http.errors import InvalidChunkSize, InvalidHeader
from gunicorn.workers import gthread

from router.web.tls import HANDSHAKE_SECONDS, Tls
from router.web.worker.bounds import MAX_DRAINED_BYTES, MIN_BYTES_PER_SECOND, WorkerBounds
from router.web.worker.request import RequestRefusedError, bad_host
from router.web.worker.stream import linger

# How long a new connection that says nothing has a thread; then the poller waits for it. gunicorn's
# own five seconds let 256 silent connections hold up all others for so long.
SILENCE_SECONDS: Final = 0.05
_MAX_CHUNK_SIZE: Final = 1 << 64


class _TimedReading:
    """What a parser of gunicorn's reads of its connection, by a time that is set."""

    def __init__(self, conn: Any) -> None:
        self._socket = conn.sock
        self._receive = conn.parser.unreader.chunk
        self._until: float | None = None
        self._failure: Exception = TimeoutError()
        conn.parser.unreader.chunk = self._chunk

    def begin(self, seconds: float, failure: Exception) -> None:
        """Have what is read from now on be there in time; else reading raises this failure."""
        self._until = monotonic() + seconds
        self._failure = failure

    def end(self) -> None:
        """Let gunicorn itself say how long reading may take."""
        self._until = None

    def _chunk(self, size_hint: int | None = None) -> Any:
        if self._until is None:
            return self._receive(size_hint)
        usual = self._socket.gettimeout()
        left = self._until - monotonic()
        try:
            self._socket.settimeout(max(0.001, left if usual is None else min(left, usual)))
            return self._receive(size_hint)
        except TimeoutError as error:
            raise self._failure from error
        finally:
            self._socket.settimeout(usual)


class ThreadWorker(gthread.ThreadWorker):  # type: ignore[misc] # gunicorn has no type hints
    """Serves each request in a thread, and each TLS handshake too."""

    tls: Tls | None = None
    bounds = WorkerBounds()

    def load_wsgi(self) -> None:
        """Load the application, whose answers leave in pieces that a slow client can take."""
        super().load_wsgi()
        # gunicorn gives each piece `write_timeout`: so the client takes MIN_BYTES_PER_SECOND.
        piece_bytes = max(1, round(MIN_BYTES_PER_SECOND * self.bounds.write_timeout))
        self.wsgi.wsgi_app = in_pieces(self.wsgi.wsgi_app, piece_bytes)

    def handle(self, conn: Any) -> Any:
        """Serve a request of a connection, after its handshake; runs in a thread of the pool."""
        if conn.initialized:
            return self._serve(conn)
        if not conn.wait_for_data(SILENCE_SECONDS):
            return gthread._DEFER
        if self.tls and self.tls.serves(conn.server) and not isinstance(conn.sock, ssl.SSLSocket):
            if not self._shake_hands(self.tls, conn):
                return False
            # Now the request is waited for in the same way, as long as it is not here already.
            conn.data_ready = conn.sock.pending() > 0
            if not conn.wait_for_data(SILENCE_SECONDS):
                return gthread._DEFER
        return self._serve(conn)

    def _serve(self, conn: Any) -> Any:
        """Serve a request whose first bytes are there, and whose head has to follow in time."""
        if not conn.initialized:
            conn.init()
            conn.reading = _TimedReading(conn)
        seconds = self.bounds.head_timeout
        sentence = f"The head was not there in {seconds:g} seconds."
        conn.reading.begin(seconds, RequestRefusedError(HTTPStatus.REQUEST_TIMEOUT, sentence))
        kept = super().handle(conn)
        if kept is False:
            linger(conn.sock)
        return kept

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Serve one request, whose client sends its body and takes its answer in time."""
        check(req)
        req.should_close = partial(_ends_connection, req)
        conn.reading.begin(self.bounds.body_timeout, TimeoutError("the body takes too long"))
        conn.sock.settimeout(self.bounds.write_timeout)
        try:
            return super().handle_request(req, conn)
        except TimeoutError as error:
            # gunicorn would log it as a failure; of a client that left it says nothing.
            reason = "the client takes nothing"
            raise ConnectionResetError(errno.ECONNRESET, reason) from error
        finally:
            conn.reading.end()

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Say why a request is refused."""
        if isinstance(exc, RequestRefusedError):
            util.write_error(client, exc.status.value, exc.status.phrase, exc.sentence)
        else:
            super().handle_error(req, client, addr, exc)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Go on with a connection; what is decrypted already makes no socket readable."""
        kept = not fs.cancelled() and fs.exception() is None and fs.result() is True
        if kept and isinstance(conn.sock, ssl.SSLSocket) and conn.sock.pending():
            self.enqueue_req(conn)
        else:
            super().finish_request(conn, fs)

    def _shake_hands(self, tls: Tls, conn: Any) -> bool:
        try:
            conn.sock.setblocking(True)
            conn.sock = tls.wrap(conn.sock)
            conn.sock.settimeout(HANDSHAKE_SECONDS)  # for all of it, not for each piece
            conn.sock.do_handshake()
            conn.sock.setblocking(True)
        except OSError as error:
            self.log.debug("TLS handshake failed: %s", error)
            with suppress(OSError):
                conn.sock.close()
            return False
        return True


def check(request: Any) -> None:
    """Raise gunicorn's InvalidHeader for a request without a host that it could be meant for.

    It is raised as well for an attribute of a CloudEvent that is there twice: of both gunicorn
    would make one. The chunks of the request's body have a size of 64 bits at most from here on.
    """
    host = next((value for name, value in request.headers if name == "HOST"), None)
    if wrong := bad_host(host, request.version):
        raise InvalidHeader(wrong, req=request)
    attributes = [name for name, _ in request.headers if name.startswith("CE-")]
    if len(set(attributes)) < len(attributes):
        raise InvalidHeader("an attribute of a CloudEvent is there twice", req=request)
    reader = request.body.reader
    if measure := getattr(reader, "parse_chunk_size", None):
        reader.parse_chunk_size = partial(_chunk_size, measure)


def _chunk_size(measure: Callable[..., tuple[int, bytes]], *args: Any, **named: Any) -> Any:
    size, rest = measure(*args, **named)
    if size >= _MAX_CHUNK_SIZE:
        raise InvalidChunkSize(b"more than 64 bits")
    return size, rest


def _ends_connection(request: Any) -> bool:
    """Return whether the connection ends with a request; gunicorn asks before it answers."""
    body = request.body
    return bool(
        type(request).should_close(request)
        or body.failed
        or getattr(body.reader, "length", 0) > MAX_DRAINED_BYTES
        or any(name == "CONNECTION" and _has_close(value) for name, value in request.headers)
    )


def _has_close(value: str) -> bool:
    return "close" in (word.strip(" \t") for word in value.lower().split(","))


def in_pieces(application: WSGIApplication, piece_bytes: int) -> WSGIApplication:
    """Return an application whose answers have no piece larger than `piece_bytes`."""

    def cut(body: Iterable[bytes]) -> Iterator[bytes]:
        try:
            for piece in body:
                for start in range(0, len(piece), piece_bytes):
                    yield piece[start : start + piece_bytes]
        finally:
            if close := getattr(body, "close", None):
                close()

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return cut(application(environ, start_response))

    return serve
