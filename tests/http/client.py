"""What a server sends, as h11 reads it: the judge that is neither ours nor gunicorn's."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import h11

PATIENCE = 30.0


@dataclass
class Answer:
    """One answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    before: list[int] = field(default_factory=list)

    @property
    def closing(self) -> bool:
        """Whether it says that the connection ends with it."""
        return self.headers.get("connection") == "close"


class Exchange:
    """A connection on which bytes go out, and answers come back."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), PATIENCE)
        self._behind = b""
        self.reset = False

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send what the server still takes."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.reset = True

    def answered(self, seconds: float = 0.0) -> bool:
        """Return whether the server has sent something, or closed, once so long has passed."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def finish(self) -> None:
        """Say that there is no more to come."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.reset = True

    def answer(self, method: str = "GET") -> Answer | None:
        """Return the next answer, None: the connection ended; h11 raises for what is none."""
        reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        reader.send(h11.Request(method=method, target="/", headers=[("Host", "localhost")]))
        reader.send(h11.EndOfMessage())
        if not self._behind:
            self._behind = self._receive()
        if not self._behind:
            return None
        reader.receive_data(self._behind)
        before: list[int] = []
        found: Answer | None = None
        while True:
            event = reader.next_event()
            if event is h11.NEED_DATA:
                reader.receive_data(self._receive())
            elif isinstance(event, h11.InformationalResponse):
                before.append(event.status_code)
            elif isinstance(event, h11.Response):
                headers = {n.decode(): v.decode("latin-1") for n, v in event.headers}
                found = Answer(event.status_code, headers, before=before)
            elif isinstance(event, h11.Data):
                assert found is not None
                found.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._behind = reader.trailing_data[0]
                return found
            else:
                raise AssertionError(f"an answer that breaks off: {event!r}")

    def answers(self, methods: Sequence[str] = ()) -> list[Answer]:
        """Return all answers until the connection ends."""
        found: list[Answer] = []
        while True:
            answer = self.answer(methods[len(found)] if len(found) < len(methods) else "GET")
            if answer is None:
                return found
            found.append(answer)

    def ended(self) -> bool:
        """Return whether the connection ended, and nothing came before that."""
        return not self._behind and not self._receive()

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(65_536)
        except ConnectionResetError:
            self.reset = True
            return b""


def talk(port: int, data: bytes, methods: Sequence[str] = (), *, finish: bool) -> list[Answer]:
    """Send all of it, and return the answers until the server ends the connection."""
    with Exchange(port) as exchange:
        exchange.send(data)
        if finish:
            exchange.finish()
        return exchange.answers(methods)
