"""The gevent worker that serves the router: quick stops, answers in one piece.

gunicorn's own gevent worker looks once a second whether it shall stop, and then waits for every
open connection, those without a request among them, up to `graceful_timeout`. Here the signal wakes
the main loop; connections on which no request is under way are shut down for reading, which ends
them as if the client had left; the others are answered with `Connection: close`.

gunicorn writes an answer's head and body in two system calls, each of which wakes the client, and
looks every setting up anew for every request. Here both leave together, and settings are plain
attributes: a tenth of a small request.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from gevent import Timeout
from gevent.event import Event
from gevent.pool import Pool
from gevent.server import StreamServer
from gevent.socket import socket as gevent_socket
from gunicorn.http import wsgi
from gunicorn.workers.ggevent import GeventWorker

from router.web.offload import patient
from router.web.server import STOP_HOOK, call_hook
from router.web.tls import HANDSHAKE, Tls

if TYPE_CHECKING:
    from types import FrameType

SIGN_OF_LIFE = 1.0
LAST_LOOK = 0.02
SHORT = 64 * 1024  # joining head and body copies the body
LINGER = 2.0
LINGER_BYTES = 64 << 20


class Response(wsgi.Response):  # type: ignore[misc] # gunicorn has no type hints
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
        if self._head and not self.chunked and len(data) <= SHORT:
            data, self._head = self._head + data, b""
        self._send_head()
        super()._emit_body(data)

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head:
            self.sock.sendall(head)


class Worker(GeventWorker):  # type: ignore[misc] # gunicorn has no type hints
    """Serves connections until told to stop, then answers those under way and leaves."""

    tls: Tls | None = None

    def init_process(self) -> None:
        """Prepare what the main loop needs, then run it."""
        wsgi.Response = Response
        self.cfg.__dict__.update({name: s.get() for name, s in self.cfg.settings.items()})
        self.idle: set[socket.socket] = set()
        self.pool = Pool(self.worker_connections)
        super().init_process()

    def run(self) -> None:
        """Serve until a signal says stop."""
        self.stopping = Event()
        servers = [
            StreamServer(listener, handle=partial(self.handle, listener), spawn=self.pool)
            for listener in self.sockets
        ]
        for listener, server in zip(self.sockets, servers, strict=True):
            listener.setblocking(1)
            if self.cfg.workers > 1:
                server.max_accept = 1
            server.start()
        while self.alive:
            self.notify()
            self.stopping.wait(SIGN_OF_LIFE)
        for server in servers:
            server.close()
        call_hook(self, STOP_HOOK)
        self._finish()

    def _finish(self) -> None:
        """Wait for the requests under way, as long as gunicorn allows it."""
        until = time.monotonic() + self.cfg.graceful_timeout
        while self.pool and time.monotonic() < until:
            self.notify()
            for client in list(self.idle):
                # By a twin: its own method would fail its reader, which logs that, and TLS's would
                # take the session away under it. So it reads the end, as if the client had left.
                with suppress(OSError), gevent_socket(fileno=os.dup(client.fileno())) as twin:
                    twin.shutdown(socket.SHUT_RD)
            self.pool.join(timeout=LAST_LOOK)
        if self.pool:
            self.log.warning("%d requests did not end in time", len(self.pool))
            self.pool.kill(timeout=1)

    def handle(self, listener: Any, client: socket.socket, addr: Any) -> None:
        """Serve one connection, idle whenever no request is under way on it."""
        secure = self.tls is not None and self.tls.serves(listener.getsockname())
        if self.tls is not None and secure:
            try:
                client = self.tls.wrap(client)
            except OSError:  # gone before it was looked at
                client.close()
                return
        self.idle.add(client)
        try:
            if not secure or self._shake_hands(client):
                super().handle(listener, client, addr)
        finally:
            self.idle.discard(client)

    def _shake_hands(self, client: Any) -> bool:
        try:
            with Timeout(HANDSHAKE, TimeoutError):
                client.do_handshake()
        except OSError as error:
            self.log.debug("TLS handshake failed: %s", error)
            client.close()
            return False
        return True

    def handle_request(self, listener_name: Any, req: Any, sock: socket.socket, addr: Any) -> None:
        """Serve one request; the connection is idle again afterwards."""
        self.idle.discard(sock)
        try:
            with patient():
                super().handle_request(listener_name, req, sock, addr)
        except StopIteration:
            if _is_unread(req):
                _linger(sock)
            raise
        self.idle.add(sock)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully, now rather than at the next look."""
        super().handle_exit(sig, frame)
        if stopping := getattr(self, "stopping", None):
            stopping.set()


def _is_unread(req: Any) -> bool:
    """Return whether the client may still be sending a body that nobody wants."""
    reader = req.body.reader
    return bool(getattr(reader, "length", 0) or getattr(reader, "parser", None))


def _linger(sock: Any) -> None:
    """Let the client read its answer: closing with input unread would reset the connection."""
    left = LINGER_BYTES
    with suppress(OSError), Timeout(LINGER, False):
        gevent_socket.shutdown(sock, socket.SHUT_WR)
        while left > 0 and (data := sock.recv(SHORT)):
            left -= len(data)
