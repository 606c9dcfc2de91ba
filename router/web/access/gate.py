"""The gate: from a request's credentials to a principal, and from a principal to yes or no."""

from __future__ import annotations

import base64
import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from router.backends import Node
from router.errors import (
    ForbiddenError,
    RouterError,
    SettingError,
    TooManyRequestsError,
    UnauthenticatedError,
    from_code,
)
from router.metrics import Metrics
from router.model import Principal, TopicName
from router.settings import Settings
from router.web import offload
from router.web.access.permissions import Permissions, Right
from router.web.access.users import Users

MOST_REMEMBERED: Final = 10_000
ANONYMOUS: Final = Principal()


class _Check:
    """A password check under way, for all requests with the same credentials."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure = RouterError("the check broke off")


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: Principal
    until: float
    version: int


class Access:
    """Answers who makes a request and whether they may; callable from many threads or greenlets."""

    def __init__(
        self, settings: Settings, node: Node, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        users, permissions = settings.text("auth.users"), settings.text("auth.permissions")
        if permissions and not users:
            raise SettingError("auth.permissions: grants nothing without a users file (auth.users)")
        self._users = Users(Path(users), clock) if users else None
        self._permissions = Permissions(Path(permissions), clock) if permissions else None
        self._keep = settings.seconds("auth.cache")
        self._attempts = settings.number("auth.attempts_per_minute")
        self._timeout = settings.seconds("backend.timeout")
        self._node = node
        self._metrics = metrics
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._verified: dict[bytes, _Verified] = {}
        self._checks: dict[bytes, _Check] = {}
        self._lock = threading.Lock()

    @property
    def restricted(self) -> bool:
        """Whether a permissions file decides who may do what."""
        return self._permissions is not None

    def principal(self, authorization: str | None, address: str) -> Principal:
        """Return who sent this Authorization header from this address.

        Raises UnauthenticatedError, or TooManyRequestsError after too many checks.
        """
        if self._users is None:
            return ANONYMOUS
        if not authorization:
            raise UnauthenticatedError("This server needs a name and a password.")
        digest = hmac.digest(self._secret, authorization.encode("latin-1", "replace"), "sha256")
        known = self._remembered(digest)
        return known if known is not None else self._check(digest, authorization, address)

    def demand(self, principal: Principal, topic: TopicName, right: Right) -> None:
        """Raise ForbiddenError unless the principal has the right on the topic."""
        if not self.allows(principal, topic, right):
            raise ForbiddenError(
                f"Access denied for {principal.name}: no right to {right.value} {topic.local}."
            )

    def allows(self, principal: Principal, topic: TopicName, right: Right) -> bool:
        """Return whether the principal has the right on the topic."""
        granted = self._permissions
        return granted is None or granted.allow(principal.name, topic.local, right)

    def users(self, topic: TopicName, right: Right) -> list[str]:
        """Return who is named as having the right; nobody is where everybody has it."""
        return self._permissions.users(topic.local, right) if self._permissions else []

    def _remembered(self, digest: bytes) -> Principal | None:
        assert self._users is not None
        found = self._verified.get(digest)
        if found is None:
            return None
        if found.until <= self._clock() or found.version != self._users.version():
            self._verified.pop(digest, None)
            return None
        return found.principal

    def _check(self, digest: bytes, authorization: str, address: str) -> Principal:
        """Check a password, or wait for the check of the same one that is under way."""
        mine = _Check()
        with self._lock:
            check = self._checks.setdefault(digest, mine)
        if check is not mine:
            check.done.wait(self._timeout)
            if (known := self._remembered(digest)) is not None:
                return known
            failure = check.failure
            raise from_code(failure.code, str(failure), failure.retry_after)
        try:
            return self._verify(digest, authorization, address)
        except RouterError as error:
            mine.failure = error
            raise
        finally:
            with self._lock:
                del self._checks[digest]
            mine.done.set()

    def _verify(self, digest: bytes, authorization: str, address: str) -> Principal:
        assert self._users is not None
        name, password = _basic(authorization)
        self._take_token(name, address)
        version = self._users.version()
        if not offload.run(self._users.verify, name, password):
            self._metrics.inc("router_logins_total", outcome="refused")
            raise UnauthenticatedError("The name or the password is wrong.")
        self._metrics.inc("router_logins_total", outcome="verified")
        principal = Principal(name)
        if len(self._verified) >= MOST_REMEMBERED:
            self._verified.clear()
        self._verified[digest] = _Verified(principal, self._clock() + self._keep, version)
        return principal

    def _take_token(self, name: str, address: str) -> None:
        if not self._attempts:
            return
        # Names come from strangers and may be long; a bucket's name is not.
        bucket = "login:" + sha256(f"{address}\0{name}".encode()).hexdigest()
        after = self._node.take_token(bucket, self._attempts, self._attempts, self._timeout)
        if after is not None:
            self._metrics.inc("router_logins_total", outcome="limited")
            raise TooManyRequestsError(
                "There were too many password checks for this user and address.", retry_after=after
            )


def _basic(authorization: str) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise UnauthenticatedError("The Authorization header is not of the scheme Basic.")
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError as error:
        raise UnauthenticatedError("The Authorization header cannot be read.") from error
    name, colon, password = decoded.partition(":")
    if not (name and colon):
        raise UnauthenticatedError("The Authorization header cannot be read.")
    return name, password
