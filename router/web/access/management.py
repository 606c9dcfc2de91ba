"""Changes of access: API keys, and the access lists of topics."""

from __future__ import annotations

from typing import Final

from router.access.addresses import client_network
from router.access.authorizer import TopicRights
from router.access.permissions import Right
from router.errors import (
    AccessDeniedError,
    ForbiddenError,
    KeyNotFoundError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from router.model import Principal, TopicName
from router.node import Node
from router.services.keys import ApiKey, Keys
from router.services.manage import TopicManagement
from router.services.rights import Rights
from router.web.access.authentication import RequestAuthorizer

# Keys are kept for ever, so anonymous clients must not make them by the thousand.
MAX_KEYS_PER_MINUTE: Final = 60


class ApiKeys:
    """The API keys of all nodes; a key is changed by itself, and by administrators."""

    def __init__(self, access: RequestAuthorizer, keys: Keys, node: Node, timeout: float) -> None:
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
        bucket = f"keys:{client_network(address)}"
        limit = MAX_KEYS_PER_MINUTE
        after = self._node.take_token(bucket, limit, limit, self._timeout)
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


class AccessLists:
    """The lists of all topics, for those who may see and change them."""

    def __init__(self, access: RequestAuthorizer, topics: TopicManagement, rights: Rights) -> None:
        self._access = access
        self._topics = topics
        self._rights = rights

    def rights(self, principal: Principal, topic: TopicName) -> TopicRights:
        """Return owner and lists of a topic; raise ForbiddenError, TopicNotFoundError."""
        self._access.authorize(principal, topic, Right.VIEW)
        self._check_exists(topic)
        return self._rights.read(topic)

    def all(self) -> dict[str, TopicRights]:
        """Return owners and lists of all topics that have any, by full name."""
        return self._rights.all()

    def may_change(self, principal: Principal, topic: TopicName, rights: TopicRights) -> bool:
        """Return whether `change` would let the principal change lists that are these now."""
        try:
            self._access.authorize(principal, topic, Right.CREATE)
            self._access.authorize_owner(principal, rights)
        except ForbiddenError:
            return False
        return True

    def change(
        self, principal: Principal, topic: TopicName, name: str, *, reader: bool, listed: bool
    ) -> None:
        """Put a name on a list, or take it off; raise ForbiddenError, TopicNotFoundError."""
        try:
            self._access.authorize(principal, topic, Right.CREATE)
        except AccessDeniedError:
            raise
        except ForbiddenError as error:
            raise ForbiddenError(
                f"Access denied for {principal.name or '(no user)'}: no right to change the access"
                f" lists of {topic.local}; that takes the right to manage it."
            ) from error
        self._check_exists(topic)

        def edit(rights: TopicRights) -> TopicRights:
            # Of what is written over: the topic may have got another owner meanwhile.
            self._access.authorize_owner(principal, rights)
            return rights.with_listed(name, reader=reader, listed=listed)

        self._rights.change(topic, edit)

    def _check_exists(self, topic: TopicName) -> None:
        if not self._topics.exists(topic):
            raise TopicNotFoundError(f"[{topic.local}]")


def _found(key: ApiKey | None, name: str) -> ApiKey:
    if key is None:
        raise _unknown(name)
    return key


def _unknown(name: str) -> KeyNotFoundError:
    return KeyNotFoundError(f"Api key [{name}] does not exist.")
