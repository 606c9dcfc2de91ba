"""Secrets that all nodes share: random bytes in the registry, made by the first that asks."""

from __future__ import annotations

import secrets
import time
from typing import Final

from router.backends import Registry
from router.errors import ConflictError, RouterError

KIND: Final = "secret"
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
        while True:
            left = deadline - time.monotonic()
            try:
                return self._ask(max(left, RETRY_SECONDS))
            except RouterError as error:
                if not error.retriable or left <= RETRY_SECONDS:
                    raise
            time.sleep(RETRY_SECONDS)

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
