"""Owns a connection to a NATS server: requests whose replies are waited for, many at a time."""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

import orjson

from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    NotAllowedError,
    SettingError,
)
from router.errors.quoting import failure_text, quoted
from router.settings import without_password

PORT: Final = 4222
SCHEMES: Final = frozenset({"nats", "tls"})
MAX_REPLY_BYTES: Final = 64 << 20
MAX_LINE_BYTES: Final = 1 << 20
"""INFO of a large cluster names all its servers."""
_RECEIVED_BYTES: Final = 256 << 10
_NO_RESPONDERS: Final = b"NATS/1.0 503"


class NatsUrl:
    """A server's address and the credentials of its URL; raises SettingError."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        shown = quoted(without_password(url))
        try:
            self.address = (parts.hostname or "", parts.port or PORT)
        except ValueError:
            raise SettingError(f"{shown}: the port is no number") from None
        if parts.scheme not in SCHEMES or not parts.hostname or parts.path.strip("/"):
            raise SettingError(f"{shown} is no address of a NATS server: nats://host:{PORT}")
        self.secure = parts.scheme == "tls"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        self.credentials = {"user": user, "pass": password} if password else {"auth_token": user}

    @property
    def name(self) -> str:
        """Return the server's name for people."""
        return f"the NATS server at {self.address[0]}:{self.address[1]}"


class NatsConnection:
    """A connection that is made with the first request, and again after a failure.

    For one thread at a time.
    """

    def __init__(self, url: NatsUrl) -> None:
        self._url = url
        self._socket: socket.socket | None = None
        self._data = bytearray()
        self._inbox = ""
        self._sent = 0
        self._deadline = 0.0

    def requests(self, calls: Sequence[tuple[str, bytes]], timeout: float) -> list[bytes]:
        """Return the replies to requests, subjects with payloads, in their order.

        Raises BackendUnavailableError, BackendTimeoutError, NotAllowedError.
        """
        self._deadline = time.monotonic() + timeout
        try:
            if self._socket is None:
                self._connect()
            first = self._sent
            self._sent += len(calls)
            self._send(
                b"".join(
                    b"PUB %b %b.%d %d\r\n%b\r\n"
                    % (subject.encode(), self._inbox.encode(), number, len(payload), payload)
                    for number, (subject, payload) in enumerate(calls, first)
                )
            )
            replies: dict[int, bytes] = {}
            while len(replies) < len(calls):
                number, payload = self._message()
                if number >= first:
                    replies[number] = payload
            return [replies[number] for number in sorted(replies)]
        except TimeoutError:
            self.close()
            raise BackendTimeoutError(f"{self._url.name} did not answer in time") from None
        except (OSError, ValueError) as error:
            self.close()
            raise BackendUnavailableError(f"{self._url.name}: {failure_text(error)}") from error
        except (BackendUnavailableError, NotAllowedError):
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        found, self._socket = self._socket, None
        self._data.clear()
        if found is not None:
            found.close()

    def _connect(self) -> None:
        url = self._url
        self._socket = socket.create_connection(url.address, self._left())
        info = orjson.loads(self._line().removeprefix(b"INFO "))
        if url.secure or info.get("tls_required"):
            context = ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=url.address[0])
        options = {
            **{name: text for name, text in url.credentials.items() if text},
            **{"verbose": False, "pedantic": False, "headers": True, "no_responders": True},
            **{"name": "router copy", "lang": "python", "version": "1", "protocol": 1},
        }
        self._inbox, self._sent = f"_INBOX.{secrets.token_hex(11)}", 0
        hello = b"CONNECT %b\r\nSUB %b.* 1\r\nPING\r\n"
        self._send(hello % (orjson.dumps(options), self._inbox.encode()))
        while self._line() != b"PONG":
            pass

    def _message(self) -> tuple[int, bytes]:
        """Return the next reply, with the number of its request."""
        while True:
            words = self._line().split()
            if words and words[0] in {b"MSG", b"HMSG"}:
                break
        size = int(words[-1])
        if not 0 <= size <= MAX_REPLY_BYTES:
            raise ValueError(f"a reply of {size} bytes")
        body = self._take(size + 2)[:size]
        if words[0] == b"HMSG":
            if body.startswith(_NO_RESPONDERS):
                raise NotAllowedError(f"{self._url.name} serves no JetStream to this user")
            body = body[int(words[-2]) :]
        return int(words[1].rpartition(b".")[2]), body

    def _line(self) -> bytes:
        """Return the next line that is no PING and no error."""
        while True:
            while (end := self._data.find(b"\r\n")) < 0:
                if len(self._data) > MAX_LINE_BYTES:
                    raise ValueError("it does not speak NATS")
                self._receive()
            line = self._take(end + 2)[:end]
            if line == b"PING":
                self._send(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise NotAllowedError(f"{self._url.name}: {line[5:].decode(errors='replace')}")
            else:
                return line

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._receive()
        found = bytes(self._data[:size])
        del self._data[:size]
        return found

    def _receive(self) -> None:
        assert self._socket is not None
        self._socket.settimeout(self._left())
        found = self._socket.recv(_RECEIVED_BYTES)
        if not found:
            raise OSError("the connection was closed")
        self._data += found

    def _send(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.settimeout(self._left())
        self._socket.sendall(data)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
