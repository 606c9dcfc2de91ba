"""Writing with an end: an answer that its client does not take is given up; and how to part.

Nothing here knows whether a greenlet or a thread writes.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from router.web.worker.bounds import LINGER, LINGER_BYTES, SLOWEST

STEP: Final = 64 * 1024

SHORT: Final = 64 * 1024
"""A body up to here leaves with its head, joined: that copies it."""


def write(client: Any, data: bytes) -> None:
    """Send all of it; raise TimeoutError when nothing goes for the socket's timeout.

    The same for a client that takes less than SLOWEST bytes a second all the while: a timeout for
    each step alone would let one hold its answer for good.
    """
    sent = client.send(data)
    if sent == len(data):
        return
    rest = memoryview(data)[sent:]
    until = monotonic() + (client.gettimeout() or 0) + len(rest) / SLOWEST
    while rest:
        rest = rest[client.send(rest) :]
        if rest and client.gettimeout() and monotonic() > until:
            raise TimeoutError("the client is too slow")


def linger(client: Any) -> None:
    """Let the client read its answer: closing with input unread would reset the connection."""
    left, until = LINGER_BYTES, monotonic() + LINGER
    # The socket's own: TLS would give its session up with it, and what is read be no text.
    shutdown = socket.socket.shutdown
    with suppress(OSError):
        shutdown(client, socket.SHUT_WR)
        while left > 0 and (rest := until - monotonic()) > 0:
            client.settimeout(rest)
            data = client.recv(STEP)
            if not data:
                break
            left -= len(data)
    with suppress(OSError):
        shutdown(client, socket.SHUT_RDWR)
