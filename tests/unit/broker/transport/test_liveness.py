"""How the broker finds out that a client is gone whose protocol has no ping."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvloop

from router.broker.transport.connection import ClientConnection
from router.broker.transport.context import TransportContext, TransportOptions
from router.broker.transport.listener import ProtocolListener
from router.broker.transport.session import NO_FAREWELLS
from router.errors import RouterError


class SilentSession:
    """A session of a protocol without a ping."""

    keep_alive = b""
    farewells = NO_FAREWELLS
    name = "a silent client"

    def __init__(
        self, connection: ClientConnection, opened: asyncio.Future[ClientConnection]
    ) -> None:
        self.frames = self
        self.expected_bytes = 1
        self._connection, self._opened = connection, opened

    def receive(self, data: bytes) -> list[Any]:
        self._opened.set_result(self._connection)
        return []

    def handle(self, frame: Any) -> None:
        raise AssertionError(f"no frame comes: {frame}")

    def frames_handled(self) -> None:
        """Hold nothing."""

    def encode_failure(self, failure: RouterError) -> bytes:
        return str(failure).encode()

    def request_credentials(self) -> None:
        raise AssertionError("there are no credentials")

    def connection_lost(self) -> None:
        """Release nothing."""


def test_the_system_probes_a_client_whose_protocol_has_no_ping() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[ClientConnection] = loop.create_future()
        context = TransportContext(TransportOptions(ping_seconds=30.0))
        listener = ProtocolListener("silent", context, lambda c: SilentSession(c, opened))
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        await listener.serve(sock)
        _reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"x")
        async with asyncio.timeout(20):
            connection = await opened
        served = connection._transport.get_extra_info("socket")
        assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [served.getsockopt(socket.IPPROTO_TCP, one) for one in options] == [30, 10, 3]
        writer.close()
        await listener.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
