"""The TLS handshakes of a listener: each has its time, and those that do not come keep nobody out.

Connections are accepted here, one by one, and not by the event loop's own server: that would
hold any number of handshakes that were begun and never ended, and could not be given a renewed
certificate. Where MOST are under way the oldest one is let go for a newcomer, for an honest one
takes milliseconds.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import structlog

from router.access.certificates import Certificates
from router.errors import SettingError

SECONDS: Final = 5.0
MOST: Final = 200
# After a failure such as having no descriptors left.
PAUSE: Final = 0.5

_log = structlog.get_logger(__name__)


class Handshakes:
    """Accepts clients on a listening socket; each that speaks TLS becomes a protocol of its own."""

    def __init__(
        self,
        sock: socket.socket,
        certificates: Certificates,
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._socket = sock
        self._certificates = certificates
        self._protocol = protocol
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept nobody any more, and let go of whom nothing is known of yet."""
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
                await asyncio.sleep(PAUSE)
                continue
            task = loop.create_task(self._shake_hands(client))
            self._under_way[task] = None
            task.add_done_callback(self._done)
            if len(self._under_way) > MOST:
                next(iter(self._under_way)).cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)

    async def _shake_hands(self, client: socket.socket) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                client,
                ssl=self._certificates.context(),
                ssl_handshake_timeout=SECONDS,
                ssl_shutdown_timeout=SECONDS,
            )
        except SettingError as error:
            _log.error("no TLS: the certificate does not load", why=str(error))
            client.close()
        except OSError as error:  # of which TLS's own failures are a kind
            _log.info("handshake-failed", reason=str(error))
            client.close()
        except BaseException:
            client.close()
            raise
