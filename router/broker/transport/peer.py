"""The client's end of a connection: its name, its address, whether it is local, TCP's probes."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from socket import (
    AF_UNIX,
    IPPROTO_TCP,
    SO_KEEPALIVE,
    SO_PEERCRED,
    SOL_SOCKET,
    TCP_KEEPCNT,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
)
from struct import Struct
from typing import Any, Final, NamedTuple

from router.access.certificates import common_name

TCP_PROBES: Final = 3
"""Without an answer to so many of them, within a ping's interval, a machine is gone."""
# Process, user and group at the other end of a unix socket.
_CREDENTIALS: Final = Struct("3i")


class Peer(NamedTuple):
    """A connected client.

    `address` is empty for a client of the node's own unix socket. `local`: the client runs on this
    machine. `certificate` is the common name of its verified certificate, or empty.
    """

    name: str
    address: str
    local: bool
    certificate: str = ""

    @property
    def trusted(self) -> bool:
        """Return whether the client came over the node's own socket, which only its user can."""
        return not self.address

    @classmethod
    def from_transport(cls, transport: asyncio.Transport) -> Peer:
        """Return the peer of a transport; a process on a unix socket is named by its pid."""
        address = transport.get_extra_info("peername")
        certificate = common_name(lambda: transport.get_extra_info("peercert")) or ""
        if isinstance(address, tuple):
            host = str(address[0])
            local = ip_address(host.partition("%")[0]).is_loopback
            return cls(f"{host}:{address[1]}", host, local, certificate)
        connected = transport.get_extra_info("socket")
        if connected.family != AF_UNIX:
            # It left already, so that its address is unknown; what it sent may still arrive.
            return cls("a client that left", "unknown", False, certificate)
        credentials = connected.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size)
        return cls(f"pid {_CREDENTIALS.unpack(credentials)[0]}", "", True)


def probe_by_tcp(sock: Any, ping_seconds: float) -> None:
    """Have the system end the connection of a machine that is gone: no ping will tell."""
    seconds = max(1, round(ping_seconds))
    sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    sock.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, seconds)
    sock.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, max(1, seconds // TCP_PROBES))
    sock.setsockopt(IPPROTO_TCP, TCP_KEEPCNT, TCP_PROBES)
