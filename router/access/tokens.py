"""Tokens: a signed name (JWT, RFC 7519) that is good until its time is over.

Theory of operation. A token is checked by the key that goes with its algorithm, and by no other:
HS256 by the secret in auth.token_secret_file, RS256 or ES256 by auth.token_public_key, whichever
kind of key that is. So nobody can pass the public key off as a secret. Whose it is stands in the
claim that auth.token_claim names (`sub`, as in Apache Pulsar), `exp` and `nbf` are honoured by the
router's own clock, and other claims mean nothing here; a token without `exp` is good until the key
changes. Nothing is asked of another server: whoever has the key can make tokens, and one that was
given away cannot be taken back before its time, but the name in it can lose its rights.

The secret is the bytes of its file as they are, and keys are PEM or DER: what Apache Pulsar's own
commands make can be used here, and the other way round. Files are looked at again each second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from router.access.watched import Watched
from router.errors import SettingError, UnauthenticatedError
from router.model import Principal
from router.quoting import quoted
from router.settings import Settings

LONGEST: Final = 16 * 1024
LONGEST_NAME: Final = 255
SHORTEST_SECRET: Final = 32
SMALLEST_RSA: Final = 2048
_REFUSED: Final = "The token is not valid."
_PEM: Final = b"-----BEGIN "
# Only the signature is PyJWT's to check: times are compared with a clock that is handed in.
_OPTIONS: Final[Any] = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


@dataclass(frozen=True, slots=True)
class Key:
    """What signs or checks tokens, and the one algorithm that it does it by."""

    algorithm: str
    value: Any


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose a token is, and until when, in seconds since 1970; None: it does not expire."""

    principal: Principal
    expires: float | None


class Tokens:
    """Answers whose a token is; `clock` counts seconds since 1970. Callable from many threads."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], ticks: Callable[[], float]
    ) -> None:
        self._claim = settings.text("auth.token_claim")
        self._clock = clock
        self._keys = [
            Watched(Path(file), read, ticks)
            for name, read in (
                ("auth.token_secret_file", secret_key),
                ("auth.token_public_key", public_key),
            )
            if (file := settings.text(name))
        ]

    def identity(self, token: str) -> Identity:
        """Return whose a token is; raise UnauthenticatedError unless it is good now."""
        claims = self._claims(token)
        now, expires = self._clock(), _time(claims, "exp")
        if expires is not None and now >= expires:
            raise UnauthenticatedError("The token has expired.")
        begins = _time(claims, "nbf")
        if begins is not None and now < begins:
            raise UnauthenticatedError("The token is not valid yet.")
        name = claims.get(self._claim)
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            raise UnauthenticatedError(f"The token has no name in its claim {quoted(self._claim)}.")
        return Identity(Principal(name), expires)

    def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > LONGEST:
            raise UnauthenticatedError(_REFUSED)
        try:
            algorithm = jwt.get_unverified_header(token).get("alg")
            for watched in self._keys:
                key = watched.get()
                if key.algorithm == algorithm:
                    return jwt.decode(token, key.value, [key.algorithm], options=_OPTIONS)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise UnauthenticatedError(_REFUSED) from error
        raise UnauthenticatedError(_REFUSED)


def signed(key: Key, claims: Mapping[str, Any]) -> str:
    """Return a token with these claims."""
    return jwt.encode(dict(claims), key.value, key.algorithm)


def secret_key(data: bytes) -> Key:
    """Return the key in a file of a secret; raise ValueError."""
    if data.startswith(_PEM):
        raise ValueError("this is a key in PEM form, where a secret is expected")
    if len(data) < SHORTEST_SECRET:
        raise ValueError(f"a secret of tokens has at least {SHORTEST_SECRET} bytes")
    return Key("HS256", data)


def public_key(data: bytes) -> Key:
    """Return the key in a file of a public key, PEM or DER; raise ValueError."""
    load = load_pem_public_key if data.startswith(_PEM) else load_der_public_key
    try:
        return _asymmetric(load(data))
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error


def private_key(data: bytes) -> Key:
    """Return the key in a file of a private key, PEM or DER, without a password; raise ValueError.

    Raises TypeError for one that has a password.
    """
    load = load_pem_private_key if data.startswith(_PEM) else load_der_private_key
    try:
        return _asymmetric(load(data, None))
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error


def read_key(file: Path, read: Callable[[bytes], Key]) -> Key:
    """Return the key in a file; raise SettingError with a sentence."""
    try:
        return read(file.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{file}: {error}") from error


def _asymmetric(key: object) -> Key:
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < SMALLEST_RSA:
            raise ValueError(f"an RSA key of {key.key_size} bits; {SMALLEST_RSA} are the least")
        return Key("RS256", key)
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        if isinstance(key.curve, ec.SECP256R1):
            return Key("ES256", key)
        raise ValueError(f"a key on the curve {key.curve.name}; tokens are signed on P-256")
    raise ValueError("neither an RSA key nor one on the curve P-256")


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    found = claims.get(name)
    if found is None:
        return None
    try:
        seconds = float(found) if isinstance(found, int | float) else math.nan
    except OverflowError:
        seconds = math.nan
    if isinstance(found, bool) or not math.isfinite(seconds):
        raise UnauthenticatedError(_REFUSED)
    return seconds
