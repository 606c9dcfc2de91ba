"""The gevent worker that reads HTTP itself, with llhttp in the place of gunicorn's parser.

The worker accepts, speaks TLS, holds connections within their bounds, and stops quickly and
gracefully. gunicorn's own gevent worker checks once a second for a signal to stop, and then waits
for every open connection, those without a request among them, up to `graceful_timeout`. Here the
signal wakes the main loop; connections on which no request is under way are shut down for reading,
which ends them as if the client had left; the others are answered with `Connection: close`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import metadata
from types import FrameType
from typing import Any, Final

from gevent import Timeout, sleep
from gevent.event import Event
from gevent.pool import Pool
from gevent.server import StreamServer
from gevent.socket import socket as gevent_socket
from gunicorn import util
from gunicorn.workers.ggevent import GeventWorker

from router.clocks.steps import YIELD_TO_LOOP
from router.web.server import STOP_HOOK, call_hook
from router.web.tls import HANDSHAKE_SECONDS, Tls
from router.web.worker.bounds import KEEPALIVE_SECONDS, ConnectionLimiter, WorkerBounds
from router.web.worker.connection import HttpConnection
from router.web.worker.request import ConnectionEnds, KnownHeads
from router.web.worker.suspended import GreenletPool, SuspendedConnection

NOTIFY_INTERVAL_SECONDS: Final = 1.0
STOP_INTERVAL_SECONDS: Final = 0.02
MAX_LATE_CONNECTIONS: Final = 1_000
_FULL: Final = "There are too many connections."


class _Server(StreamServer):  # type: ignore[misc] # gevent has no type hints
    """Accepts connections; the worker closes each, which may be later than `handle` returns."""

    def do_close(self, *args: Any) -> None:
        """Leave it."""

    def take_rest(self) -> None:
        """Accept what came before now, and nothing any more: closing would reset those."""
        self.stop_accepting()
        with suppress(OSError):
            for _ in range(MAX_LATE_CONNECTIONS):
                if self.full() or not (accepted := self.do_read()):
                    return
                self.do_handle(*accepted)


@contextmanager
def entry_points_read_once() -> Iterator[None]:
    """Read the entry points of all installed distributions once while the block lasts.

    gevent looks for plugins at each of the 25 steps of patching, and each look reads all of them
    again: with 150 distributions that is half of the time in which a worker starts.
    """
    read = metadata.entry_points
    found = read()
    metadata.entry_points = found.select
    try:
        yield
    finally:
        metadata.entry_points = read


class Worker(GeventWorker):  # type: ignore[misc] # gunicorn has no type hints
    """Serves each connection within the bounds; one that waits has no greenlet."""

    tls: Tls | None = None
    alive: bool
    bounds = WorkerBounds()

    def init_process(self) -> None:
        """Prepare what the main loop needs and connections share, then run."""
        # gunicorn looks each of its settings up again for each request.
        self.cfg.__dict__.update({name: s.get() for name, s in self.cfg.settings.items()})
        # Since when a connection has no request under way; the one for which that is longest first.
        self.idle: dict[socket.socket, float] = {}
        self.heads = KnownHeads()
        self._limiter = ConnectionLimiter(self.bounds)
        # One more than it serves, so that a connection too many is accepted and refused.
        self.worker_connections += 1
        self.pool = Pool(self.worker_connections)
        self._suspended: set[SuspendedConnection] = set()
        # Not those of the pool: it has new connections, and for a moment suspended ones.
        self._held = 0
        super().init_process()

    def patch(self) -> None:
        """Have gevent replace what blocks in the standard library."""
        with entry_points_read_once():
            super().patch()

    def run(self) -> None:
        """Serve until a signal says stop."""
        self.greenlets = GreenletPool()
        self._stopping = Event()
        # By their address: a connection may begin when its listener is closed.
        servers = [
            _Server(listener, handle=partial(self.serve, listener.getsockname()), spawn=self.pool)
            for listener in self.sockets
        ]
        for listener, server in zip(self.sockets, servers, strict=True):
            listener.setblocking(1)
            if self.cfg.workers > 1:
                server.max_accept = 1
            server.start()
        while self.alive:
            self.notify()
            self._stopping.wait(NOTIFY_INTERVAL_SECONDS)
            self._end_silent(time.monotonic() - KEEPALIVE_SECONDS)
        for server in servers:
            server.take_rest()
            server.close()
        call_hook(self, STOP_HOOK)
        self._finish()

    def serve(self, local: Any, client: socket.socket, peer: Any) -> None:
        """Serve one connection, or refuse it; `local` and `peer` are addresses of sockets."""
        slot = self._limiter.enter(peer)
        if slot is None or not self._has_room():
            with suppress(OSError), client:
                util.write_error(client, 503, "Service Unavailable", _FULL)
            self._limiter.leave(slot or "")
            return
        self._held += 1
        if self.tls is not None and self.tls.serves(local):
            try:
                self._serve_tls(self.tls, local, client, peer)
            finally:
                self._leave(slot)
            return
        self.idle[client] = time.monotonic()
        served = self._connection(local, client, peer)
        connection = SuspendedConnection(self, client, slot, served.serve(), served)
        served.suspended = connection
        self._suspended.add(connection)
        connection.resume()

    def release(self, connection: SuspendedConnection) -> None:
        """Close the client of a suspended connection that has ended."""
        self._suspended.discard(connection)
        self.idle.pop(connection.client, None)
        self._leave(connection.slot)
        util.close(connection.client)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully, now rather than at the next turn of the main loop."""
        super().handle_exit(sig, frame)
        self._wake()

    def retire(self) -> None:
        """Stop after `max_requests`: gunicorn starts another worker."""
        if self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False
            self._wake()

    def _wake(self) -> None:
        if stopping := getattr(self, "_stopping", None):
            stopping.set()

    def _serve_tls(self, tls: Tls, local: Any, client: Any, peer: Any) -> None:
        try:
            client = tls.wrap(client)
        except OSError:  # the client left before
            client.close()
            return
        self.idle[client] = time.monotonic()
        try:
            if self._shake_hands(client):
                self._converse(self._connection(local, client, peer), client)
        finally:
            self.idle.pop(client, None)

    def _shake_hands(self, client: Any) -> bool:
        try:
            with Timeout(HANDSHAKE_SECONDS, TimeoutError):
                client.do_handshake()
        except OSError as error:
            self.log.debug("TLS handshake failed: %s", error)
            client.close()
            return False
        return True

    def _converse(self, connection: HttpConnection, client: Any) -> None:
        """Serve the requests of a connection of TLS here, and close it.

        What its client sent may be read off the socket already, so that no watcher would see it.
        """
        try:
            with closing(connection.serve()) as steps:
                for wait in steps:
                    if wait is None or wait[0] is YIELD_TO_LOOP:
                        sleep(0)
                    else:
                        wait[0].wait(wait[1])
        except OSError as error:
            self.log.debug("The connection is lost: %s", error)
        finally:
            util.close(client)

    def _connection(self, local: Any, client: Any, peer: Any) -> HttpConnection:
        return HttpConnection(
            self, client, ConnectionEnds(peer, local, self.cfg.workers), self.bounds
        )

    def _leave(self, slot: str) -> None:
        self._held -= 1
        self._limiter.leave(slot)

    def _has_room(self) -> bool:
        """Return whether one more is served: that which is idle for longest makes room for it."""
        if self._held < self.worker_connections - 1:
            return True
        if self.idle:
            self._end_idlest()
            sleep(0)
            return True
        return False

    def _end_silent(self, since: float) -> None:
        """End the connections that are idle since then: one check for all, no timer for each."""
        while self.idle and next(iter(self.idle.values())) <= since:
            self._end_idlest()

    def _end_idlest(self) -> None:
        """End the connection that is idle for longest; there is one."""
        client = next(iter(self.idle))
        del self.idle[client]
        _shut_down(client)

    def _finish(self) -> None:
        """Wait for the requests under way, as long as gunicorn allows it."""
        until = time.monotonic() + self.cfg.graceful_timeout
        while self._open_connections() and time.monotonic() < until:
            self.notify()
            sleep(STOP_INTERVAL_SECONDS)  # for the request of what was accepted last, too
            for client in list(self.idle):
                _shut_down(client)
        if left := self._open_connections():
            self.log.warning("%d requests did not end in time", left)
            self.pool.kill(timeout=1)
            with Timeout(1, exception=False):
                for connection in list(self._suspended):
                    connection.end()

    def _open_connections(self) -> int:
        return len(self.pool) + len(self._suspended)


def _shut_down(client: socket.socket) -> None:
    """Have the reader of a connection find its end, as if the client had left."""
    # By a twin: its own method would fail its reader, which logs that, and TLS's would take the
    # session away under it.
    with suppress(OSError), gevent_socket(fileno=os.dup(client.fileno())) as twin:
        twin.shutdown(socket.SHUT_RD)
