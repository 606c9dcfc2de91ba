"""The worker that reads HTTP itself, with llhttp in the place of gunicorn's parser in Python."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

from gevent import sleep
from gunicorn import util

from router.web.offload import patient
from router.web.worker.bounds import Crowd
from router.web.worker.connection import Connection
from router.web.worker.environ import of_connection
from router.web.worker.listening import ListeningWorker

_FULL: Final = "There are too many connections."


class Worker(ListeningWorker):
    """Serves each connection in a greenlet of its own, within the bounds."""

    def init_process(self) -> None:
        """Prepare what connections share, then run."""
        self._crowd = Crowd(self.bounds)
        # One more than it serves, so that there is somebody to send away whom it does not.
        self.worker_connections += 1
        super().init_process()

    def handle(self, listener: Any, client: socket.socket, addr: Any) -> None:
        """Serve one connection, or send it away."""
        seat = self._crowd.enter(addr)
        if seat is None or not self._has_room():
            with suppress(OSError), client:
                util.write_error(client, 503, "Service Unavailable", _FULL)
            self._crowd.leave(seat or "")
            return
        try:
            super().handle(listener, client, addr)
        finally:
            self._crowd.leave(seat)

    def converse(self, listener: Any, client: socket.socket, addr: Any) -> None:
        """Serve the requests of a connection, and close it."""
        common = of_connection(client, addr, listener.getsockname(), self.cfg.workers)
        try:
            with patient():
                Connection(self, client, common, self.bounds).serve()
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

    def _has_room(self) -> bool:
        """Return whether one more is served: that which is idle for longest makes room for it."""
        if len(self.pool) < self.worker_connections:
            return True
        if self.idle:
            self.end_idlest()
            sleep(0)
            return True
        return False
