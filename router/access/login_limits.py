"""Rate limits of password checks: by user and address, and by failures of an address.

A check costs a processor and much memory on purpose, so the checks that clients can cause are
bounded, for HTTP and listeners together: checks for a user and an address, failed checks of an
address for any user, and the checks that wait for a thread (router/access/passwords.py). Only
failed checks count against the address, since many users may share one: clients that know their
passwords do not use up the limit. The node keeps the counts (`TakeToken`). Addresses that are
refused at the moment are remembered here too, so a flood of refused requests costs the node
nothing. Credentials that were verified before count against no limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Final, Protocol

from router.access.addresses import client_network
from router.errors import TooManyRequestsError
from router.settings import Settings

MAX_REFUSED_ADDRESSES: Final = 10_000
MAX_FAILURES_AT_ONCE: Final = 10
"""As many as a minute allows, all at once, would keep all processors busy for seconds."""


class TakeToken(Protocol):
    """Takes a token of a bucket of the node, which holds at most `burst`, or only looks for one."""

    def __call__(
        self, bucket: str, per_minute: float, burst: int, *, look_only: bool = False
    ) -> float | None:
        """Return None if there is a token, otherwise the seconds until there is one."""
        ...


class LoginLimits:
    """Decides whether a password may be checked; callable from many threads or greenlets."""

    def __init__(self, settings: Settings, take: TakeToken, clock: Callable[[], float]) -> None:
        self._attempts = settings.number("auth.attempts_per_minute")
        self._failures = settings.number("auth.failures_per_minute")
        self._take = take
        self._clock = clock
        self._refused: dict[str, float] = {}
        self._lock = threading.Lock()

    def admit(self, name: str, address: str) -> None:
        """Count a check for this user and address; raise TooManyRequestsError beyond a limit."""
        self.check_address(address)
        if self._failures:
            self._note(address, self._take_failure(address, look_only=True))
            self.check_address(address)
        if not self._attempts:
            return
        after = self._take(_bucket(address, name), self._attempts, self._attempts)
        if after is not None:
            raise TooManyRequestsError(
                "There were too many password checks for this user and address.", retry_after=after
            )

    def check_address(self, address: str) -> None:
        """Raise TooManyRequestsError for an address that is refused at the moment; never waits."""
        until = self._refused.get(client_network(address)) if self._refused else None
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
            # If this was the last token, checks that wait are refused at once.
            after = self._take_failure(address, look_only=True)
        self._note(address, after)

    def _take_failure(self, address: str, *, look_only: bool) -> float | None:
        burst = min(self._failures, MAX_FAILURES_AT_ONCE)
        counted = f"login-failures:{client_network(address)}"
        return self._take(counted, self._failures, burst, look_only=look_only)

    def _note(self, address: str, after: float | None) -> None:
        if after is None:
            return
        with self._lock:
            if len(self._refused) >= MAX_REFUSED_ADDRESSES:
                self._refused.clear()  # the node still knows them
            self._refused[client_network(address)] = self._clock() + after


def _bucket(address: str, name: str) -> str:
    """Return the name of the bucket of password checks for a user and an address."""
    # Clients choose names of users, which may be long; a bucket's name is not.
    return "login:" + sha256(f"{client_network(address)}\0{name}".encode()).hexdigest()
