"""The sockets of each protocol: bound early, served from start to close, drained at the end."""

from __future__ import annotations

import asyncio
import inspect
import pkgutil
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from router.access.certificates import Certificates
from router.broker.transport.connection import ClientConnection
from router.broker.transport.context import TransportContext
from router.broker.transport.handshakes import Greeting, Handshakes
from router.broker.transport.listening import Endpoint, ListenerSpec, bind, certificates
from router.broker.transport.session import ProtocolSession
from router.settings import Settings

LIVENESS_CHECKS_PER_PING: Final = 4


class ProtocolListener:
    """Serves one protocol on its sockets; `open_session` makes a session for each connection.

    `name` is the protocol's. No other part of a listener depends on the protocol.
    """

    def __init__(
        self,
        name: str,
        context: TransportContext,
        open_session: Callable[[ClientConnection], ProtocolSession],
        greeting: Callable[[socket.socket], Greeting] | None = None,
    ) -> None:
        self.name = name
        self._greeting = greeting
        self._context = context
        self._connections: dict[ClientConnection, None] = {}
        self._protocol = partial(ClientConnection, context, open_session, self._connections, name)
        self._servers: list[asyncio.Server | Handshakes] = []
        self._checking: asyncio.Task[None] | None = None
        if context.blacklist is not None:
            context.blacklist.watch(self._end_blacklisted)

    @property
    def connections(self) -> int:
        """Return how many clients are connected."""
        return len(self._connections)

    def clients(self) -> list[ClientConnection]:
        """Return the clients that are connected."""
        return list(self._connections)

    async def serve(self, sock: socket.socket, certificates: Certificates | None = None) -> None:
        """Serve a listening socket, TCP or unix, from now on; with certificates over TLS."""
        loop = asyncio.get_running_loop()
        server: asyncio.Server | Handshakes
        if certificates is not None:
            server = Handshakes(self.name, sock, certificates, self._protocol, self._greeting)
        elif sock.family == socket.AF_UNIX:
            server = await loop.create_unix_server(self._protocol, sock=sock)
        else:
            server = await loop.create_server(self._protocol, sock=sock)
        self._servers.append(server)
        if self._checking is None:
            self._checking = loop.create_task(self._check_liveness())

    async def drain(self, stored: Callable[[], Awaitable[None]]) -> None:
        """Stop accepting and reading; return when all that was read is answered.

        `stored` returns when all that was appended so far is durable.
        """
        self._stop_accepting()
        connections = list(self._connections)
        for connection in connections:
            connection.hold_reading("draining")
        # Twice: requests that wait for something append later.
        for _ in range(2):
            await stored()
            for connection in connections:
                await connection.settled()

    async def close(self) -> None:
        """Close all connections."""
        self._stop_accepting()
        if self._checking is not None:
            self._checking.cancel()
        for connection in list(self._connections):
            connection.close()
        # One loop iteration for the transports to close.
        await asyncio.sleep(0)

    def _end_blacklisted(self) -> None:
        for connection in list(self._connections):
            connection.identity.check_address()

    def _stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def _check_liveness(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._context.options.ping_seconds / LIVENESS_CHECKS_PER_PING)
            now = loop.time()
            for connection in list(self._connections):
                connection.check_liveness(now)


class Listeners:
    """The listeners of a broker; their ports are bound when this is made.

    Raises SettingError, and ListenError for an address that cannot be listened on.
    """

    def __init__(self, specs: Sequence[ListenerSpec], settings: Settings) -> None:
        self._specs = specs
        self._certificates = certificates(settings)
        self._listeners: list[ProtocolListener] = []
        self._sockets: list[tuple[ListenerSpec, Endpoint, socket.socket]] = []
        for spec in specs:
            for endpoint in spec.endpoints:
                if (address := endpoint.address(settings)) is not None:
                    self._sockets.append((spec, endpoint, bind(address)))

    @property
    def serves_network(self) -> bool:
        """Return whether any client is served besides those of the node's own socket."""
        return bool(self._sockets)

    @property
    def connections(self) -> int:
        """Return how many clients are connected."""
        return sum(listener.connections for listener in self._listeners)

    def clients(self) -> Iterator[tuple[str, ClientConnection]]:
        """Yield the connections with the name of their protocol."""
        for listener in self._listeners:
            for connection in listener.clients():
                yield listener.name, connection

    def connected(self) -> dict[str, int]:
        """Return how many clients of the network each protocol has."""
        return dict(Counter(name for name, one in self.clients() if not one.peer.trusted))

    def urls(self) -> list[str]:
        """Return where clients are served over the network."""
        found = []
        for _, endpoint, sock in self._sockets:
            host, port = sock.getsockname()[:2]
            found.append(f"{endpoint.scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        return found

    async def start(
        self, context: Any, transport: TransportContext, node_socket: socket.socket
    ) -> None:
        """Serve all sockets from now on; `context` is what the protocols' sessions work with."""
        served = []
        for spec in self._specs:
            if not (spec.serves_node or any(of is spec for of, *_ in self._sockets)):
                continue  # a protocol that is not served is not loaded
            open_session = pkgutil.resolve_name(spec.sessions)(context)
            if inspect.isawaitable(open_session):
                open_session = await open_session
            greeting = pkgutil.resolve_name(spec.greeting)(context) if spec.greeting else None
            self._listeners.append(ProtocolListener(spec.name, transport, open_session, greeting))
            served.append((spec, self._listeners[-1]))
        # Clients are served when every protocol has back what it kept: some exclude one another.
        for spec, listener in served:
            if spec.serves_node:
                await listener.serve(node_socket)
            for of, endpoint, sock in self._sockets:
                if of is spec:
                    await listener.serve(sock, self._certificates if endpoint.tls else None)

    async def drain(self, stored: Callable[[], Awaitable[None]]) -> None:
        """Return when all that clients sent is answered; see `ProtocolListener.drain`."""
        await asyncio.gather(*(listener.drain(stored) for listener in self._listeners))

    async def close(self) -> None:
        """Close all listeners and their connections."""
        for listener in self._listeners:
            await listener.close()
