"""Names of the producers under which requests with an idempotency key are stored.

A store with deduplication takes a producer's name and number once. If the name were made of what
others can know, such as user, topic and key, another publisher could use it first: the request
would be answered as a repeat and be lost. So it is a keyed hash with a secret that all nodes share.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Final

from router.backends import Registry
from router.errors import ConflictError, RouterError
from router.model import REQUEST_PRODUCER

KIND: Final = "secret"
NAME: Final = "idempotency"
SECRET_BYTES: Final = 32
RETRY_SECONDS: Final = 0.05


class RequestNames:
    """Makes the names; calls block, and may be made from many threads or greenlets."""

    def __init__(self, registry: Registry, timeout: float) -> None:
        self._registry = registry
        self._timeout = timeout
        self._secret: bytes | None = None

    def digest(self, *identity: str) -> str:
        """Return the hash of what names a request or a part of it; raise what the registry raises.

        It is the same on every node, for as long as the registry is kept.
        """
        secret = self._secret
        if secret is None:
            secret = self._secret = self._shared()
        # Each text with its length: two lists of texts must not have one hash.
        data = b"".join(len(text).to_bytes(8) + text for text in map(str.encode, identity))
        return hmac.digest(secret, data, "sha256").hex()

    def producer(self, *identity: str) -> str:
        """Return the name of the producer of a part of a request."""
        return REQUEST_PRODUCER + self.digest(*identity)

    def _shared(self) -> bytes:
        """Return the secret of all nodes; ask again while the registry is away, up to `timeout`.

        Its process may be starting again just now, and the request has that much time.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return self._ask(max(left, RETRY_SECONDS))
            except RouterError as error:
                if not error.retriable or left <= RETRY_SECONDS:
                    raise
            time.sleep(RETRY_SECONDS)

    def _ask(self, timeout: float) -> bytes:
        """Return the secret of all nodes, made now if this is the first to ask."""
        registry = self._registry
        record = registry.get(KIND, NAME, timeout)
        if record is None:
            try:
                made = secrets.token_bytes(SECRET_BYTES)
                record = registry.put(KIND, NAME, made, 0, timeout)
            except ConflictError:
                record = registry.get(KIND, NAME, timeout)
        if record is None:
            raise ConflictError("the secret of idempotency keys was deleted meanwhile")
        return record.value
