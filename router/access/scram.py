"""SCRAM (RFC 5802, RFC 7677): verifiers of passwords, and the server's side of an exchange.

A verifier proves that a client knows a password without the password being sent. It is not the
password, but a stolen one is tested against guesses faster than an argon2id hash; so users have
verifiers only if they were added with them. The users file has them behind the hash, as
`MECHANISM,ITERATIONS,SALT,STORED-KEY,SERVER-KEY` in base64, with a semicolon between two.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from router.errors import UnauthenticatedError

HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS: Final = 16_384
MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 1_000_000
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 18
MAX_MESSAGE_BYTES: Final = 4_096
_FIELDS: Final = 5


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What proves that a client knows a user's password."""

    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def make(cls, mechanism: str, password: str) -> ScramVerifier:
        """Return the verifier of a password, with a new salt."""
        salt, name = secrets.token_bytes(SALT_BYTES), HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", name)
        server_key = hmac.digest(salted, b"Server Key", name)
        return cls(mechanism, ITERATIONS, salt, _hashed(client_key, name), server_key)

    @classmethod
    def decoy(cls, mechanism: str, secret: bytes, user: str) -> ScramVerifier:
        """Return what stands for a user without a verifier: no proof fits it.

        Its salt is always the same, so that an exchange does not tell whether there is the user.
        """
        salt = hmac.digest(secret, user.encode("utf-8", "replace"), "sha256")[:SALT_BYTES]
        return cls(mechanism, ITERATIONS, salt, b"", b"")

    def write(self) -> str:
        """Return the verifier as the users file has it."""
        keys = self.salt, self.stored_key, self.server_key
        return ",".join((self.mechanism, str(self.iterations), *(_text(key) for key in keys)))

    def proves(self, proof: bytes, message: bytes) -> bool:
        """Return whether a client that sends this proof knows the password."""
        name = HASHES[self.mechanism]
        signature = hmac.digest(self.stored_key or b"\0", message, name)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        return len(proof) == len(signature) and hmac.compare_digest(
            _hashed(client_key, name), self.stored_key
        )


def write_verifiers(password: str) -> str:
    """Return the verifiers of a password for all mechanisms."""
    return ";".join(ScramVerifier.make(mechanism, password).write() for mechanism in HASHES)


def parse_verifiers(text: str) -> Mapping[str, ScramVerifier]:
    """Return the verifiers of a user by mechanism; raise ValueError."""
    found = {}
    for one in filter(None, text.split(";")):
        fields = one.split(",")
        if len(fields) != _FIELDS or fields[0] not in HASHES:
            raise ValueError("expected SCRAM verifiers behind the hash")
        iterations = int(fields[1])
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ValueError(f"a SCRAM verifier has {MIN_ITERATIONS} iterations at least")
        salt, stored, server = (b64decode(field, validate=True) for field in fields[2:])
        found[fields[0]] = ScramVerifier(fields[0], iterations, salt, stored, server)
    return found


class ScramExchange:
    """One authentication by a mechanism; `find` returns the verifier of a user.

    `first` and `final` take what the client sends and return the answer; both raise
    UnauthenticatedError for what is no message of SCRAM. Behind `final`, `proved` says whether the
    client knows the password of `user`.
    """

    def __init__(self, find: Callable[[str], ScramVerifier], nonce: str = "") -> None:
        self.user = ""
        self.proved = False
        self._find = find
        self._own_nonce = nonce or secrets.token_urlsafe(NONCE_BYTES)
        self._nonce = self._bare = self._answer = self._header = ""
        self._verifier: ScramVerifier | None = None

    def first(self, sent: bytes) -> bytes:
        """Return the salt and the iterations of the user that a client names."""
        text = _decoded(sent)
        binding, _, rest = text.partition(",")
        acts_as, _, self._bare = rest.partition(",")
        fields = _fields(self._bare)
        if binding not in {"n", "y"} or "m" in fields or not fields.get("r"):
            raise _malformed()
        self.user = fields.get("n", "").replace("=2C", ",").replace("=3D", "=")
        if not self.user or acts_as not in {"", f"a={fields['n']}"}:
            raise _malformed()
        self._header = text[: len(text) - len(self._bare)]
        self._nonce = fields["r"] + self._own_nonce
        verifier = self._verifier = self._find(self.user)
        self._answer = f"r={self._nonce},s={_text(verifier.salt)},i={verifier.iterations}"
        return self._answer.encode()

    def final(self, sent: bytes) -> bytes:
        """Return the server's own proof; see `proved`."""
        text = _decoded(sent)
        before, _, proof = text.rpartition(",p=")
        fields = _fields(before)
        if self._verifier is None or fields.get("c") != _text(self._header.encode()):
            raise _malformed()
        if not hmac.compare_digest(fields.get("r", "").encode(), self._nonce.encode()):
            raise _malformed()
        message = f"{self._bare},{self._answer},{before}".encode()
        try:
            self.proved = self._verifier.proves(b64decode(proof, validate=True), message)
        except ValueError:
            raise _malformed() from None
        name = HASHES[self._verifier.mechanism]
        return b"v=" + b64encode(hmac.digest(self._verifier.server_key or b"\0", message, name))


def _hashed(data: bytes, name: str) -> bytes:
    return hashlib.new(name, data).digest()


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _decoded(sent: bytes) -> str:
    if len(sent) > MAX_MESSAGE_BYTES:
        raise _malformed()
    try:
        return sent.decode()
    except UnicodeDecodeError:
        raise _malformed() from None


def _fields(text: str) -> dict[str, str]:
    found = {}
    for field in text.split(","):
        name, equals, value = field.partition("=")
        if not equals or name in found:
            raise _malformed()
        found[name] = value
    return found


def _malformed() -> UnauthenticatedError:
    return UnauthenticatedError("This is no message of SCRAM.")
