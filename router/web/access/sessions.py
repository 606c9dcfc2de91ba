"""Sessions of signed-in users: signed texts that browsers keep, and the tokens that go with them.

A session names its user, the version of the password and the time of its end; the server stores
only sessions that were ended early. Every node can check it, because all share the secret that
signs it. The version is a keyed hash of the stored password record, so a changed password or a
removed user ends the session.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson
import structlog

from router.clocks.ttl_cache import TTLCache
from router.errors import BadRequestError, RouterError
from router.services.shared_secret import ENDED_SESSIONS, SharedSecret
from router.sharing.registry import ANY, Registry
from router.web.access.authentication import WorkerPasswords

RECORD: Final = "console-session"
"""The name of the secret in the registry."""
MAX_SESSION_BYTES: Final = 3_800
"""Of a session as text: browsers drop cookies of more than 4,096 bytes, names included."""
ENDED_RECORDS: Final = ENDED_SESSIONS
"""The kind of the registry's records of ended sessions.

A record is named by the session's id and holds the time in ms at which the session ends by itself.
"""
ENDED_CACHE_SECONDS: Final = 2.0
"""Time within which a session that was ended at one worker ends at all."""
MAX_CACHED_ENDINGS: Final = 10_000
_ID_BYTES: Final = 16
# The signed text names its purpose, so that no signature is valid for another.
_SESSION: Final = b"session\0"
_VERSION: Final = b"password\0"
_TOKEN: Final = b"token\0"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A signed-in user, and the token that each change in the session has to present."""

    user: str
    token: str
    id: str
    ends_ms: int


class EndedSessions:
    """The sessions that users of all nodes ended; callable from many threads or greenlets.

    Every sign-out removes the records of sessions whose lifetime is over.
    """

    def __init__(
        self,
        registry: Registry,
        timeout: float,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._timeout = timeout
        self._wall_ms = wall_ms
        self._cache = TTLCache(self._is_ended, ENDED_CACHE_SECONDS, MAX_CACHED_ENDINGS, clock)

    def has(self, session: str) -> bool:
        """Return whether a session was ended; raise what the registry raises."""
        return self._cache.get(session)

    def add(self, session: str, ends_ms: int) -> None:
        """End a session that ends by itself at this time.

        If the registry does not take the record, that is logged and no failure: the browser forgets
        its session anyway.
        """
        try:
            self._remove_old()
            self._registry.put(ENDED_RECORDS, session, b"%d" % ends_ms, ANY, self._timeout)
        except RouterError as error:
            _log.warning("copies of a session stay good until it ends", reason=str(error))
        self._cache.forget(session)

    def _is_ended(self, session: str) -> bool:
        return self._registry.get(ENDED_RECORDS, session, self._timeout) is not None

    def _remove_old(self) -> None:
        now = self._wall_ms()
        for record in self._registry.list(ENDED_RECORDS, self._timeout):
            if int(record.value) <= now:
                self._registry.delete(ENDED_RECORDS, record.name, self._timeout)


class Sessions:
    """Begins, reads and ends sessions; callable from many threads or greenlets."""

    def __init__(
        self,
        passwords: WorkerPasswords,
        secret: SharedSecret,
        ended: EndedSessions,
        lifetime: float,
        wall_ms: Callable[[], int],
    ) -> None:
        self._passwords = passwords
        self._secret = secret
        self._ended = ended
        self._lifetime_ms = int(lifetime * 1000)
        self._wall_ms = wall_ms

    def users(self) -> list[str]:
        """Return the names of the users that can sign in."""
        return self._passwords.users.names()

    def begin(
        self, name: str, password: str, address: str, client: socket.socket | None = None
    ) -> str:
        """Return a new session of a user, as text.

        Raises UnauthenticatedError, TooManyRequestsError, BadRequestError, and what the registry
        raises.
        """
        _, record = self._passwords.sign_in(name, password, address, client)
        held = {
            "user": name,
            "password": self._version(name, record),
            "ends": self._wall_ms() + self._lifetime_ms,
            "id": secrets.token_hex(_ID_BYTES),
        }
        payload = urlsafe_b64encode(orjson.dumps(held))
        text = b".".join((payload, self._signature(_SESSION, payload))).decode()
        if len(text) > MAX_SESSION_BYTES:
            raise BadRequestError("The name is too long for a session.")
        return text

    def read(self, text: str) -> ConsoleSession | None:
        """Return the session if it is valid now, otherwise None; raise what the registry raises."""
        if len(text) > MAX_SESSION_BYTES or not text.isascii():
            return None
        payload, _, signature = text.encode().partition(b".")
        if not hmac.compare_digest(self._signature(_SESSION, payload), signature):
            return None
        held = orjson.loads(urlsafe_b64decode(payload))
        user, record = held["user"], self._passwords.users.record(held["user"])
        if record is None or self._wall_ms() >= held["ends"]:
            return None
        if not hmac.compare_digest(self._version(user, record), held["password"]):
            return None
        if self._ended.has(held["id"]):
            return None
        return ConsoleSession(
            user, self._signature(_TOKEN, payload).decode(), held["id"], held["ends"]
        )

    def end(self, session: ConsoleSession) -> None:
        """End a session at all nodes."""
        self._ended.add(session.id, session.ends_ms)

    def _version(self, name: str, record: str) -> str:
        return self._signature(_VERSION, orjson.dumps([name, record])).decode()

    def _signature(self, use: bytes, data: bytes) -> bytes:
        digest = hmac.digest(self._secret.get(), use + data, "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=")
