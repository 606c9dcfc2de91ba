"""Two applications behind the worker's connections: one prepares requests, one serves in steps."""

from __future__ import annotations

import json
import re
import socket
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent

from router.access.addresses import BLACKLIST_RECORDS
from router.backends import Batch, Receipt
from router.errors import RouterError
from router.metrics import Drained
from router.model import TopicName
from router.web.worker.bounds import WorkerBounds
from router.web.worker.connection import HttpConnection
from router.web.worker.request import ConnectionEnds, KnownHeads
from router.web.worker.suspended import GreenletPool, SuspendedConnection
from tests.unit.web.applications import HASHES, Site

TIMEOUT = 20.0
_OWN = re.compile(
    rb'(Date: |transactionId: |"transaction[iI]d":"|"serverTimeMs":)[^\r"}]*?(?=[\r"}]|,")'
)
_LENGTH = re.compile(rb"(Content-Length: )[0-9]+")
_RIGHTS = "anna * publish subscribe\nbert t publish\n"
COUNTED = (
    "router_http_requests_total",
    "router_http_request_seconds_count",
    "router_published_messages_total",
    "router_published_bytes_total",
    "router_publish_refused_total",
    "router_polls_total",
    "router_delivered_messages_total",
    "router_delivered_bytes_total",
)


class Log:
    """Keeps what a worker logs as failures of its own."""

    access_log_enabled = False

    def __init__(self) -> None:
        self.failures: list[str] = []

    def debug(self, line: str, *args: object) -> None:
        """Take a line that says nothing wrong."""

    def exception(self, line: str, *args: object) -> None:
        """Take a line that must not be."""
        self.failures.append(line % args)


class House:
    """An application and the connections of its one worker; `prepares`: as the worker does it."""

    def __init__(self, *, prepares: bool, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.users = Path(self._folder.name, "users")
        self.rights = Path(self._folder.name, "rights")
        named = {"auth_users": str(self.users), "auth_permissions": str(self.rights)}
        self.guarded = settings.pop("guarded", "") != ""
        self.reset_files()
        self.site = Site({**settings, **(named if self.guarded else {})})
        self._stored: list[Batch] = []
        self._totals: defaultdict[Any, float] = defaultdict(float)
        self._record()
        self.log = Log()
        self.heads = KnownHeads()
        self.greenlets = GreenletPool()
        self.wsgi = self.site.app
        self.alive, self.nr, self.max_requests = True, 0, 1 << 60
        self.idle: dict[Any, float] = {}
        self._prepares = prepares
        self.clients: list[socket.socket] = []
        self.served: list[HttpConnection] = []
        self._suspended: list[SuspendedConnection] = []
        self.begun = 0

    def _record(self) -> None:
        """Keep what the store has stored, and what the application drains of its metrics."""
        backend, app = self.site.backend, self.site.app
        metrics: Any = app.__dict__["_metrics"]
        publish, drain = backend.publish, metrics.drain

        def published(batch: Batch, timeout: float) -> Receipt:
            assert batch.messages
            receipt = publish(batch, timeout)
            self._stored.append(batch)
            return receipt

        def drained() -> Drained:
            found: Drained = drain()
            for name, labels, value in found.counters:
                if name in COUNTED:
                    self._totals[name, labels] += value
            return found

        backend.publish = published  # type: ignore[method-assign]
        metrics.drain = drained

    def reset_files(self) -> None:
        """Write users and permissions as they are in the beginning."""
        self.users.write_text("".join(f"{name}:{HASHES['argon2']}\n" for name in ("anna", "bert")))
        self.rights.write_text(_RIGHTS)

    def connect(self, address: str) -> None:
        """Begin a connection of a client with this address."""
        ours, theirs = socket.socketpair()
        theirs.settimeout(TIMEOUT)
        local = "127.0.0.1", 3904
        served = HttpConnection(self, ours, ConnectionEnds((address, 1), local, 1), WorkerBounds())
        connection = SuspendedConnection(self, ours, "", served.serve(), served)
        if self._prepares:
            served.suspended = connection
        self.idle[ours] = 0
        self.clients.append(theirs)
        self.served.append(served)
        self._suspended.append(connection)
        connection.resume()

    def release(self, connection: SuspendedConnection) -> None:
        """Close a connection that has ended."""
        self.idle.pop(connection.client, None)
        connection.client.close()

    def exchange(self, asked: dict[int, bytes]) -> dict[int, bytes]:
        """Send a request on each of some connections at once; return what is answered."""
        for at, request in asked.items():
            self.clients[at].sendall(request)
        answers = {at: whole_answer(self.clients[at]) for at in asked}
        gevent.sleep(0)
        return answers

    def reload(self) -> None:
        """Have files and blacklist read again."""
        self.site.app.extensions["router.reload"]()

    def ban(self, address: str, *, banned: bool) -> None:
        """Put an address on the blacklist, or take it off."""
        registry = self.site.node.registry
        if banned:
            registry.put(BLACKLIST_RECORDS, address, b"{}", None, TIMEOUT)
        else:
            registry.delete(BLACKLIST_RECORDS, address, TIMEOUT)
        self.reload()

    def remove(self, topic: str) -> None:
        """Delete a topic, if it is there."""
        with suppress(RouterError):
            self.site.backend.delete_topic(TopicName.parse(topic), TIMEOUT)

    def stored(self) -> list[str]:
        """Return the messages that were stored since the last call, by their text.

        Requests that came at once have no order, and those without a key no partition of their own.
        """
        found = [
            repr((batch.topic, batch.partition if message.key else None, message))
            for batch in self._stored
            for message in batch.messages
        ]
        self._stored.clear()
        return sorted(found)

    def reserved(self) -> int:
        """Return the memory that publishes hold."""
        return self.site.body_reader()._budget.used()

    def counted(self) -> dict[Any, float]:
        """Return what was counted since the last call."""
        app: Any = self.site.app
        app._metrics.drain()
        found = dict(self._totals)
        self._totals.clear()
        return found

    def disconnect(self) -> None:
        """End all connections."""
        for client in self.clients:
            client.close()
        with gevent.Timeout(TIMEOUT):
            while self.idle:
                gevent.sleep(0.001)
        self.clients.clear()
        self.served.clear()
        self._suspended.clear()

    def close(self) -> None:
        """Put everything away."""
        self.disconnect()
        self.site.close()
        self._folder.cleanup()


def whole_answer(client: socket.socket) -> bytes:
    """Return the next answer: its head and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(client)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += received(client)
    assert len(body) == length
    return head + b"\r\n\r\n" + body


def received(client: socket.socket) -> bytes:
    """Return what comes next, which is not the end."""
    data = client.recv(65536)
    assert data, "the connection has ended"
    return data


def comparable(answer: bytes) -> tuple[list[bytes], bytes]:
    """Return an answer without what differs from request to request: lines of the head, body."""
    head, _, body = _OWN.sub(rb"\1*", answer).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    return lines, body


def comparable_bytes(answers: bytes) -> bytes:
    """Return answers without what differs from request to request."""
    return _LENGTH.sub(rb"\1*", _OWN.sub(rb"\1*", answers))


def count_of(answer: bytes) -> int:
    """Return how many messages an answer says are stored."""
    return int(json.loads(answer.partition(b"\r\n\r\n")[2])["count"])


def poll(path: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return a GET."""
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def request(
    path: str, body: bytes, headers: Iterable[tuple[str, str]] = (), version: str = "1.1"
) -> bytes:
    """Return a POST."""
    lines = [f"POST {path} HTTP/{version}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
