"""Closes the sockets that kafka-python 3.0 leaves to the garbage collector.

It drops the socket of a connection that is refused, or still being made when the client is closed.
The collector's warning would fail whichever test runs then.
"""

from __future__ import annotations

import sys
from typing import Any


def close_lost_sockets() -> None:
    """Have a socket closed whose connection is not made, if kafka-python is loaded."""
    inet: Any = sys.modules.get("kafka.net.inet")
    if inet is None:
        return
    connect = inet.KafkaNetSocket.sock_connect

    async def closing(self: Any, net: Any, sock: Any, *given: Any, **named: Any) -> Any:
        try:
            return await connect(self, net, sock, *given, **named)
        except BaseException:
            sock.close()
            raise

    inet.KafkaNetSocket.sock_connect = closing
