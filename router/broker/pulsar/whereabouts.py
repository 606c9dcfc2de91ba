"""Where the two ends of a connection are: for people, for lookups, for rations, and for trust."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from socket import AF_UNIX, SO_PEERCRED, SOL_SOCKET
from struct import Struct
from typing import Final

# Process, user and group at the other end of a unix socket.
_CREDENTIALS: Final = Struct("3i")


def whereabouts(transport: asyncio.Transport) -> tuple[str, str, bool]:
    """Return who a client is to people, its address, and whether that is this machine.

    On a unix socket it has no address, and its process is named.
    """
    address = transport.get_extra_info("peername")
    if isinstance(address, tuple):
        host = str(address[0])
        return f"{host}:{address[1]}", host, ip_address(host.partition("%")[0]).is_loopback
    connected = transport.get_extra_info("socket")
    if connected.family != AF_UNIX:
        # It left already, so that nobody can say where it was; what it sent may still be here.
        return "somebody who left", "unknown", False
    credentials = connected.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size)
    return f"pid {_CREDENTIALS.unpack(credentials)[0]}", "", True


def service_url(transport: asyncio.Transport, *, secure: bool) -> str:
    """Return where a client reached the broker."""
    address = transport.get_extra_info("sockname")
    if not isinstance(address, tuple):
        return "pulsar://localhost:6650"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{'pulsar+ssl' if secure else 'pulsar'}://{host}:{address[1]}"
