"""A client of NATS that sends what it is told, right or wrong, and shows what comes back."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any, Final, Self

SECONDS: Final = 30.0
QUIET: Final = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}


class RawNats:
    """One connection; `info` is what the server said first."""

    def __init__(
        self, address: str, tls: ssl.SSLContext | None = None, first: bool = False
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = b""
        self._closed = False
        if tls is not None and first:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.info: dict[str, Any] = json.loads(self.line().removeprefix("INFO "))
        if tls is not None and not first:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def connect(self, **options: Any) -> Self:
        """Send CONNECT and wait for the answer to a PING behind it."""
        self.send(connect(**options), "PING")
        assert self.line() == "PONG"
        return self

    def send(self, *lines: str | bytes) -> None:
        """Send lines, each with its end."""
        parts = [line if isinstance(line, bytes) else line.encode() for line in lines]
        self.socket.sendall(b"".join(part + b"\r\n" for part in parts))

    def line(self, answer_pings: bool = True) -> str:
        """Return the next line without its end, "" when the server has closed."""
        while (line := self._line()) == "PING" and answer_pings:
            self.send("PONG")
        return line

    def _line(self) -> str:
        while b"\r\n" not in self._held:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                self._closed = True
                return ""
            self._held += data
        line, _, self._held = self._held.partition(b"\r\n")
        return line.decode()

    def lines(self, last: str = "PONG") -> list[str]:
        """Return what comes up to a line, without that; what came if the server closes."""
        found: list[str] = []
        while (line := self.line()) != last:
            if self._closed:
                return [*found, "closed"]
            found.append(line)
        return found

    def ask(self, *lines: str | bytes) -> list[str]:
        """Send lines and a PING, and return what is answered before the PONG."""
        self.send(*lines, "PING")
        return self.lines()


def connect(**options: Any) -> str:
    """Return CONNECT with options over those of a quiet client."""
    return "CONNECT " + json.dumps(QUIET | options)
