"""The gthread worker that serves the router: gunicorn's own, with TLS on the ports that have it."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any, Final

from gunicorn.http import wsgi
from gunicorn.workers import gthread

from router.web.offload import patient
from router.web.tls import HANDSHAKE, Tls
from router.web.worker.closing import ClosingResponse, check

# How long a new connection that says nothing has a thread; then the poller waits for it. gunicorn's
# own five seconds let 256 silent connections hold up all others for so long.
SILENCE: Final = 0.05


class ThreadWorker(gthread.ThreadWorker):  # type: ignore[misc] # gunicorn has no type hints
    """Serves each request in a thread, and each TLS handshake too."""

    tls: Tls | None = None

    def init_process(self) -> None:
        """Have gunicorn end connections where it has to, and run."""
        wsgi.Response = ClosingResponse
        super().init_process()

    def handle(self, conn: Any) -> Any:
        """Serve a request of a connection, after its handshake; runs in a thread of the pool."""
        if conn.initialized:
            return super().handle(conn)
        if not conn.wait_for_data(SILENCE):
            return gthread._DEFER
        if self.tls and self.tls.serves(conn.server) and not isinstance(conn.sock, ssl.SSLSocket):
            if not self._shake_hands(self.tls, conn):
                return False
            # Now the request is waited for in the same way, as long as it is not here already.
            conn.data_ready = conn.sock.pending() > 0
            if not conn.wait_for_data(SILENCE):
                return gthread._DEFER
        return super().handle(conn)

    def handle_request(self, *args: Any) -> Any:
        """Serve one request."""
        check(args[0])
        with patient():
            return super().handle_request(*args)

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
