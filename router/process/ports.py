"""Ports of loopback for servers that are started by programs, each handed out once.

A port is reserved by an abstract unix socket with the port in its name: the kernel lets one process
on the machine bind a name, and frees it when that process ends, however it ends. So two programs
never get the same port, and a server that is restarted finds its port free. The ports lie below
those that the kernel gives to outgoing connections: a client that reconnects to a server that is
down cannot take the server's port, or connect to itself.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

FIRST_PORT: Final = 10_000
MAX_ATTEMPTS: Final = 10_000


def reserve_port() -> tuple[int, socket.socket]:
    """Return a free port, and what reserves it until it is closed; raise OSError."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    for _ in range(MAX_ATTEMPTS):
        port = random.randrange(FIRST_PORT, max(ephemeral, FIRST_PORT + 1_000))  # noqa: S311
        if reservation := _reserve(port):
            return port, reservation
    raise OSError(f"no free port from {FIRST_PORT} on")


def _reserve(port: int) -> socket.socket | None:
    """Return what reserves the port, None: it is reserved or in use."""
    reservation = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        reservation.bind(f"\0dragoman-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return reservation
    reservation.close()
    return None
