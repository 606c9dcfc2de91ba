"""gunicorn's own reading of HTTP, on its gevent worker: the fallback of `llhttp`.

What gunicorn leaves open is bounded: a body that trickles in, and an answer that its client does
not take.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from gevent import Timeout
from gunicorn.http import wsgi

from router.web.offload import patient
from router.web.worker.closing import Response, check
from router.web.worker.listening import ListeningWorker
from router.web.worker.writing import linger


class _TimedReader:
    """A reader of gunicorn's whose body has to be there so many seconds after its first read."""

    def __init__(self, reader: Any, seconds: float) -> None:
        self._reader = reader
        self._seconds = seconds
        self._until = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read(self, size: int) -> bytes:
        """Read as the reader does; raise TimeoutError."""
        read: Callable[[int], bytes] = self._reader.read
        if getattr(self._reader, "length", None) == 0:
            return b""
        now = monotonic()
        self._until = self._until or now + self._seconds
        with Timeout(max(0.001, self._until - now), TimeoutError):
            return read(size)


class Worker(ListeningWorker):
    """Serves each connection as gunicorn does."""

    def init_process(self) -> None:
        """Have gunicorn answer our way, and run."""
        wsgi.Response = Response
        super().init_process()

    def handle_request(self, listener_name: Any, req: Any, sock: socket.socket, addr: Any) -> None:
        """Serve one request; the connection is idle again afterwards."""
        check(req)
        req.body.reader = _TimedReader(req.body.reader, self.bounds.body_timeout)
        self.idle.pop(sock, None)
        sock.settimeout(self.bounds.write_timeout)
        try:
            with patient():
                super().handle_request(listener_name, req, sock, addr)
        except StopIteration:
            if _is_unread(req):
                linger(sock)
            raise
        sock.settimeout(None)
        self.idle[sock] = monotonic()

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Say why a request is refused, and let the client read it."""
        super().handle_error(req, client, addr, exc)
        linger(client)


def _is_unread(req: Any) -> bool:
    """Return whether the client may still be sending a body that nobody wants."""
    reader = req.body.reader
    return bool(getattr(reader, "length", 0) or getattr(reader, "parser", None))
