"""Names of the producers under which requests with an idempotency key are stored.

A store with deduplication takes a producer's name and number once. If the name were made of what
others can know, such as user, topic and key, another publisher could use it first: the request
would be answered as a repeat and be lost. So it is a keyed hash with a secret that all nodes share.
"""

from __future__ import annotations

import hmac
from typing import Final

from router.backends import Registry
from router.model import REQUEST_PRODUCER
from router.services.shared_secret import SharedSecret

NAME: Final = "idempotency"


class RequestNames:
    """Makes the names; calls block, and may be made from many threads or greenlets."""

    def __init__(self, registry: Registry, timeout: float) -> None:
        self._secret = SharedSecret(registry, NAME, timeout)

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
