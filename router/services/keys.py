"""API keys: names and secrets that clients of the original Message Router sign requests with.

A record of the kind `key` is named by the key and holds JSON: `secret`, `email`, `description`.
The secret is kept in plain text, since a signature can only be checked with it: anyone who can read
the registry (the data folder, or ZooKeeper) can sign as any client.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import orjson

from router.clocks.ttl_cache import TTLCache
from router.errors import BadRequestError, ConflictError
from router.sharing.registry import Registry, RegistryRecord

KIND: Final = "key"
KEY_CHARACTERS: Final = 16
SECRET_CHARACTERS: Final = 24
MAX_TEXT_CHARACTERS: Final = 4_096
CACHE_SECONDS: Final = 5.0
"""A deleted key, or a new secret of one, counts after this time at the latest."""
MAX_CACHED_KEYS: Final = 10_000
MAX_ATTEMPTS: Final = 5
_ALPHABET: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key; `name` is what the original calls the key."""

    name: str
    secret: str
    email: str = ""
    description: str = ""

    @classmethod
    def load(cls, record: RegistryRecord) -> ApiKey:
        """Return the key in a record."""
        found = orjson.loads(record.value)
        return cls(
            record.name, found["secret"], found.get("email", ""), found.get("description", "")
        )

    def dump(self) -> bytes:
        """Return the content of the key's record."""
        return orjson.dumps(
            {"secret": self.secret, "email": self.email, "description": self.description}
        )


class Keys:
    """The API keys of all nodes; callable from many threads or greenlets."""

    def __init__(self, registry: Registry, timeout: float, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._timeout = timeout
        self._cache = TTLCache(self.get, CACHE_SECONDS, MAX_CACHED_KEYS, clock)
        self.cached = self._cache.get
        """Return a key as it was at most CACHE_SECONDS ago, None if there is none."""

    def get(self, name: str) -> ApiKey | None:
        """Return a key as it is now, None if there is none."""
        record = self._registry.get(KIND, name, self._timeout)
        return None if record is None else ApiKey.load(record)

    def names(self) -> list[str]:
        """Return the names of all keys."""
        return [record.name for record in self._registry.list(KIND, self._timeout)]

    def create(self, email: str, description: str) -> ApiKey:
        """Store a new key with a random secret; raise BadRequestError."""
        _check(email, description)
        for _ in range(MAX_ATTEMPTS):
            key = ApiKey(_random(KEY_CHARACTERS), _random(SECRET_CHARACTERS), email, description)
            try:
                self._registry.put(KIND, key.name, key.dump(), 0, self._timeout)
            except ConflictError:
                continue  # this name exists already: a chance of one in 10**28
            return key
        raise ConflictError

    def update(self, name: str, email: str | None, description: str | None) -> ApiKey | None:
        """Change what is given; return the key, None if there is none. Raises BadRequestError."""
        _check(email or "", description or "")
        for _ in range(MAX_ATTEMPTS):
            record = self._registry.get(KIND, name, self._timeout)
            if record is None:
                return None
            key = ApiKey.load(record)
            key = replace(
                key,
                email=key.email if email is None else email,
                description=key.description if description is None else description,
            )
            try:
                self._registry.put(KIND, name, key.dump(), record.version, self._timeout)
            except ConflictError:
                continue
            return key
        raise ConflictError

    def delete(self, name: str) -> bool:
        """Delete a key; return whether there was one."""
        try:
            return self._registry.delete(KIND, name, self._timeout)
        finally:
            self._cache.forget(name)


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _check(*texts: str) -> None:
    if max(map(len, texts)) > MAX_TEXT_CHARACTERS:
        raise BadRequestError(
            f"email and description have at most {MAX_TEXT_CHARACTERS} characters"
        )
