"""The bytes of one connection: what came and was not read yet, and writing with an end."""

from __future__ import annotations

from typing import Any, Final

from router.web.worker.writing import STEP, write

LARGE: Final = 1024 * 1024


class Wire:
    """A socket, and what was received ahead of need: at most one reading of STEP bytes."""

    __slots__ = ("ahead", "socket")

    def __init__(self, client: Any) -> None:
        self.socket = client
        self.ahead = b""

    def more(self) -> bool:
        """Receive once, behind what is there; return False at the end of what the client sends.

        Raises TimeoutError after the socket's timeout, OSError when the connection is lost.
        """
        data = self.socket.recv(STEP)
        self.ahead = self.ahead + data if self.ahead else data
        return bool(data)

    def take(self, most: int) -> bytes:
        """Return up to so many bytes; none at the end of what the client sends."""
        ahead = self.ahead
        if ahead:
            self.ahead = ahead[most:]
            return ahead[:most] if self.ahead else ahead
        data: bytes = self.socket.recv(min(most, LARGE))
        return data

    def write(self, data: bytes) -> None:
        """Send all of it; raise TimeoutError for a client that does not take it."""
        write(self.socket, data)
