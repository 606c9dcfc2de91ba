"""The gthread worker that serves the router: gunicorn's own, with TLS on the ports that have it."""

from __future__ import annotations

import ssl
from contextlib import suppress
from http import HTTPStatus
from time import monotonic
from typing import Any, Final

from gunicorn import util
from gunicorn.http import wsgi
from gunicorn.workers import gthread

from router.web.offload import patient
from router.web.tls import HANDSHAKE, Tls
from router.web.worker.bounds import Bounds
from router.web.worker.closing import Response, check
from router.web.worker.refusals import RefusedError
from router.web.worker.writing import linger

# How long a new connection that says nothing has a thread; then the poller waits for it. gunicorn's
# own five seconds let 256 silent connections hold up all others for so long.
SILENCE: Final = 0.05


class _Reading:
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
    bounds = Bounds()

    def init_process(self) -> None:
        """Have gunicorn end connections where it has to, and run."""
        wsgi.Response = Response
        super().init_process()

    def handle(self, conn: Any) -> Any:
        """Serve a request of a connection, after its handshake; runs in a thread of the pool."""
        if conn.initialized:
            return self._serve(conn)
        if not conn.wait_for_data(SILENCE):
            return gthread._DEFER
        if self.tls and self.tls.serves(conn.server) and not isinstance(conn.sock, ssl.SSLSocket):
            if not self._shake_hands(self.tls, conn):
                return False
            # Now the request is waited for in the same way, as long as it is not here already.
            conn.data_ready = conn.sock.pending() > 0
            if not conn.wait_for_data(SILENCE):
                return gthread._DEFER
        return self._serve(conn)

    def _serve(self, conn: Any) -> Any:
        """Serve a request whose first bytes are there, and whose head has to follow in time."""
        if not conn.initialized:
            conn.init()
            conn.reading = _Reading(conn)
        seconds = self.bounds.head_timeout
        sentence = f"The head was not there in {seconds:g} seconds."
        conn.reading.begin(seconds, RefusedError(HTTPStatus.REQUEST_TIMEOUT, sentence))
        kept = super().handle(conn)
        if kept is False:
            linger(conn.sock)
        return kept

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Serve one request, whose client sends its body and takes its answer in time."""
        check(req)
        conn.reading.begin(self.bounds.body_timeout, TimeoutError("the body takes too long"))
        conn.sock.settimeout(self.bounds.write_timeout)
        try:
            with patient():
                return super().handle_request(req, conn)
        finally:
            conn.reading.end()

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Say why a request is refused."""
        if isinstance(exc, RefusedError):
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
            conn.sock.settimeout(HANDSHAKE)  # for all of it, not for each piece
            conn.sock.do_handshake()
            conn.sock.setblocking(True)
        except OSError as error:
            self.log.debug("TLS handshake failed: %s", error)
            with suppress(OSError):
                conn.sock.close()
            return False
        return True
