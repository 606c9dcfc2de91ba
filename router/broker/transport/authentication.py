"""Who a client of a listener is: by a token, a name and password, or its TLS certificate.

A client has the rights that the same name has over HTTP (router/access/authorizer.py). If settings
name neither users nor keys of tokens, clients are anonymous, and known by a certificate at most.
Passwords are checked as router/access/passwords.py decides, in threads beside the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from router.access.authorizer import (
    ANONYMOUS,
    Authorizer,
    TopicRightsSource,
    open_permissions,
    open_tokens,
)
from router.access.passwords import PasswordCheck, PasswordChecks, open_users
from router.access.permissions import Right
from router.access.scram import ScramVerifier
from router.errors import UnauthenticatedError
from router.errors.quoting import quoted
from router.log import LineLimit
from router.metrics import Labels
from router.model import Principal, TopicName
from router.settings import Settings

TOKEN: Final = "token"  # noqa: S105 - the name of a method
BASIC: Final = "basic"
# Methods without credentials of their own: the certificate counts, if there is one.
_NO_CREDENTIALS: Final = frozenset({"", "none", "tls"})
PASSWORD_THREADS: Final = 2


class RateLimits(Protocol):
    """The node's counters and rate limits, as password checks use them."""

    def inc(self, name: str, labels: Labels = (), value: float = 1) -> None:
        """Add to a counter."""
        ...

    def take_token(
        self, bucket: str, per_minute: float, burst: int, *, look_only: bool = False
    ) -> float | None:
        """Take one token of a bucket, or only look for one; see `Counters`."""
        ...


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """What a client presents; `certificate` is the common name of a verified one."""

    method: str
    data: bytes
    address: str
    certificate: str = ""

    def user_name(self) -> str | None:
        """Return the name that comes with a password, None: there is none."""
        name, colon, _ = self.data.partition(b":")
        if self.method != BASIC or not colon:
            return None
        return name.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Login:
    """Who a client is, and for how many seconds; None: for as long as it stays connected."""

    principal: Principal
    lasts: float | None = None


class ChangingTopicRights(TopicRightsSource, Protocol):
    """The records of topics in memory; `changes` counts theirs."""

    changes: int


class ListenerAuthorizer(Authorizer):
    """Says who clients of all listeners are, and decides what they may do; used on the event loop.

    `clock` counts seconds since 1970, `ticks` is monotonic. `refusals` bounds their log lines.
    """

    def __init__(
        self,
        settings: Settings,
        rights: ChangingTopicRights,
        limits: RateLimits,
        clock: Callable[[], float],
        ticks: Callable[[], float],
    ) -> None:
        super().__init__(settings, rights, ticks, whole_topics=True)
        self._clock = clock
        self._changing = rights
        self._tokens = open_tokens(settings, clock, ticks)
        self._passwords = (
            BrokerPasswords(settings, limits, ticks) if settings.text("auth.users") else None
        )
        self._tenant = settings.text("names.tenant")
        self._namespace = settings.text("names.namespace")
        self.refusals = LineLimit(ticks)

    @property
    def version(self) -> tuple[int, int]:
        """Return what grows when any right may have changed: answers hold as long as it is equal.

        A change of the file of permissions counts within a second, as everywhere.
        """
        granted = self._permissions
        return 0 if granted is None else granted.version(), self._changing.changes

    def known(self, credentials: ClientCredentials) -> Login | None:
        """Return whose credentials these are, None if only `check` can tell.

        Raises UnauthenticatedError.
        """
        if not self.authentication_required or credentials.method in _NO_CREDENTIALS:
            return Login(self._by_certificate(credentials))
        if credentials.method == TOKEN and self._tokens is not None:
            identity = self._tokens.identity(credentials.data.decode("latin-1"))
            expires = identity.expires
            return Login(identity.principal, None if expires is None else expires - self._clock())
        if credentials.method == BASIC and self._passwords is not None:
            principal = self._passwords.remembered(credentials.data)
            return None if principal is None else Login(principal)
        raise UnauthenticatedError(
            f"Clients are not known by the method {quoted(credentials.method, 40)}."
        )

    async def check(
        self, credentials: ClientCredentials, closed: Callable[[], bool] = lambda: False
    ) -> Login:
        """Return whose name and password this is; `closed` tells whether the client has left.

        Raises UnauthenticatedError, TooManyRequestsError.
        """
        return Login(await self._users().check(credentials.data, credentials.address, closed))

    def scram_verifier(self, name: str, mechanism: str) -> ScramVerifier:
        """Return what proves a user's password by a mechanism; raise UnauthenticatedError."""
        return self._users().users.verifier(name, mechanism)

    def scram_iterations(self) -> Mapping[str, Mapping[str, int]]:
        """Return the iterations of each mechanism for the users that can authenticate by SCRAM."""
        return {} if self._passwords is None else self._passwords.users.scram_iterations()

    def judge_proof(self, name: str, address: str, proved: bool) -> Login:
        """Return the login of a user that has, or has not, proved its password by SCRAM.

        Raises UnauthenticatedError, TooManyRequestsError.
        """
        return Login(self._users().judge_proof(name, address, proved))

    def authorize_name(self, principal: Principal, text: str, right: Right) -> None:
        """Raise ForbiddenError unless the principal has the right on the topic of this name.

        Raises BadNameError for what is no name of a topic.
        """
        if not self.open:
            self.authorize(principal, TopicName.parse(text, self._tenant, self._namespace), right)

    def sees(self, principal: Principal, topic: TopicName) -> bool:
        """Return whether the principal may know that there is such a topic."""
        while (part := topic.parent()) is not None:
            topic = part[0]
        return self.open or self.allows(principal, topic, Right.VIEW)

    def sees_all(self, principal: Principal) -> bool:
        """Return whether the principal may know of every possible topic."""
        return self.open or self.allows_all(principal, Right.VIEW)

    def close(self) -> None:
        """Check no more passwords."""
        if self._passwords is not None:
            self._passwords.close()

    def _users(self) -> BrokerPasswords:
        if self._passwords is None:
            raise UnauthenticatedError("There are no users with passwords.")
        return self._passwords

    def _by_certificate(self, credentials: ClientCredentials) -> Principal:
        if credentials.certificate:
            return Principal(credentials.certificate)
        if self.authentication_required:
            raise UnauthenticatedError("This broker needs to know who you are.")
        return ANONYMOUS


class BrokerPasswords:
    """Checks names and passwords; `check` waits on the event loop."""

    def __init__(self, settings: Settings, limits: RateLimits, ticks: Callable[[], float]) -> None:
        def count(outcome: str) -> None:
            limits.inc("router_logins_total", (("outcome", outcome),))

        self._checks = PasswordChecks(settings, limits.take_token, count, ticks)
        self.users = self._checks.users
        self.remembered = self._checks.remembered
        self.judge_proof = self._checks.judge_proof
        self._first_checks = ThreadPoolExecutor(PASSWORD_THREADS, thread_name_prefix="passwords")
        self._repeated_checks = ThreadPoolExecutor(1, thread_name_prefix="known-passwords")
        self._conducting: set[asyncio.Task[None]] = set()

    async def check(
        self, credentials: bytes, address: str, closed: Callable[[], bool]
    ) -> Principal:
        """Return whose credentials (`name:password`) a client at this address presents.

        `closed` tells whether the client has left; it may be called in another thread. Raises
        UnauthenticatedError, TooManyRequestsError.
        """
        check, begun = self._checks.begin(credentials, address, closed)
        if begun:
            # A task of its own: it goes on for the others when its first client leaves.
            task = asyncio.get_running_loop().create_task(self._conduct(check))
            self._conducting.add(task)
            task.add_done_callback(self._conducting.discard)
        return await asyncio.wrap_future(check)

    def close(self) -> None:
        """Check nothing more."""
        for threads in (self._first_checks, self._repeated_checks):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _conduct(self, check: PasswordCheck) -> None:
        with self._checks.conducted(check):
            self._checks.admit(check)
            pool = self._repeated_checks if check.repeated else self._first_checks
            loop = asyncio.get_running_loop()
            check.right = await loop.run_in_executor(pool, self._checks.verify, check)


def check_files(settings: Settings, ticks: Callable[[], float]) -> None:
    """Raise SettingError if the files that settings name for access cannot be used."""
    open_permissions(settings, ticks)
    open_tokens(settings, ticks, ticks)
    open_users(settings, ticks)
