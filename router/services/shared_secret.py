"""Secrets that all nodes share: random bytes in the registry, made by the first that asks."""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Final

from router.clocks.backoff import Backoff, retry
from router.errors import ConflictError
from router.model import REQUEST_PRODUCER
from router.sharing.registry import Registry

KIND: Final = "secret"
ENDED_SESSIONS: Final = "session-end"
"""The kind of the records of sessions that were ended, which the secret of sessions would allow."""
SECRET_BYTES: Final = 32
RETRY_SECONDS: Final = 0.05


class SharedSecret:
    """One secret; calls block, and may be made from many threads or greenlets."""

    def __init__(self, registry: Registry, name: str, timeout: float) -> None:
        self._registry = registry
        self._name = name
        self._timeout = timeout
        self._known: bytes | None = None

    def get(self) -> bytes:
        """Return the secret; raise what the registry raises.

        It is the same on every node, for as long as the registry is kept. A process asks the
        registry once.
        """
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> bytes:
        """Ask again while the registry is away, up to `timeout`: its process may be starting."""
        deadline = time.monotonic() + self._timeout

        def ask() -> bytes:
            return self._ask(max(deadline - time.monotonic(), RETRY_SECONDS))

        return retry(ask, Backoff(RETRY_SECONDS), deadline)

    def _ask(self, timeout: float) -> bytes:
        """Return the record, made now if there is none."""
        registry = self._registry
        record = registry.get(KIND, self._name, timeout)
        if record is None:
            try:
                made = secrets.token_bytes(SECRET_BYTES)
                record = registry.put(KIND, self._name, made, 0, timeout)
            except ConflictError:
                record = registry.get(KIND, self._name, timeout)
        if record is None:
            raise ConflictError(f"the secret {self._name} was deleted meanwhile")
        return record.value


class RequestNames:
    """Names of the producers under which requests that may be sent again are stored.

    A store with deduplication takes a producer's name and number once. If the name were made of
    what others can know, such as user, topic and key, another publisher could use it first: the
    request would be answered as a repeat and be lost. So it is a keyed hash with a secret that all
    nodes share. Calls block, and may be made from many threads or greenlets.
    """

    NAME: Final = "idempotency"

    def __init__(self, registry: Registry, timeout: float) -> None:
        self._secret = SharedSecret(registry, self.NAME, timeout)

    def digest(self, *identity: str) -> str:
        """Return the hash of what names a request or a part of it; raise what the registry raises.

        It is the same on every node, for as long as the registry is kept.
        """
        # Each text with its length: two lists of texts must not have one hash.
        data = b"".join(len(text).to_bytes(8) + text for text in map(str.encode, identity))
        return hmac.digest(self._secret.get(), data, "sha256").hex()

    def producer(self, *identity: str) -> str:
        """Return the name of the producer of a part of a request."""
        return REQUEST_PRODUCER + self.digest(*identity)
