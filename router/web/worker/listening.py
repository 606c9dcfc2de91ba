"""What the gevent workers share: they accept, speak TLS, and stop quickly and gracefully.

gunicorn's own gevent worker looks once a second whether it shall stop, and then waits for every
open connection, those without a request among them, up to `graceful_timeout`. Here the signal wakes
the main loop; connections on which no request is under way are shut down for reading, which ends
them as if the client had left; the others are answered with `Connection: close`.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gevent import Timeout, sleep
from gevent.event import Event
from gevent.pool import Pool
from gevent.server import StreamServer
from gevent.socket import socket as gevent_socket
from gunicorn.workers.ggevent import GeventWorker

from router.web.server import STOP_HOOK, call_hook
from router.web.tls import HANDSHAKE, Tls
from router.web.worker.bounds import KEEPALIVE, Bounds

if TYPE_CHECKING:
    from types import FrameType

SIGN_OF_LIFE: Final = 1.0
LAST_LOOK: Final = 0.02
MOST_LATE: Final = 1_000


class _Server(StreamServer):  # type: ignore[misc] # gevent has no type hints
    """Accepts connections; whoever serves one closes it, which may be later than `handle`."""

    def do_close(self, *args: Any) -> None:
        """Leave it."""

    def take_rest(self) -> None:
        """Accept who came before now, and nobody any more: closing would reset those."""
        self.stop_accepting()
        with suppress(OSError):
            for _ in range(MOST_LATE):
                if self.full() or not (accepted := self.do_read()):
                    return
                self.do_handle(*accepted)


class _Named:
    """A listener as far as connections look at it: they may begin when it is closed."""

    def __init__(self, listener: Any) -> None:
        self._name = listener.getsockname()

    def getsockname(self) -> Any:
        """Return its address."""
        return self._name


class ListeningWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no type hints
    """Serves connections until told to stop, then answers those under way and leaves."""

    tls: Tls | None = None
    alive: bool
    bounds = Bounds()

    def init_process(self) -> None:
        """Prepare what the main loop needs, then run it."""
        # gunicorn looks each of its settings up anew for each request.
        self.cfg.__dict__.update({name: s.get() for name, s in self.cfg.settings.items()})
        # Since when a connection has no request under way; the one for which that is longest first.
        self.idle: dict[socket.socket, float] = {}
        self.pool = Pool(self.worker_connections)
        super().init_process()

    def run(self) -> None:
        """Serve until a signal says stop."""
        self.stopping = Event()
        servers = [
            _Server(listener, handle=partial(self.handle, _Named(listener)), spawn=self.pool)
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
            self._end_silent(time.monotonic() - KEEPALIVE)
        for server in servers:
            server.take_rest()
            server.close()
        call_hook(self, STOP_HOOK)
        self._finish()

    def _end_silent(self, since: float) -> None:
        """End the connections that are idle since then: one look for all, no timer for each."""
        while self.idle and next(iter(self.idle.values())) <= since:
            self.end_idlest()

    def end_idlest(self) -> None:
        """End the connection that is idle for longest; there is one."""
        client = next(iter(self.idle))
        del self.idle[client]
        end(client)

    def _finish(self) -> None:
        """Wait for the requests under way, as long as gunicorn allows it."""
        until = time.monotonic() + self.cfg.graceful_timeout
        while self.connections() and time.monotonic() < until:
            self.notify()
            sleep(LAST_LOOK)  # for the request of who was accepted last, too
            for client in list(self.idle):
                end(client)
        if left := self.connections():
            self.log.warning("%d requests did not end in time", left)
            self.give_up()

    def connections(self) -> int:
        """Return how many connections there are."""
        return len(self.pool)

    def give_up(self) -> None:
        """End the connections whose requests did not end in time."""
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
        self.idle[client] = time.monotonic()
        try:
            if not secure or self._shake_hands(client):
                self.converse(listener, client, addr)
        finally:
            self.idle.pop(client, None)

    def converse(self, listener: Any, client: socket.socket, addr: Any) -> None:
        """Serve the requests of a connection, and close it; gunicorn's way."""
        super().handle(listener, client, addr)

    def _shake_hands(self, client: Any) -> bool:
        try:
            with Timeout(HANDSHAKE, TimeoutError):
                client.do_handshake()
        except OSError as error:
            self.log.debug("TLS handshake failed: %s", error)
            client.close()
            return False
        return True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully, now rather than at the next look."""
        super().handle_exit(sig, frame)
        self.stop_soon()

    def stop_soon(self) -> None:
        """Have the main loop look whether it shall stop."""
        if stopping := getattr(self, "stopping", None):
            stopping.set()


def end(client: socket.socket) -> None:
    """Have the reader of a connection find its end, as if the client had left."""
    # By a twin: its own method would fail its reader, which logs that, and TLS's would take the
    # session away under it.
    with suppress(OSError), gevent_socket(fileno=os.dup(client.fileno())) as twin:
        twin.shutdown(socket.SHUT_RD)
