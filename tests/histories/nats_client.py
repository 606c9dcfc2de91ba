"""One NATS connection without retries: publishes to JetStream, and reads of its messages."""

from __future__ import annotations

import json
import secrets
import socket
from base64 import b64decode
from io import BufferedReader
from typing import Any, Final

from tests.histories.recording import Output, RefusedError, UnknownOutcomeError

SECONDS: Final = 15.0
WRONG_LAST_SEQUENCE: Final = 10071
NOT_FOUND: Final = 10037


class NatsConnection:
    """Connects when it is needed; after a failure the next call connects again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._lines: BufferedReader | None = None
        # Of its own: other connections get what is sent to theirs.
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._calls = 0
        self._headers: list[tuple[str, str]] = []

    def publish(self, subject: str, value: str, headers: dict[str, str] | None = None) -> Output:
        """Publish and return `revision`, or the status `conflict` and the revision that is."""
        head, body = self._request(subject, value.encode(), headers or {})
        if head:
            raise RefusedError(head)
        return acknowledgement(json.loads(body))

    def call(self, subject: str, body: object) -> dict[str, Any]:
        """Return the answer of JetStream's API, an object."""
        head, answer = self._request(f"$JS.API.{subject}", json.dumps(body).encode(), {})
        if head:
            raise UnknownOutcomeError(head)
        return dict(json.loads(answer))

    def last(self, stream: str, subject: str) -> Output:
        """Read the newest message of a subject with a direct get."""
        head, body = self._request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", {})
        if head.startswith("404"):
            return {"status": "absent"}
        if head:
            raise UnknownOutcomeError(head)
        fields = dict(self._headers)
        return message(int(fields["Nats-Sequence"]), fields.get("KV-Operation", ""), body)

    def close(self) -> None:
        """End the connection."""
        if self._lines is not None:
            self._lines.close()
        if self._socket is not None:
            self._socket.close()
        self._socket = self._lines = None

    def _request(self, subject: str, data: bytes, headers: dict[str, str]) -> tuple[str, bytes]:
        """Return the status of a reply, empty without one, and its payload."""
        if self._socket is None:
            self._connect()
        try:
            return self._answer(subject, data, headers)
        except (OSError, ValueError) as error:
            self.close()
            raise UnknownOutcomeError(str(error)) from error

    def _connect(self) -> None:
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port), SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines = self._socket.makefile("rb")
            if not self._lines.readline().startswith(b"INFO"):
                raise ConnectionError("no INFO")
            self._socket.sendall(
                b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
                b"SUB %b.* 1\r\nPING\r\n" % self._inbox.encode()
            )
            if self._lines.readline() != b"PONG\r\n":
                raise ConnectionError("no PONG")
        except OSError as error:
            self.close()
            raise RefusedError(str(error)) from error

    def _answer(self, subject: str, data: bytes, headers: dict[str, str]) -> tuple[str, bytes]:
        assert self._socket is not None
        self._calls += 1
        inbox = f"{self._inbox}.{self._calls}"
        if headers:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = f"NATS/1.0\r\n{lines}\r\n".encode()
            sizes = f"{len(head)} {len(head) + len(data)}"
            sent = f"HPUB {subject} {inbox} {sizes}\r\n".encode() + head + data
        else:
            sent = f"PUB {subject} {inbox} {len(data)}\r\n".encode() + data
        self._socket.sendall(sent + b"\r\n")
        return self._reply(inbox.encode())

    def _reply(self, inbox: bytes) -> tuple[str, bytes]:
        assert self._lines is not None
        assert self._socket is not None
        while True:
            words = self._lines.readline().split()
            if not words or words[0] == b"-ERR":
                raise ConnectionError(str(words))
            if words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
            elif words[0] in (b"MSG", b"HMSG"):
                payload = self._lines.read(int(words[-1]) + 2)[:-2]
                if words[1] == inbox:
                    return self._split(payload, int(words[-2]) if words[0] == b"HMSG" else 0)

    def _split(self, payload: bytes, size: int) -> tuple[str, bytes]:
        first, *lines = payload[:size].decode().splitlines() or [""]
        pairs = (line.partition(": ") for line in lines if line)
        self._headers = [(name, value) for name, _, value in pairs]
        return first.removeprefix("NATS/1.0").strip(), payload[size:]


def acknowledgement(found: dict[str, Any]) -> Output:
    """Return the output of a publish from the answer of JetStream."""
    error = found.get("error")
    if error is None:
        return {"revision": int(found["seq"])}
    if error["err_code"] == WRONG_LAST_SEQUENCE:
        return {"status": "conflict", "revision": int(error["description"].rpartition(" ")[2])}
    raise UnknownOutcomeError(str(error))


def message_of(found: dict[str, Any]) -> Output:
    """Return the output of a read from the answer of `STREAM.MSG.GET`."""
    error = found.get("error")
    if error is None:
        kept = found["message"]
        headers = b64decode(kept.get("hdrs", "")).decode()
        operation = "DEL" if "KV-Operation: DEL" in headers else ""
        return message(kept["seq"], operation, b64decode(kept.get("data", "")))
    if error["err_code"] == NOT_FOUND:
        return {"status": "absent"}
    raise UnknownOutcomeError(str(error))


def message(sequence: int, operation: str, value: bytes) -> Output:
    """Return the output of a read of a message."""
    if operation:
        return {"status": "deleted", "revision": sequence}
    return {"revision": sequence, "value": value.decode()}
