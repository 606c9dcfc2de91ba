"""Passwords of the broker's clients: checked beside the event loop, rationed, and remembered.

The rations are those of HTTP (router/access/logins.py), so that nobody has twice as many guesses by
asking both. A check takes a tenth of a second of a processor and much memory: AT_ONCE threads do
them, and past MOST_WAITING nobody else may queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from router.access.logins import Verified, bucket
from router.access.users import Users
from router.errors import TooManyRequestsError, UnauthenticatedError
from router.metrics import Labels
from router.model import Principal
from router.settings import Settings
from router.wire.pulsar import pulsar_pb2 as pb

AT_ONCE: Final = 2
MOST_WAITING: Final = 50
_LOGINS: Final = "router_logins_total"


class Rationing(Protocol):
    """The node's counters, as the checks use them."""

    def inc(self, name: str, labels: Labels = (), value: float = 1) -> None:
        """Add to a counter."""
        ...

    def take_token(self, asked: pb.TakeToken) -> pb.TokenAnswer:
        """Take one token of a bucket."""
        ...


class Passwords:
    """Answers whose credentials these are; spoken to on the event loop."""

    def __init__(self, settings: Settings, counters: Rationing, ticks: Callable[[], float]) -> None:
        self._users = Users(Path(settings.text("auth.users")), ticks)
        self._attempts = settings.number("auth.attempts_per_minute")
        self._verified = Verified(settings.seconds("auth.cache"), ticks)
        self._counters = counters
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="passwords")
        self._checks: dict[bytes, asyncio.Future[bool]] = {}

    def known(self, credentials: bytes) -> Principal | None:
        """Return whose name and password (`name:password`) these are if that is remembered."""
        return self._verified.get(self._verified.digest(credentials), self._users.version())

    async def check(self, credentials: bytes, address: str) -> Principal:
        """Return whose credentials these are; raise UnauthenticatedError, TooManyRequestsError.

        Who brings the same ones while they are being checked waits for that check.
        """
        name, password = _parted(credentials)
        digest, version = self._verified.digest(credentials), self._users.version()
        check = self._checks.get(digest)
        if check is None:
            check = self._begin(name, password, address)
            self._checks[digest] = check
            check.add_done_callback(lambda _: self._checks.pop(digest, None))
        if not await asyncio.shield(check):
            self._count("refused")
            raise UnauthenticatedError("The name or the password is wrong.")
        self._count("verified")
        principal = Principal(name)
        self._verified.keep(digest, principal, version)
        return principal

    def close(self) -> None:
        """Check nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, name: str, password: str, address: str) -> asyncio.Future[bool]:
        if len(self._checks) >= MOST_WAITING:
            raise TooManyRequestsError("There are too many passwords to check.", retry_after=1)
        if self._attempts:
            answer = self._counters.take_token(
                pb.TakeToken(
                    bucket=bucket(address, name), per_minute=self._attempts, burst=self._attempts
                )
            )
            if not answer.granted:
                self._count("limited")
                raise TooManyRequestsError(
                    "There were too many password checks for this user and address.",
                    retry_after=answer.retry_after_ms / 1000,
                )
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, self._users.verify, name, password)

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
