"""How many password checks a client may cause, over HTTP and from Pulsar clients together.

A check costs a processor and much memory for a while on purpose, so whatever lets a client cause
one is bounded: checks for a user and an address, failed checks of an address whatever the
names, and the checks that wait for a thread. Failed checks alone are counted for the address, since
many users may share one: a client that knows its password costs the others nothing. The node keeps
the counts (`TakeToken`); which addresses are refused just now is remembered here too, so that a
flood of refused requests costs the node nothing.

Credentials that were verified before need none of this: see `Verified` in router/access/logins.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from router.access.logins import bucket, share
from router.errors import TooManyRequestsError
from router.settings import Settings

MAX_QUEUED_CHECKS: Final = 50
"""Checks that wait for a thread, or have one, in one process."""
MAX_CHECK_SECONDS: Final = 10.0
"""Time within which a check has to be done, the wait for a thread included."""
MAX_REFUSED_ADDRESSES: Final = 10_000
# A minute's worth at once would keep all processors busy for seconds.
MAX_FAILURES_AT_ONCE: Final = 10


class TakeToken(Protocol):
    """Takes a token of a bucket of the node, which holds `burst` at most, or only looks for one.

    Returns None where there is one, else the seconds until there is.
    """

    def __call__(
        self, bucket: str, per_minute: int, burst: int, look_only: bool, /
    ) -> float | None:
        """Take a token."""
        ...


class LoginLimits:
    """Says whether a password may be checked; callable from many threads or greenlets."""

    def __init__(self, settings: Settings, take: TakeToken, clock: Callable[[], float]) -> None:
        self._attempts = settings.number("auth.attempts_per_minute")
        self._failures = settings.number("auth.failures_per_minute")
        self._take = take
        self._clock = clock
        self._refused: dict[str, float] = {}
        self._lock = threading.Lock()

    def admit(self, name: str, address: str) -> None:
        """Count a check for this user and address; raise TooManyRequestsError instead."""
        self.check_address(address)
        if self._failures:
            self._note(address, self._take_failure(address, look_only=True))
            self.check_address(address)
        if not self._attempts:
            return
        after = self._take(bucket(address, name), self._attempts, self._attempts, False)
        if after is not None:
            raise TooManyRequestsError(
                "There were too many password checks for this user and address.", retry_after=after
            )

    def check_address(self, address: str) -> None:
        """Raise TooManyRequestsError for an address known to have failed too often; never waits."""
        until = self._refused.get(share(address)) if self._refused else None
        after = 0.0 if until is None else until - self._clock()
        if after > 0:
            raise TooManyRequestsError(
                "There were too many wrong passwords from this address.", retry_after=after
            )

    def failed(self, address: str) -> None:
        """Count a failed check for this address."""
        if not self._failures:
            return
        after = self._take_failure(address, look_only=False)
        if after is None:
            # The last token may be gone with this one: checks that wait shall know it at once.
            after = self._take_failure(address, look_only=True)
        self._note(address, after)

    def _take_failure(self, address: str, *, look_only: bool) -> float | None:
        burst = min(self._failures, MAX_FAILURES_AT_ONCE)
        counted = f"login-failures:{share(address)}"
        return self._take(counted, self._failures, burst, look_only)

    def _note(self, address: str, after: float | None) -> None:
        if after is None:
            return
        with self._lock:
            if len(self._refused) >= MAX_REFUSED_ADDRESSES:
                self._refused.clear()  # the node still knows them
            self._refused[share(address)] = self._clock() + after


def queue_full() -> TooManyRequestsError:
    """Return the failure for a check beyond MAX_QUEUED_CHECKS."""
    return TooManyRequestsError("There are too many passwords to check.", retry_after=1)
