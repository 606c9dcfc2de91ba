"""Names and passwords of HTTP Basic: checked, rationed, and remembered for a short while.

What is remembered and what a ration is for is in router/access/logins.py. Checks are rationed
*before* the costly hash; requests that come meanwhile with the same credentials wait for the one
check.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from pathlib import Path

from router.access.logins import Verified, bucket
from router.access.users import Users
from router.backends import Node
from router.errors import RouterError, TooManyRequestsError, UnauthenticatedError, from_code
from router.metrics import Metrics
from router.model import Principal
from router.settings import Settings
from router.web import offload


class _Check:
    """A password check under way, for all requests with the same credentials."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure = RouterError("the check broke off")


class Passwords:
    """Answers whose credentials these are; callable from many threads or greenlets."""

    def __init__(
        self, settings: Settings, node: Node, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._users = Users(Path(settings.text("auth.users")), clock)
        self._attempts = settings.number("auth.attempts_per_minute")
        self._timeout = settings.seconds("backend.timeout")
        self._node = node
        self._metrics = metrics
        self._verified = Verified(settings.seconds("auth.cache"), clock)
        self._checks: dict[bytes, _Check] = {}
        self._lock = threading.Lock()

    def principal(self, authorization: str, address: str) -> Principal:
        """Return who sent this Authorization header from this address.

        Raises UnauthenticatedError, or TooManyRequestsError after too many checks.
        """
        digest = self._verified.digest(authorization.encode("latin-1", "replace"))
        known = self._verified.get(digest, self._users.version())
        return known if known is not None else self._check(digest, authorization, address)

    def _check(self, digest: bytes, authorization: str, address: str) -> Principal:
        """Check a password, or wait for the check of the same one that is under way."""
        mine = _Check()
        with self._lock:
            check = self._checks.setdefault(digest, mine)
        if check is not mine:
            check.done.wait(self._timeout)
            if (known := self._verified.get(digest, self._users.version())) is not None:
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
        name, password = _basic(authorization)
        self._take_token(name, address)
        version = self._users.version()
        if not offload.run(self._users.verify, name, password):
            self._metrics.inc("router_logins_total", outcome="refused")
            raise UnauthenticatedError("The name or the password is wrong.")
        self._metrics.inc("router_logins_total", outcome="verified")
        principal = Principal(name)
        self._verified.keep(digest, principal, version)
        return principal

    def _take_token(self, name: str, address: str) -> None:
        if not self._attempts:
            return
        ration = bucket(address, name)
        after = self._node.take_token(ration, self._attempts, self._attempts, self._timeout)
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
