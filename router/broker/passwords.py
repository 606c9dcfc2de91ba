"""Passwords of the broker's clients: checked beside the event loop, within limits, and remembered.

The limits are those of HTTP (router/access/attempts.py), so that asking both gives no more guesses.
Threads of their own do the checks; first checks wait in one short queue and are dropped once their
clients have left. Credentials that were verified before have a thread that first checks do not get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from router.access.attempts import (
    MAX_QUEUED_CHECKS,
    LoginLimits,
    queue_full,
)
from router.access.logins import Verified
from router.access.users import Users
from router.errors import TooManyRequestsError, UnauthenticatedError
from router.metrics import Labels
from router.model import Principal
from router.settings import Settings
from router.wire.pulsar import pulsar_pb2 as pb

THREADS: Final = 2
_LOGINS: Final = "router_logins_total"


class Rationing(Protocol):
    """The node's counters, as the checks use them."""

    def inc(self, name: str, labels: Labels = (), value: float = 1) -> None:
        """Add to a counter."""
        ...

    def take_token(self, asked: pb.TakeToken) -> pb.TokenAnswer:
        """Take one token of a bucket, or only look for one."""
        ...


class _Check:
    """A password check under way, for all connections with the same credentials."""

    def __init__(self) -> None:
        self.departures: list[Callable[[], bool]] = []
        self.done: asyncio.Future[bool]

    def is_unwanted(self) -> bool:
        """Return whether all clients that wait for it have left; callable from any thread."""
        return all(gone() for gone in self.departures)


class Passwords:
    """Answers whose credentials these are; spoken to on the event loop."""

    def __init__(self, settings: Settings, counters: Rationing, ticks: Callable[[], float]) -> None:
        self._users = Users(Path(settings.text("auth.users")), ticks)
        self._limits = LoginLimits(settings, self._take_token, ticks)
        self._verified = Verified(settings.seconds("auth.cache"), ticks)
        self._counters = counters
        self._strangers = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        self._known = ThreadPoolExecutor(1, thread_name_prefix="known-passwords")
        self._checks: dict[bytes, _Check] = {}
        self._queued = 0

    def known(self, credentials: bytes) -> Principal | None:
        """Return whose name and password (`name:password`) these are if that is remembered."""
        return self._verified.get(self._verified.digest(credentials), self._users.version())

    async def check(self, credentials: bytes, address: str, gone: Callable[[], bool]) -> Principal:
        """Return whose credentials these are; raise UnauthenticatedError, TooManyRequestsError.

        Who brings the same ones while they are being checked waits for that check. `gone` tells
        whether the client has left; it may be called in another thread.
        """
        name, password = _parted(credentials)
        digest, version = self._verified.digest(credentials), self._users.version()
        check = self._checks.get(digest)
        if check is None:
            check = self._begin(digest, name, password, address, gone)
        else:
            check.departures.append(gone)
        if not await asyncio.shield(check.done):
            self._count("refused")
            raise UnauthenticatedError("The name or the password is wrong.")
        self._count("verified")
        principal = Principal(name)
        self._verified.keep(digest, principal, version)
        return principal

    def close(self) -> None:
        """Check nothing more."""
        for threads in (self._strangers, self._known):
            threads.shutdown(wait=False, cancel_futures=True)

    def _begin(
        self, digest: bytes, name: str, password: str, address: str, gone: Callable[[], bool]
    ) -> _Check:
        check, loop = _Check(), asyncio.get_running_loop()
        check.departures.append(gone)
        known = self._verified.seen(digest)
        if known:
            check.done = loop.run_in_executor(self._known, self._users.verify, name, password)
        else:
            self._admit(name, address)
            self._queued += 1
            verify = partial(self._verify_stranger, check, name, password, address)
            check.done = loop.run_in_executor(self._strangers, verify)
        self._checks[digest] = check
        check.done.add_done_callback(partial(self._ended, digest, address, queued=not known))
        return check

    def _admit(self, name: str, address: str) -> None:
        try:
            if self._queued >= MAX_QUEUED_CHECKS:
                raise queue_full()
            self._limits.admit(name, address)
        except TooManyRequestsError:
            self._count("limited")
            raise

    def _verify_stranger(self, check: _Check, name: str, password: str, address: str) -> bool:
        """Check a password when its turn comes; runs in a thread. Raises TooManyRequestsError."""
        if check.is_unwanted():
            raise TooManyRequestsError("The clients of this check have left.", retry_after=1)
        self._limits.check_address(address)
        return self._users.verify(name, password)

    def _ended(
        self, digest: bytes, address: str, done: asyncio.Future[bool], *, queued: bool
    ) -> None:
        del self._checks[digest]
        self._queued -= queued
        if done.cancelled() or done.exception() is not None:
            return
        if not done.result():
            self._verified.drop(digest)
            self._limits.failed(address)

    def _take_token(
        self, bucket: str, per_minute: int, burst: int, look_only: bool
    ) -> float | None:
        answer = self._counters.take_token(
            pb.TakeToken(bucket=bucket, per_minute=per_minute, burst=burst, look_only=look_only)
        )
        return None if answer.granted else answer.retry_after_ms / 1000

    def _count(self, outcome: str) -> None:
        self._counters.inc(_LOGINS, (("outcome", outcome),))


def _parted(credentials: bytes) -> tuple[str, str]:
    try:
        name, colon, password = credentials.decode().partition(":")
    except UnicodeDecodeError:
        name = colon = password = ""
    if not (name and colon):
        raise UnauthenticatedError("The credentials cannot be read: name:password is expected.")
    return name, password
