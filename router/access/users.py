"""The users file: htpasswd lines `name:hash`, hashes of argon2id, bcrypt or Apache's MD5 (apr1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from passlib.context import CryptContext

from router.access.watched import Watched, in_text

LONGEST_PASSWORD: Final = 1_024
LONGEST_BCRYPT: Final = 72

CONTEXT: Final = CryptContext(schemes=["argon2", "bcrypt", "apr_md5_crypt"])


class Users:
    """Names and password hashes; a change of the file counts within a second."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._file = Watched(path, in_text(parse), clock)

    def version(self) -> int:
        """Return a number that grows when the file changes."""
        self._file.get()
        return self._file.version

    def record(self, name: str) -> str | None:
        """Return the stored hash of a user's password, None: there is no such user."""
        return self._file.get().get(name)

    def names(self) -> list[str]:
        """Return the names of all users."""
        return sorted(self._file.get())

    def verify(self, name: str, password: str) -> bool:
        """Return whether the password is the user's; takes as long for users that do not exist."""
        hashes = self._file.get()
        known = hashes.get(name)
        found = _matches(password, known or _decoy(name, hashes))
        return found and known is not None


def parse(text: str) -> Mapping[str, str]:
    """Read the file; raise ValueError naming the line that cannot be used."""
    found = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, hashed = line.partition(":")
        if not (name and colon) or CONTEXT.identify(hashed) is None:
            raise ValueError(f"line {number}: expected name:hash of argon2, bcrypt or apr1")
        found[name] = hashed
    return found


def _decoy(name: str, hashes: Mapping[str, str]) -> str:
    """Return the hash of some user, always the same for a name: it takes as long as a real one."""
    if not hashes:
        return _nobody()
    at = int.from_bytes(sha256(name.encode()).digest()[:4]) % len(hashes)
    return list(hashes.values())[at]


def _nobody() -> str:
    # Made once, when first needed: a hash takes a tenth of a second.
    if not _made:
        _made.append(CONTEXT.hash("nobody"))
    return _made[0]


_made: list[str] = []


def _matches(password: str, hashed: str) -> bool:
    if len(password) > LONGEST_PASSWORD or "\0" in password:
        return False
    if CONTEXT.identify(hashed) == "bcrypt" and len(password.encode()) > LONGEST_BCRYPT:
        # bcrypt would look at the beginning only; such a password cannot have been set.
        return False
    return bool(CONTEXT.verify(password, hashed))
