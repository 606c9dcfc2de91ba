"""Who makes an HTTP request: by a signature, a password, a token, or a certificate.

What a principal may do then is decided by `Authorizer` (router/access/authorizer.py). Passwords are
checked as router/access/passwords.py decides, in threads that do nothing else. A client that is
refused for too many checks waits for its answer if that costs no thread: clients that ask again at
once would keep the worker busy with refusals.
"""

from __future__ import annotations

import random
import socket
import threading
from binascii import a2b_base64
from collections.abc import Callable
from functools import partial
from typing import Final
from wsgiref.types import WSGIEnvironment

from router.access.authorizer import ANONYMOUS, Authorizer, open_tokens
from router.access.passwords import MAX_CHECK_SECONDS, PasswordCheck, PasswordChecks
from router.errors import TooManyRequestsError, UnauthenticatedError
from router.metrics import Metrics
from router.model import Principal
from router.node import Node
from router.services.rights import Rights
from router.settings import Settings
from router.web import offload
from router.web.access.signatures import Signatures
from router.web.addresses import USER, is_local
from router.web.tls import NAME_KEY

# Each of a node's workers has as many; a check takes several processors by itself.
PASSWORD_THREADS: Final = 1
# By chance in between: clients that were refused together do not come back together.
MIN_REFUSAL_DELAY_SECONDS: Final = 3.0
MAX_REFUSAL_DELAY_SECONDS: Final = 6.0
MAX_DELAYED_REFUSALS: Final = 500
_NO_CREDENTIALS: Final = "This server needs to know who you are: a name and a password, or a token."
_WRONG: Final = "The name or the password is wrong."


class RequestAuthorizer(Authorizer):
    """Says who makes a request, and decides whether they may; callable from many threads.

    `passwords` is None if there are no users. Where settings name neither users nor keys of tokens,
    `authentication_required` is false and clients are anonymous.
    """

    def __init__(
        self,
        settings: Settings,
        passwords: WorkerPasswords | None,
        signatures: Signatures,
        rights: Rights,
        clocks: tuple[Callable[[], float], Callable[[], float]],
    ) -> None:
        """`clocks` count seconds since 1970, and monotonic ones."""
        wall, ticks = clocks
        super().__init__(settings, rights, ticks)
        self._passwords = passwords
        self._tokens = open_tokens(settings, wall, ticks)
        self._signatures = signatures

    def principal(self, environ: WSGIEnvironment) -> Principal:
        """Return who makes a request: whose signature, password, token or certificate it has.

        The name is left in the environment, for the log. Raises UnauthenticatedError if clients
        have to say who they are, TooManyRequestsError after too many passwords. Without users a
        wrong signature makes an anonymous request, as in the original.
        """
        found = self._principal(environ)
        if found.name:
            environ[USER] = found.name
        return found

    def repeated(self, environ: WSGIEnvironment) -> Callable[[], Principal | None] | None:
        """Return what says who makes the requests from one address that have the same head.

        It returns None where that is to be checked, which `principal` does; so does this function
        for heads whose client is looked at each time.
        """
        if "HTTP_X_CAMBRIAAUTH" in environ or "HTTP_X_AUTH" in environ:
            return None
        if self.authentication_required and (header := environ.get("HTTP_AUTHORIZATION")):
            scheme, _, given = header.partition(" ")
            if self._passwords is None or scheme.lower() != "basic":
                return None
            return partial(self._passwords.remembered, _credentials(given))
        known = Principal(environ[NAME_KEY]) if NAME_KEY in environ else ANONYMOUS
        return None if known == ANONYMOUS and self.authentication_required else lambda: known

    def may_administer(self, principal: Principal, environ: WSGIEnvironment) -> bool:
        """Return whether the client of this request may use the router's administration.

        These are administrators, and if clients are anonymous, clients on this machine.
        """
        return self.administers(principal) or (principal == ANONYMOUS and is_local(environ))

    def _principal(self, environ: WSGIEnvironment) -> Principal:
        failure: UnauthenticatedError | None = None
        if "HTTP_X_CAMBRIAAUTH" in environ or "HTTP_X_AUTH" in environ:
            try:
                return self._signatures.principal(environ)
            except UnauthenticatedError as error:
                failure = error
        if self.authentication_required and (header := environ.get("HTTP_AUTHORIZATION")):
            return self._by_header(header, environ)
        if NAME_KEY in environ:
            return Principal(environ[NAME_KEY])
        if not self.authentication_required:
            return Principal(unproven=str(failure)) if failure else ANONYMOUS
        raise failure or UnauthenticatedError(_NO_CREDENTIALS)

    def _by_header(self, header: str, environ: WSGIEnvironment) -> Principal:
        """Return who sent this Authorization header: Basic or Bearer."""
        scheme, _, given = header.partition(" ")
        if self._tokens is not None and scheme.lower() == "bearer":
            return self._tokens.identity(given.strip()).principal
        if self._passwords is None:
            raise UnauthenticatedError("This server takes tokens: Authorization: Bearer …")
        if scheme.lower() != "basic":
            raise UnauthenticatedError("The Authorization header is not of the scheme Basic.")
        address, client = environ.get("REMOTE_ADDR", ""), environ.get("gunicorn.socket")
        return self._passwords.principal(_credentials(given), address, client)


class WorkerPasswords:
    """Checks names and passwords; callable from many threads or greenlets, which wait meanwhile."""

    def __init__(
        self, settings: Settings, node: Node, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        take = partial(node.take_token, timeout=settings.seconds("backend.timeout"))

        def count(outcome: str) -> None:
            metrics.inc("router_logins_total", outcome=outcome)

        self._checks = PasswordChecks(settings, take, count, clock)
        self.remembered = self._checks.remembered
        """Returns whose credentials these are if that was verified lately, else None."""
        self._first_checks = offload.DeadlinePool(PASSWORD_THREADS, "passwords")
        self._repeated_checks = offload.DeadlinePool(PASSWORD_THREADS, "known-passwords")
        self._delayed = 0
        self._lock = threading.Lock()
        self.users = self._checks.users

    def principal(
        self, credentials: bytes, address: str, client: socket.socket | None = None
    ) -> Principal:
        """Return whose credentials (`name:password`) a client at this address presents.

        `client` is its connection, None if that is not known. Raises UnauthenticatedError, or
        TooManyRequestsError after too many checks.
        """
        known = self.remembered(credentials)
        if known is not None:
            return known
        try:
            return self._check(credentials, address, client)
        except TooManyRequestsError:
            self._delay()
            raise

    def sign_in(
        self, name: str, password: str, address: str, client: socket.socket | None
    ) -> tuple[Principal, str]:
        """Return the user and the record of the password that was checked, within the same limits.

        Raises UnauthenticatedError, or TooManyRequestsError after too many checks.
        """
        # Taken before the check, which uses this version of the file or a later one.
        record = self.users.record(name)
        if ":" in name:
            raise UnauthenticatedError(_WRONG)
        principal = self.principal(f"{name}:{password}".encode(), address, client)
        if record is None:
            raise UnauthenticatedError(_WRONG)
        return principal, record

    def _check(self, credentials: bytes, address: str, client: socket.socket | None) -> Principal:
        """Check credentials, or wait for the check of the same ones that is under way."""
        check, begun = self._checks.begin(credentials, address, partial(offload.is_closed, client))
        if begun:
            with self._checks.conducted(check):
                self._checks.admit(check)
                check.right = self._verify(check)
        try:
            return check.result(MAX_CHECK_SECONDS)
        except TimeoutError as error:
            raise TooManyRequestsError("The check broke off.", retry_after=1) from error

    def _verify(self, check: PasswordCheck) -> bool:
        pool = self._repeated_checks if check.repeated else self._first_checks
        return pool.run(MAX_CHECK_SECONDS, self._checks.verify, check)

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


def _credentials(given: str) -> bytes:
    """Return name and password as Basic has them; raise UnauthenticatedError."""
    try:
        return a2b_base64(given.strip(), strict_mode=True)
    except ValueError as error:
        raise UnauthenticatedError("The Authorization header cannot be read.") from error
