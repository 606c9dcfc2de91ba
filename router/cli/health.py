"""Whether the processes of a node are up, asked over HTTP, and what systemd is told of that.

The service is up when the broker has opened its store and HTTP is answered; a backend of other
machines may still be away. From then on a sign of life follows each answer of the HTTP server to
`/health`, be there a broker or not: one that opens a large log after a crash, or waits for a full
disk, is the supervisor's to keep, and systemd ending both would only begin that again. An answer
that does not come is asked for again soon, so that a machine that is slow for moments is no reason.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from router.backends.opening import scheme
from router.process import node_socket
from router.process.systemd import Notifier
from router.settings import Settings

POLL_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0
"""Time to the next try when the HTTP server does not answer."""
ANSWER_SECONDS: Final = 1.0
_DIALLED: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound


@dataclass(eq=False)
class Herald:
    """Tells systemd when the service is up, and then that it lives.

    `is_up` returns whether all of the service is up, `lives` whether HTTP is answered.
    """

    _notifier: Notifier
    _is_up: Callable[[], bool]
    _lives: Callable[[], bool]
    _clock: Callable[[], float] = time.monotonic
    _up: bool = field(default=False, init=False)
    _due: float = field(default=0.0, init=False)

    def watch(self, announce: Callable[[], float]) -> float:
        """Announce, tell what there is to tell, and return when to call again."""
        wait = announce()
        if not self._notifier.listened_to:
            return wait
        now = self._clock()
        if not self._up:
            self._up = self._is_up()
            if not self._up:
                return min(wait, POLL_SECONDS)
            self._notifier.ready()
        if (interval := self._notifier.interval) is None:
            return wait
        if now >= self._due:
            if lives := self._lives():
                self._notifier.alive()
            self._due = now + (interval if lives else min(interval, RETRY_SECONDS))
        return min(wait, max(0.0, self._due - now))


def is_up(settings: Settings, broker_ready: Callable[[], bool]) -> bool:
    """Return whether our broker has opened its store, and HTTP is answered, whatever the answer."""
    if has_broker(settings) and not (
        broker_ready() and node_socket.answers(Path(settings.text("data.dir")))
    ):
        return False
    return lives(settings)


def lives(settings: Settings) -> bool:
    """Return whether HTTP is answered, whatever the answer."""
    secure = scheme_of(settings) == "https"
    return bool(http_status(http_address(settings), secure, "/health"))


def http_address(settings: Settings) -> tuple[str, int]:
    """Return where the HTTP server of these settings is dialled."""
    host = settings.text("server.host")
    return _DIALLED.get(host, host), settings.number("server.port")


def answers(address: tuple[str, int], secure: bool, path: str = "/ready") -> bool:
    """Return whether HTTP is answered there, and the broker behind it answers too."""
    return http_status(address, secure, path) == b"200"


def http_status(address: tuple[str, int], secure: bool, path: str) -> bytes:
    """Return the status that a GET of the path is answered with, empty: there is no answer.

    The host is one that `Hosts` takes whatever the settings are.
    """
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    try:
        with socket.create_connection(address, timeout=ANSWER_SECONDS) as plain:
            client = _unverified().wrap_socket(plain) if secure else plain
            with client:
                client.sendall(request)
                return b"".join(client.recv(64).split(b" ")[1:2])
    except OSError:
        return b""


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def scheme_of(settings: Settings) -> str:
    """Return what is spoken on server.port."""
    alone = settings.text("server.cert") and not settings.number("server.tls_port")
    return "https" if alone else "http"


def has_broker(settings: Settings) -> bool:
    """Return whether the node has a broker process: it has none with the backend in memory."""
    return scheme(settings) != "memory"
