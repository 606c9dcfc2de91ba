"""Ports of loopback for servers that tests start, each handed out once.

A port is reserved by an abstract unix socket with the port in its name: the kernel lets one process
on the machine bind a name, and frees it when that process ends, however it ends. So two test runs,
or two workers of one, never hand out the same port, and a server that a test restarts finds its
port free. The ports lie below those that the kernel gives to outgoing connections: a client that
reconnects to a server that is down cannot take the server's port, or connect to itself.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

FIRST_PORT = 10_000
MAX_ATTEMPTS = 10_000


def free_port() -> int:
    """Return a port that is free, and reserved until this process ends."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(MAX_ATTEMPTS):
        port = random.randrange(FIRST_PORT, max(ephemeral, FIRST_PORT + 1_000))
        if _reserve(port):
            return port
    raise AssertionError(f"no free port from {FIRST_PORT} on")


def _reserve(port: int) -> bool:
    """Return whether the port is now this process's, and nothing listens on it."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0message-router-tests-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()  # open until this process ends
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
