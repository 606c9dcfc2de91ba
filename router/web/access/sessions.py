"""Sessions of signed-in users: signed texts that browsers keep, and the tokens that go with them.

A session names its user, the version of the password and when it ends; the server keeps nothing of
it but that it was ended. Any node can check it, since all share the secret that signs it. The
version is a keyed hash of the stored password record, so a changed password or a removed user ends
the session.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from router.errors import BadRequestError
from router.services.ended_sessions import EndedSessions
from router.services.shared_secret import SharedSecret
from router.web.access.passwords import Passwords

if TYPE_CHECKING:
    import socket

RECORD: Final = "console-session"
"""The name of the secret in the registry."""
MAX_SESSION_BYTES: Final = 3_800
"""Of a session as text: browsers drop cookies of more than 4,096 bytes, names included."""
_ID_BYTES: Final = 16
# What is signed says what it is for, so that no signature stands for another.
_SESSION: Final = b"session\0"
_VERSION: Final = b"password\0"
_TOKEN: Final = b"token\0"


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in user, and the token that each of the session's changes has to bring along."""

    user: str
    token: str
    id: str
    ends_ms: int


class Sessions:
    """Begins and reads sessions; callable from many threads or greenlets."""

    def __init__(
        self,
        passwords: Passwords,
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
        """Return the names of those who can sign in."""
        return self._passwords.names()

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

    def read(self, text: str) -> Session | None:
        """Return a session that counts now, None otherwise; raise what the registry raises."""
        if len(text) > MAX_SESSION_BYTES or not text.isascii():
            return None
        payload, _, signature = text.encode().partition(b".")
        if not hmac.compare_digest(self._signature(_SESSION, payload), signature):
            return None
        held = orjson.loads(urlsafe_b64decode(payload))
        user, record = held["user"], self._passwords.record(held["user"])
        if record is None or self._wall_ms() >= held["ends"]:
            return None
        if not hmac.compare_digest(self._version(user, record), held["password"]):
            return None
        if self._ended.has(held["id"]):
            return None
        return Session(user, self._signature(_TOKEN, payload).decode(), held["id"], held["ends"])

    def end(self, session: Session) -> None:
        """End a session at all nodes."""
        self._ended.add(session.id, session.ends_ms)

    def _version(self, name: str, record: str) -> str:
        return self._signature(_VERSION, orjson.dumps([name, record])).decode()

    def _signature(self, use: bytes, data: bytes) -> bytes:
        digest = hmac.digest(self._secret.get(), use + data, "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=")
