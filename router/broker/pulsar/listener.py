"""The listeners for Pulsar clients: sockets in, connections out, and how they end."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from router.access.certificates import Certificates
from router.broker.admin import Admin
from router.broker.blacklist import Blacklist
from router.broker.gate import Gate
from router.broker.pulsar.connection import Connection
from router.broker.pulsar.context import Context, LeaseTable, ListenerOptions, Messages
from router.broker.pulsar.handshakes import Handshakes

LOOKS_PER_PING: Final = 4


class PulsarListener:
    """Serves the Pulsar protocol on any number of bound, listening sockets."""

    def __init__(
        self,
        messages: Messages,
        admin: Admin,
        leases: LeaseTable,
        options: ListenerOptions,
        gate: Gate | None = None,
        blacklist: Blacklist | None = None,
    ) -> None:
        self._context = Context(messages, admin, leases, options, gate, blacklist)
        self._servers: list[asyncio.Server | Handshakes] = []
        self._looking: asyncio.Task[None] | None = None
        admin.watch("router_broker_connections", lambda: self.connections)
        if blacklist is not None:
            blacklist.watch(self._end_listed)

    @property
    def connections(self) -> int:
        """Return how many clients are connected."""
        return len(self._context.connections)

    async def serve_unix(self, sock: socket.socket) -> None:
        """Serve a listening unix socket from now on."""
        loop = asyncio.get_running_loop()
        self._serve(await loop.create_unix_server(self._connection, sock=sock))

    async def serve_tcp(self, sock: socket.socket) -> None:
        """Serve a listening TCP socket from now on."""
        loop = asyncio.get_running_loop()
        self._serve(await loop.create_server(self._connection, sock=sock))

    def serve_tls(self, sock: socket.socket, certificates: Certificates) -> None:
        """Serve a listening TCP socket from now on, to clients that speak TLS."""
        self._serve(Handshakes(sock, certificates, self._connection))

    async def drain(self) -> None:
        """Accept nobody and read nothing any more; return when all that was read is answered."""
        self._stop_accepting()
        connections = list(self._context.connections)
        for connection in connections:
            connection.hold_reading("draining")
        await self._context.messages.settled()
        for connection in connections:
            await connection.settled()

    async def close(self) -> None:
        """Close all connections."""
        self._stop_accepting()
        if self._looking is not None:
            self._looking.cancel()
        for connection in list(self._context.connections):
            connection.close()
        # One turn for the transports to take note.
        await asyncio.sleep(0)

    def _connection(self) -> Connection:
        return Connection(self._context)

    def _serve(self, server: asyncio.Server | Handshakes) -> None:
        self._servers.append(server)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    def _end_listed(self) -> None:
        """End the connections of clients that are on the blacklist by now."""
        for connection in list(self._context.connections):
            connection.who.check_address()

    def _stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._context.options.ping / LOOKS_PER_PING)
            now = loop.time()
            for connection in list(self._context.connections):
                connection.look(now)
