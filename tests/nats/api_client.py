"""A client of the JetStream API without a library: one connection, one request after another."""

from __future__ import annotations

import json
import socket
from typing import Any, Final, Self

SECONDS: Final = 30.0


class ApiClient:
    """Calls `$JS.API` on the NATS listener of an address as `host:port`."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), SECONDS)
        self._lines = self._socket.makefile("rb")
        self._calls = 0
        self._lines.readline()
        self._socket.sendall(
            b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
            b"SUB _INBOX.model.* 1\r\n"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def call(self, subject: str, body: object = None) -> dict[str, Any]:
        """Return the reply to a call; `body` is bytes, or is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self.publish(f"$JS.API.{subject}", data)

    def publish(self, subject: str, data: bytes) -> dict[str, Any]:
        """Return the reply to a message."""
        self._calls += 1
        inbox = f"_INBOX.model.{self._calls}"
        head = f"PUB {subject} {inbox} {len(data)}\r\n"
        self._socket.sendall(head.encode() + data + b"\r\n")
        while True:
            words = self._lines.readline().split()
            if words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
            elif words[0] in (b"MSG", b"HMSG"):
                payload = self._lines.read(int(words[-1]) + 2)[:-2]
                if words[1] == inbox.encode():
                    return dict(json.loads(payload))
            elif words[0] == b"-ERR":
                raise AssertionError(words)
