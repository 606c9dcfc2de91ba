"""Passwords: the users file, and one check of each credentials at a time, within limits.

Theory of operation. A check costs a processor for a tenth of a second on purpose, so checks are
bounded and their results are remembered. A result is remembered for `auth.cache` under a keyed hash
of the credentials (never the credentials themselves), and does not count once the users file has
changed. That credentials were right once is remembered for longer: such a repeated check needs no
place in the queue and counts against no limit, so a flood of wrong passwords does not keep out
known users. First checks wait in one bounded queue, and are dropped once all their clients have
left. Clients that present the same credentials meanwhile wait for the same check.

`PasswordChecks` takes these decisions for HTTP and for the broker's listeners. It starts no thread
and waits for nothing: its two shells (router/web/access/authentication.py for threads and
greenlets, router/broker/transport/authentication.py for asyncio) call `verify` in threads that do
nothing else, and wait for the results in their own way.

The users file has htpasswd lines `name:hash`, with hashes of argon2id, bcrypt or Apache's MD5. A
user may have verifiers of SCRAM behind the hash, `name:hash:verifiers` (router/access/scram.py).
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.access.login_limits import LoginLimits, TakeToken
from router.access.scram import ScramVerifier, parse_verifiers
from router.access.watched import Watched, in_text
from router.clocks.ttl_cache import TTLMap
from router.errors import RouterError, TooManyRequestsError, UnauthenticatedError
from router.model import Principal
from router.settings import Settings

if TYPE_CHECKING:
    from passlib.context import CryptContext

MAX_PASSWORD_CHARACTERS: Final = 1_024
MAX_BCRYPT_BYTES: Final = 72
MAX_REMEMBERED_CREDENTIALS: Final = 10_000
MAX_QUEUED_CHECKS: Final = 50
"""First checks of one process that wait for a thread, or have one."""
MAX_CHECK_SECONDS: Final = 10.0
"""Time within which a check has to be done, the wait for a thread included."""


class Users:
    """Names and password hashes; a change of the file counts within a second."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._file = Watched(path, in_text(parse_users), clock)
        self._secret = secrets.token_bytes(32)
        self._clock = clock

    def version(self) -> int:
        """Return a number that grows when the file changes."""
        file = self._file
        return file.held[0] if self._clock() < file.next_check else file.version()

    def record(self, name: str) -> str | None:
        """Return the stored hash of a user's password, None if there is no such user."""
        found = self._file.get().get(name)
        return None if found is None else found.partition(":")[0]

    def verifier(self, name: str, mechanism: str) -> ScramVerifier:
        """Return what proves the password of a user by SCRAM; one that nothing fits if none is."""
        record = self._file.get().get(name, "")
        found = parse_verifiers(record.partition(":")[2]).get(mechanism)
        return found or ScramVerifier.decoy(mechanism, self._secret, name)

    def scram_iterations(self) -> dict[str, dict[str, int]]:
        """Return the iterations of each mechanism for the users that have verifiers of SCRAM."""
        found = {
            name: parse_verifiers(record.partition(":")[2])
            for name, record in sorted(self._file.get().items())
        }
        return {
            name: {mechanism: verifier.iterations for mechanism, verifier in verifiers.items()}
            for name, verifiers in found.items()
            if verifiers
        }

    def names(self) -> list[str]:
        """Return the names of all users."""
        return sorted(self._file.get())

    def verify(self, name: str, password: str) -> bool:
        """Return whether the password is the user's; takes as long if there is no such user."""
        hashes = self._file.get()
        known = hashes.get(name)
        found = _matches(password, (known or _decoy(name, hashes)).partition(":")[0])
        return found and known is not None


class PasswordCheck(Future[Principal]):
    """A check of credentials, shared by all clients that present them; its result is their user.

    `repeated`: these credentials were verified before. `queued`: it has a place in the queue.
    `right`: what `PasswordChecks.verify` returned, False until then. `ended`: it has a result.
    """

    def __init__(self, key: tuple[bytes, int], name: str, password: str, address: str) -> None:
        super().__init__()
        self.key = key
        self.name = name
        self.password = password
        self.address = address
        self.repeated = self.queued = self.right = self.ended = False
        self.departures: list[Callable[[], bool]] = []
        self.set_running_or_notify_cancel()  # a client that leaves does not cancel it for others

    def is_unwanted(self) -> bool:
        """Return whether it has ended, or all its clients have left; callable from any thread."""
        # Not `done`, whose lock belongs to greenlets under gevent, and not to other threads.
        return self.ended or all(closed() for closed in self.departures)


class PasswordChecks:
    """Decides which checks are done, and remembers their results; callable from many threads.

    `take` takes tokens of the node's rate limits, `count` counts the ends of checks by outcome
    (`verified`, `refused`, `limited`).
    """

    def __init__(
        self,
        settings: Settings,
        take: TakeToken,
        count: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.users = Users(Path(settings.text("auth.users")), clock)
        self._limits = LoginLimits(settings, take, clock)
        self._remembered = RememberedCredentials(settings.seconds("auth.cache"), clock)
        self._count = count
        # By credentials and version of the users file: no check is shared across a change of it.
        self._checks: dict[tuple[bytes, int], PasswordCheck] = {}
        self._queued = 0
        self._lock = threading.Lock()

    def remembered(self, credentials: bytes) -> Principal | None:
        """Return whose credentials (`name:password`) these are if that was verified lately."""
        return self._remembered.get(credentials, self.users.version())

    def begin(
        self, credentials: bytes, address: str, closed: Callable[[], bool]
    ) -> tuple[PasswordCheck, bool]:
        """Return the check of credentials, and whether the caller has to conduct it.

        `closed` tells, in any thread, whether the client has left. Raises UnauthenticatedError for
        credentials that are not `name:password`.
        """
        name, password = _parted(credentials)
        key = self._remembered.digest(credentials), self.users.version()
        with self._lock:
            check = self._checks.get(key)
            if begun := check is None:
                check = self._checks[key] = PasswordCheck(key, name, password, address)
                check.repeated = self._remembered.has(key[0])
            check.departures.append(closed)
        return check, begun

    @contextmanager
    def conducted(self, check: PasswordCheck) -> Iterator[None]:
        """End a check with its result or failure; the caller admits it and sets `right` meanwhile.

        What the caller's block raises becomes the failure, and goes on only if it is neither a
        RouterError nor a TimeoutError.
        """
        failure: RouterError = TooManyRequestsError("The check broke off.", retry_after=1)
        try:
            yield
            if check.right:
                self._verified(check)
            else:
                failure = UnauthenticatedError("The name or the password is wrong.")
                self._refused(check)
        except (TooManyRequestsError, TimeoutError) as error:
            self._count("limited")
            failure = error if isinstance(error, RouterError) else queue_full()
        except RouterError as error:
            failure = error
        finally:
            check.ended = True
            with self._lock:
                del self._checks[check.key]
                self._queued -= check.queued
            if not check.done():
                check.set_exception(failure)

    def admit(self, check: PasswordCheck) -> None:
        """Give a first check a place in the queue; raise TooManyRequestsError beyond a limit."""
        if check.repeated:
            return
        with self._lock:
            if self._queued >= MAX_QUEUED_CHECKS:
                raise queue_full()
            self._queued += 1
            check.queued = True
        self._limits.admit(check.name, check.address)

    def verify(self, check: PasswordCheck) -> bool:
        """Return whether the password is right; called in a thread, when its turn comes.

        Raises TooManyRequestsError if it must not be checked any more.
        """
        if not check.repeated:
            if check.is_unwanted():
                raise TooManyRequestsError("The clients of this check have left.", retry_after=1)
            self._limits.check_address(check.address)
        return self.users.verify(check.name, check.password)

    def judge_proof(self, name: str, address: str, proved: bool) -> Principal:
        """Return the user whose password a client at an address has proved to know by SCRAM.

        Raises UnauthenticatedError, TooManyRequestsError.
        """
        try:
            self._limits.admit(name, address)
        except TooManyRequestsError:
            self._count("limited")
            raise
        if not proved:
            self._count("refused")
            self._limits.failed(address)
            raise UnauthenticatedError("The name or the password is wrong.")
        self._count("verified")
        return Principal(name)

    def _verified(self, check: PasswordCheck) -> None:
        self._count("verified")
        principal = Principal(check.name)
        self._remembered.add(check.key, principal)
        check.set_result(principal)

    def _refused(self, check: PasswordCheck) -> None:
        self._count("refused")
        self._remembered.remove(check.key[0])
        self._limits.failed(check.address)


class RememberedCredentials:
    """Credentials that were verified, by a keyed hash; `keep` in seconds."""

    def __init__(self, keep: float, clock: Callable[[], float]) -> None:
        self._secret = secrets.token_bytes(32)
        self._found: TTLMap[bytes, tuple[Principal, int]] = TTLMap(
            keep, MAX_REMEMBERED_CREDENTIALS, clock
        )

    def digest(self, credentials: bytes) -> bytes:
        """Return the hash that credentials are remembered by."""
        return hmac.digest(self._secret, credentials, "sha256")

    def get(self, credentials: bytes, version: int) -> Principal | None:
        """Return whose credentials these are if that was verified lately, by this version."""
        found = self._found.get(hmac.digest(self._secret, credentials, "sha256"))
        return found[0] if found is not None and found[1] == version else None

    def has(self, digest: bytes) -> bool:
        """Return whether the credentials were verified before, however long ago."""
        return digest in self._found

    def add(self, key: tuple[bytes, int], principal: Principal) -> None:
        """Remember whose credentials these are by this version of the users file."""
        digest, version = key
        self._found.put(digest, (principal, version))

    def remove(self, digest: bytes) -> None:
        """Forget credentials, because they are wrong now."""
        self._found.remove(digest)


def open_users(settings: Settings, clock: Callable[[], float]) -> Users | None:
    """Return the users, None if settings name no file of them; raise SettingError."""
    file = settings.text("auth.users")
    return Users(Path(file), clock) if file else None


def queue_full() -> TooManyRequestsError:
    """Return the failure of a check that finds no place in the queue, or no thread in time."""
    return TooManyRequestsError("There are too many passwords to check.", retry_after=1)


@cache
def context() -> CryptContext:
    """Return what makes and verifies hashes of all three kinds."""
    # Imported late: it takes long, and a broker without users does not need it.
    from passlib.context import CryptContext  # noqa: PLC0415

    return CryptContext(schemes=["argon2", "bcrypt", "apr_md5_crypt"])


def parse_users(text: str) -> Mapping[str, str]:
    """Return what follows the names in a users file; raise ValueError naming an unusable line."""
    found = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, hashed = line.partition(":")
        own, _, verifiers = hashed.partition(":")
        if not (name and colon) or context().identify(own) is None:
            raise ValueError(f"line {number}: expected name:hash of argon2, bcrypt or apr1")
        try:
            parse_verifiers(verifiers)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        found[name] = hashed
    return found


def _parted(credentials: bytes) -> tuple[str, str]:
    try:
        name, colon, password = credentials.decode().partition(":")
    except UnicodeDecodeError:
        name = colon = password = ""
    if not (name and colon):
        raise UnauthenticatedError("The credentials cannot be read: name:password is expected.")
    return name, password


def _decoy(name: str, hashes: Mapping[str, str]) -> str:
    """Return the hash of some user, always the same for a name: it takes as long as a real one."""
    if not hashes:
        return _unused_hash()
    at = int.from_bytes(sha256(name.encode()).digest()[:4]) % len(hashes)
    return list(hashes.values())[at]


@cache
def _unused_hash() -> str:
    return str(context().hash("unused"))


def _matches(password: str, hashed: str) -> bool:
    if len(password) > MAX_PASSWORD_CHARACTERS or "\0" in password:
        return False
    if context().identify(hashed) == "bcrypt" and len(password.encode()) > MAX_BCRYPT_BYTES:
        # bcrypt would look at the beginning only; such a password cannot have been set.
        return False
    return bool(context().verify(password, hashed))
