"""Names and passwords of HTTP Basic: checked within limits, and remembered for a short while.

What is remembered is in router/access/logins.py, what limits checks in router/access/attempts.py.
Checks have threads of their own, behind which nothing else waits. First checks wait in one short
queue and are dropped once their clients have left; credentials that were verified before have a
thread that first checks do not get. Requests that come meanwhile with the same credentials wait for
the one check.

A refused client waits for its answer, where that costs no thread: clients that ask again at once
would else keep the worker busy with refusals.
"""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.access.attempts import (
    MAX_CHECK_SECONDS,
    MAX_QUEUED_CHECKS,
    LoginLimits,
    queue_full,
)
from router.access.logins import Verified
from router.access.users import Users
from router.backends import Node
from router.errors import RouterError, TooManyRequestsError, UnauthenticatedError, from_code
from router.metrics import Metrics
from router.model import Principal
from router.settings import Settings
from router.web import offload

if TYPE_CHECKING:
    import socket

# Each of a node's workers has so many; a check takes several processors by itself.
THREADS: Final = 1
# By chance in between: clients that were refused together do not come back together.
MIN_REFUSAL_DELAY_SECONDS: Final = 3.0
MAX_REFUSAL_DELAY_SECONDS: Final = 6.0
MAX_DELAYED_REFUSALS: Final = 500


class _Check:
    """A password check under way, for all requests with the same credentials."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.principal: Principal | None = None
        self.failure: RouterError = TooManyRequestsError("The check broke off.", retry_after=1)
        self.departures: list[Callable[[], bool]] = []

    def is_unwanted(self) -> bool:
        """Return whether all clients that wait for it have left; callable from any thread."""
        return all(gone() for gone in self.departures)


class Passwords:
    """Answers whose credentials these are; callable from many threads or greenlets."""

    def __init__(
        self, settings: Settings, node: Node, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._users = Users(Path(settings.text("auth.users")), clock)
        self._timeout = settings.seconds("backend.timeout")
        self._node = node
        self._metrics = metrics
        self._limits = LoginLimits(settings, self._take_token, clock)
        self._verified = Verified(settings.seconds("auth.cache"), clock)
        self._strangers = offload.DeadlinePool(THREADS, "passwords")
        self._known = offload.DeadlinePool(THREADS, "known-passwords")
        # By credentials and version of the users file: no check is shared across a change of it.
        self._checks: dict[tuple[bytes, int], _Check] = {}
        self._queued = self._delayed = 0
        self._lock = threading.Lock()

    def principal(
        self, authorization: str, address: str, client: socket.socket | None = None
    ) -> Principal:
        """Return who sent this Authorization header from this address, over this connection.

        Raises UnauthenticatedError, or TooManyRequestsError after too many checks.
        """
        digest = self._verified.digest(authorization.encode("latin-1", "replace"))
        version = self._users.version()
        known = self._verified.get(digest, version)
        if known is not None:
            return known
        try:
            return self._check((digest, version), authorization, address, client)
        except TooManyRequestsError:
            self._delay()
            raise

    def sign_in(
        self, name: str, password: str, address: str, client: socket.socket | None
    ) -> tuple[Principal, str]:
        """Return the user and the record of the password that was checked, within the same limits.

        Raises UnauthenticatedError, or TooManyRequestsError after too many checks.
        """
        # Taken before the check, which looks at this version of the file or a later one.
        record = self._users.record(name)
        if ":" in name:
            raise _wrong()
        encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
        principal = self.principal(f"Basic {encoded}", address, client)
        if record is None:
            raise _wrong()
        return principal, record

    def names(self) -> list[str]:
        """Return the names of all users."""
        return self._users.names()

    def record(self, name: str) -> str | None:
        """Return the record of a user's password, None: there is no such user."""
        return self._users.record(name)

    def _check(
        self,
        asked: tuple[bytes, int],
        authorization: str,
        address: str,
        client: socket.socket | None,
    ) -> Principal:
        """Check a password, or wait for the check of the same one that is under way."""
        mine = _Check()
        with self._lock:
            check = self._checks.setdefault(asked, mine)
            check.departures.append(partial(offload.gone, client))
        if check is not mine:
            check.done.wait(MAX_CHECK_SECONDS)
            if check.principal is not None:
                return check.principal
            failure = check.failure
            raise from_code(failure.code, str(failure), failure.retry_after)
        try:
            mine.principal = self._verify(mine, asked, authorization, address)
        except RouterError as error:
            mine.failure = error
            raise
        else:
            return mine.principal
        finally:
            with self._lock:
                del self._checks[asked]
            mine.done.set()

    def _verify(
        self, check: _Check, asked: tuple[bytes, int], authorization: str, address: str
    ) -> Principal:
        digest, version = asked
        name, password = _basic(authorization)
        try:
            if self._verified.seen(digest):
                right = self._known.run(MAX_CHECK_SECONDS, self._users.verify, name, password)
            else:
                with self._place_in_queue():
                    self._limits.admit(name, address)
                    verify = partial(self._verify_stranger, check, name, password, address)
                    right = self._strangers.run(MAX_CHECK_SECONDS, verify)
        except TooManyRequestsError:
            self._count("limited")
            raise
        except TimeoutError as error:
            self._count("limited")
            raise queue_full() from error
        if not right:
            self._count("refused")
            self._verified.drop(digest)
            self._limits.failed(address)
            raise _wrong()
        self._count("verified")
        principal = Principal(name)
        self._verified.keep(digest, principal, version)
        return principal

    def _verify_stranger(self, check: _Check, name: str, password: str, address: str) -> bool:
        """Check a password when its turn comes, which may be long after the request.

        Runs in a thread of the pool; raises TooManyRequestsError.
        """
        if check.done.is_set() or check.is_unwanted():
            raise TooManyRequestsError("The clients of this check have left.", retry_after=1)
        self._limits.check_address(address)
        return self._users.verify(name, password)

    @contextmanager
    def _place_in_queue(self) -> Iterator[None]:
        with self._lock:
            if self._queued >= MAX_QUEUED_CHECKS:
                raise queue_full()
            self._queued += 1
        try:
            yield
        finally:
            with self._lock:
                self._queued -= 1

    def _delay(self) -> None:
        with self._lock:
            if self._delayed >= MAX_DELAYED_REFUSALS:
                return
            self._delayed += 1
        try:
            # Nothing is secret about it.
            spread = random.random() * (MAX_REFUSAL_DELAY_SECONDS - MIN_REFUSAL_DELAY_SECONDS)  # noqa: S311
            offload.pause(MIN_REFUSAL_DELAY_SECONDS + spread)
        finally:
            with self._lock:
                self._delayed -= 1

    def _take_token(
        self, bucket: str, per_minute: int, burst: int, look_only: bool
    ) -> float | None:
        return self._node.take_token(bucket, per_minute, burst, self._timeout, look_only=look_only)

    def _count(self, outcome: str) -> None:
        self._metrics.inc("router_logins_total", outcome=outcome)


def _wrong() -> UnauthenticatedError:
    return UnauthenticatedError("The name or the password is wrong.")


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
