"""The application over the memory backend, as the tests of the HTTP side use it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from passlib.context import CryptContext
from werkzeug.test import TestResponse

from router.access.passwords import context
from router.app import create_app
from router.backends import Batch, Receipt
from router.backends.memory import MemoryBackend, MemoryNode
from router.backends.memory.log import MemoryConsumer
from router.errors import RouterError
from router.model import Position, Stored
from router.services.consume import PollServer
from router.settings import load
from router.web.bodies import BodyReader
from tests.processes import wait_until

CHEAP = CryptContext(["argon2"], argon2__time_cost=1, argon2__memory_cost=8, argon2__parallelism=1)
# The password "secret", in every kind of hash that a users file may hold.
HASHES = {
    "argon2": CHEAP.hash("secret"),
    "bcrypt": context().handler("bcrypt").using(rounds=4).hash("secret").replace("$2b$", "$2y$"),
    "apr1": context().handler("apr_md5_crypt").hash("secret"),
}
BOTH = {
    "httpStatusCode",
    "mrErrorCode",
    "errorMessage",
    "helpURL",
    "transactionid",
    "status",
    "mrstatus",
    "message",
}


def header(name: str, password: str) -> str:
    """Return an Authorization header."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Troubled(MemoryBackend):
    """A memory backend whose next publishes, readings or acknowledgements fail."""

    def __init__(self) -> None:
        super().__init__(auto_create=False)
        self.publishing: list[RouterError | None] = []
        self.reading: list[RouterError] = []
        self.opening: list[RouterError] = []
        self.acknowledging: list[RouterError] = []
        self.published: list[Batch] = []
        self.gate: threading.Event | None = None

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        if self.gate is not None:
            assert self.gate.wait(20)
        if self.publishing and (error := self.publishing.pop(0)) is not None:
            raise error
        self.published.append(batch)
        return super().publish(batch, timeout)

    def consume(self, *given: Any, **named: Any) -> MemoryConsumer:
        if self.opening:
            raise self.opening.pop(0)
        consumer = super().consume(*given, **named)
        return _TroubledConsumer(self, consumer)


class _TroubledConsumer(MemoryConsumer):
    __slots__ = ("_failures", "_inner")

    def __init__(self, failures: Troubled, inner: MemoryConsumer) -> None:
        self._failures = failures
        self._inner = inner
        self.partition = inner.partition

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        if self._failures.reading:
            raise self._failures.reading.pop(0)
        return self._inner.receive(limit, max_bytes, timeout)

    def acknowledge(self, upto: Position, timeout: float) -> None:
        if self._failures.acknowledging:
            raise self._failures.acknowledging.pop(0)
        self._inner.acknowledge(upto, timeout)

    def close(self) -> None:
        self._inner.close()


class Site:
    """One application, its backend and a client."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        variables = {f"ROUTER_{name.upper()}": value for name, value in settings.items()}
        self.settings = load(None, variables | {"ROUTER_BACKEND_URL": "memory"})
        self.backend = Troubled()
        self.node = MemoryNode(
            empty_polls_per_minute=self.settings.number("consume.empty_polls_per_minute")
        )
        self.app: Flask = create_app(self.settings, self.backend, self.node)
        self.client: FlaskClient = self.app.test_client()
        self._workers = [self.app]

    def worker(self, *, use_cookies: bool = True) -> FlaskClient:
        """Return a client of another worker of the same node."""
        self._workers.append(create_app(self.settings, self.backend, self.node))
        return self._workers[-1].test_client(use_cookies=use_cookies)

    def until_claimed(self, polls: int) -> None:
        """Wait until so many polls and fetches claim partitions, and each has some."""
        wait_until(lambda: len(self.node.claims) == polls and self._all_granted())

    def _all_granted(self) -> bool:
        return all(claim.granted() for claim in list(self.node.claims))

    def until_read(self, readers: int) -> None:
        """Wait until so many readings and streams of partitions are under way."""
        view: Any = self.app.view_functions["pulsar_rest.read_partition"]
        reading = view.__self__._reading
        wait_until(lambda: len(reading._waiting) + len(reading._streams) == readers)

    def subscriber(self) -> PollServer:
        """Return the service behind the polls."""
        view: Any = self.app.view_functions["events.poll"]
        found: PollServer = view.__self__._subscriber
        return found

    def body_reader(self) -> BodyReader:
        """Return what reads the bodies of publishers."""
        view: Any = self.app.view_functions["events.publish"]
        found: BodyReader = view.__self__._reader
        return found

    def post(self, path: str, data: bytes | str, kind: str = "text/plain", **more: Any) -> Any:
        """Publish."""
        return self.client.post(path, data=data, content_type=kind, **more)

    def poll(self, path: str = "/events/t/g/c", **headers: str) -> TestResponse:
        """Poll once, without waiting, from the beginning if the group is new."""
        mark = "&" if "?" in path else "?"
        query = f"{mark}timeout=0&from=earliest"
        # Buffered: as a server does, the client takes the whole answer before it is acknowledged.
        return self.client.get(path + query, headers=headers, buffered=True)

    def close(self) -> None:
        """Put everything away."""
        for app in self._workers:
            app.extensions["router.close"]()
        self.backend.close()
        self.node.close()
