"""The worker that reads HTTP itself, with llhttp in the place of gunicorn's parser in Python."""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from time import monotonic
from typing import Any, Final

from gevent import Timeout, sleep
from gunicorn import util

from router.waiting import LULL
from router.web.worker.bounds import Crowd
from router.web.worker.connection import Connection
from router.web.worker.environ import of_connection
from router.web.worker.listening import ListeningWorker
from router.web.worker.parked import Parked
from router.web.worker.runners import Runners

_FULL: Final = "There are too many connections."


class Worker(ListeningWorker):
    """Serves each connection within the bounds; one that waits has no greenlet."""

    def init_process(self) -> None:
        """Prepare what connections share, then run."""
        self._crowd = Crowd(self.bounds)
        # One more than it serves, so that there is somebody to send away whom it does not.
        self.worker_connections += 1
        self._parked: set[Parked] = set()
        # Not those of the pool: it has who was not looked at yet, and for a moment who is parked.
        self._held = 0
        super().init_process()

    def run(self) -> None:
        """Serve until a signal says stop."""
        self.runners = Runners()
        super().run()

    def handle(self, listener: Any, client: socket.socket, addr: Any) -> None:
        """Serve one connection, or send it away."""
        seat = self._crowd.enter(addr)
        if seat is None or not self._has_room():
            with suppress(OSError), client:
                util.write_error(client, 503, "Service Unavailable", _FULL)
            self._crowd.leave(seat or "")
            return
        self._held += 1
        if self.tls is not None and self.tls.serves(listener.getsockname()):
            try:
                super().handle(listener, client, addr)
            finally:
                self._leave(seat)
            return

        self.idle[client] = monotonic()
        steps = self._serving(listener, client, addr).serve()
        parked = Parked(self, client, seat, steps)
        self._parked.add(parked)
        parked.go_on()

    def ended(self, parked: Parked) -> None:
        """Close a connection that was parked."""
        self._parked.discard(parked)
        self.idle.pop(parked.client, None)
        self._leave(parked.seat)
        util.close(parked.client)

    def converse(self, listener: Any, client: socket.socket, addr: Any) -> None:
        """Serve the requests of a connection here, and close it.

        One of TLS: what its client sent may be read off the socket already, and not be looked at.
        """
        try:
            with closing(self._serving(listener, client, addr).serve()) as steps:
                for wait in steps:
                    if wait is None or wait[0] is LULL:
                        sleep(0)
                    else:
                        wait[0].wait(wait[1])
        except OSError as error:
            self.log.debug("The connection is lost: %s", error)
        finally:
            util.close(client)

    def count(self) -> bool:
        """Count a request; return whether its connection has to end with it."""
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False
            self.stop_soon()
        return not self.alive

    def connections(self) -> int:
        """Return how many connections there are."""
        return len(self.pool) + len(self._parked)

    def give_up(self) -> None:
        """End the connections whose requests did not end in time."""
        super().give_up()
        with Timeout(1, exception=False):
            for parked in list(self._parked):
                parked.end()

    def _serving(self, listener: Any, client: socket.socket, addr: Any) -> Connection:
        common = of_connection(client, addr, listener.getsockname(), self.cfg.workers)
        return Connection(self, client, common, self.bounds)

    def _leave(self, seat: str) -> None:
        self._held -= 1
        self._crowd.leave(seat)

    def _has_room(self) -> bool:
        """Return whether one more is served: that which is idle for longest makes room for it."""
        if self._held < self.worker_connections - 1:
            return True
        if self.idle:
            self.end_idlest()
            sleep(0)
            return True
        return False
