"""API keys, for those who may make, see and change them."""

from __future__ import annotations

from typing import Final

from router.access.logins import share
from router.backends import Node
from router.errors import KeyNotFoundError, TooManyRequestsError
from router.model import Principal
from router.services.keys import ApiKey, Keys
from router.web.access.gate import Access

# Keys are kept for ever, so that strangers must not make them by the thousand.
MAX_KEYS_PER_MINUTE: Final = 60


class ApiKeys:
    """The API keys of all nodes; a key is changed by itself, and by administrators."""

    def __init__(self, access: Access, keys: Keys, node: Node, timeout: float) -> None:
        self._access = access
        self._keys = keys
        self._node = node
        self._timeout = timeout

    def names(self) -> list[str]:
        """Return the names of all keys."""
        return self._keys.names()

    def get(self, name: str) -> ApiKey:
        """Return a key; raise KeyNotFoundError."""
        return _found(self._keys.get(name), name)

    def create(self, address: str, email: str, description: str) -> ApiKey:
        """Return a new key for a client at this address; raise TooManyRequestsError."""
        bucket = f"keys:{share(address)}"
        most = MAX_KEYS_PER_MINUTE
        after = self._node.take_token(bucket, most, most, self._timeout)
        if after is not None:
            raise TooManyRequestsError(
                "There were too many new API keys for this address.", retry_after=after
            )
        return self._keys.create(email, description)

    def may_change(self, principal: Principal, name: str) -> bool:
        """Return whether this is the key itself, or an administrator."""
        # A user of the users file that happens to have a key's name is not that key.
        own = principal.key and principal.name == name
        return own or self._access.administers(principal)

    def update(self, name: str, email: str | None, description: str | None) -> ApiKey:
        """Change what is given of a key; raise KeyNotFoundError."""
        return _found(self._keys.update(name, email, description), name)

    def delete(self, name: str) -> None:
        """Delete a key; raise KeyNotFoundError."""
        if not self._keys.delete(name):
            raise _unknown(name)


def _found(key: ApiKey | None, name: str) -> ApiKey:
    if key is None:
        raise _unknown(name)
    return key


def _unknown(name: str) -> KeyNotFoundError:
    return KeyNotFoundError(f"Api key [{name}] does not exist.")
