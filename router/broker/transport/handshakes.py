"""The TLS handshakes of a listener: each has a time limit, and their number is bounded.

Connections are accepted here, one by one, and not by the event loop's own server: that would
hold any number of handshakes that are begun and never ended, and could not use a renewed
certificate. Of more than MAX_HANDSHAKES at once the oldest is dropped, because an honest one takes
milliseconds.

A protocol whose server speaks first in clear, and then takes the handshake, has a `greeting`. A
client that begins TLS within GREETING_DELAY_SECONDS gets its greeting over TLS instead.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from router.access.certificates import Certificates
from router.errors import SettingError

HANDSHAKE_SECONDS: Final = 5.0
MAX_HANDSHAKES: Final = 200
GREETING_DELAY_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 0.5
"""After a failure such as having no descriptors left."""

_log = structlog.get_logger(__name__)


class Greeting(NamedTuple):
    """What a client was sent in clear, and what its session knows of that."""

    data: bytes
    known: Any


class Handshakes:
    """Accepts clients on a listening socket; each that completes TLS gets its own `protocol`.

    `name` is that of the listener's protocol, for the log.
    """

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        certificates: Certificates,
        protocol: Callable[..., asyncio.Protocol],
        greeting: Callable[[socket.socket], Greeting] | None = None,
    ) -> None:
        self._name = name
        self._socket = sock
        self._certificates = certificates
        self._protocol = protocol
        self._greeting = greeting
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting, and drop the handshakes under way."""
        self._accepting.cancel()
        for task in list(self._under_way):
            task.cancel()
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                _log.error("cannot accept a connection", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            task = loop.create_task(self._shake_hands(client))
            self._under_way[task] = None
            task.add_done_callback(lambda ended: self._under_way.pop(ended, None))
            if len(self._under_way) > MAX_HANDSHAKES:
                next(iter(self._under_way)).cancel()

    async def _shake_hands(self, client: socket.socket) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            protocol = self._protocol
            if self._greeting is not None and not await _speaks(client):
                greeting = self._greeting(client)
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await asyncio.get_running_loop().sock_sendall(client, greeting.data)
                protocol = partial(protocol, greeting=greeting)
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                client,
                ssl=self._certificates.context(),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=HANDSHAKE_SECONDS,
            )
        except SettingError as error:
            _log.error("no TLS: the certificate does not load", why=str(error))
            client.close()
        except OSError as error:  # of which TLS's own failures are a kind
            _log.info("handshake-failed", protocol=self._name, reason=str(error))
            client.close()
        except BaseException:
            client.close()
            raise


async def _speaks(client: socket.socket) -> bool:
    """Return whether a client sends something before it is sent anything."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(client, readable.set)
    try:
        async with asyncio.timeout(GREETING_DELAY_SECONDS):
            await readable.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(client)
    return True
