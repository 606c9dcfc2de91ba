"""Ports of loopback for servers that tests start, each handed out once."""

from __future__ import annotations

from router.process.ports import reserve_port


def free_port() -> int:
    """Return a port that is free, and reserved until this process ends."""
    port, reservation = reserve_port()
    reservation.detach()  # open until this process ends
    return port
