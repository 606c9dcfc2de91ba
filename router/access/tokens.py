"""Tokens: signed names (JWT, RFC 7519) that are valid until they expire.

Theory of operation. A token is checked with the key of its algorithm and with no other: HS256 with
the secret in auth.token_secret_file, RS256 or ES256 with auth.token_public_key, by the kind of that
key. So the public key cannot be passed off as a secret. The claim that auth.token_claim names
(`sub`, as in Apache Pulsar) holds the name of the principal. `exp` and `nbf` are compared with the
router's own clock, and other claims are ignored; a token without `exp` is valid until the key
changes. No other server is asked: anyone with the key can make tokens, and a token cannot be
revoked before it expires, but the name in it can lose its rights.

The secret is the content of its file as it is, and keys are PEM or DER: keys made by Apache
Pulsar's commands can be used here, and the reverse. Files are checked for changes every second.
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
from router.errors.quoting import quoted
from router.model import Principal
from router.settings import Settings

MAX_TOKEN_CHARACTERS: Final = 16 * 1024
MAX_NAME_CHARACTERS: Final = 255
MIN_SECRET_BYTES: Final = 32
MIN_RSA_BITS: Final = 2048
_REFUSED: Final = "The token is not valid."
_PEM: Final = b"-----BEGIN "
# PyJWT checks only the signature; times are compared with the clock that is passed in.
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
class TokenKey:
    """A key that signs or checks tokens, and its one algorithm."""

    algorithm: str
    value: Any


@dataclass(frozen=True, slots=True)
class TokenPrincipal:
    """The principal of a token, and when it expires, in seconds since 1970; None: never."""

    principal: Principal
    expires: float | None


class Tokens:
    """Checks tokens; `clock` counts seconds since 1970. Callable from many threads."""

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

    def identity(self, token: str) -> TokenPrincipal:
        """Return the identity in a token; raise UnauthenticatedError unless it is valid now."""
        claims = self._claims(token)
        now, expires = self._clock(), _time(claims, "exp")
        if expires is not None and now >= expires:
            raise UnauthenticatedError("The token has expired.")
        begins = _time(claims, "nbf")
        if begins is not None and now < begins:
            raise UnauthenticatedError("The token is not valid yet.")
        name = claims.get(self._claim)
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARACTERS:
            raise UnauthenticatedError(f"The token has no name in its claim {quoted(self._claim)}.")
        return TokenPrincipal(Principal(name), expires)

    def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > MAX_TOKEN_CHARACTERS:
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


def signed(key: TokenKey, claims: Mapping[str, Any]) -> str:
    """Return a token with these claims."""
    return jwt.encode(dict(claims), key.value, key.algorithm)


def secret_key(data: bytes) -> TokenKey:
    """Return the key in a file of a secret; raise ValueError."""
    if data.startswith(_PEM):
        raise ValueError("this is a key in PEM form, where a secret is expected")
    if len(data) < MIN_SECRET_BYTES:
        raise ValueError(f"a secret of tokens has at least {MIN_SECRET_BYTES} bytes")
    return TokenKey("HS256", data)


def public_key(data: bytes) -> TokenKey:
    """Return the key in a file of a public key, PEM or DER; raise ValueError."""
    load = load_pem_public_key if data.startswith(_PEM) else load_der_public_key
    try:
        return _asymmetric(load(data))
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error


def private_key(data: bytes) -> TokenKey:
    """Return the key in a file of a private key, PEM or DER, without a password; raise ValueError.

    Raises TypeError for one that has a password.
    """
    load = load_pem_private_key if data.startswith(_PEM) else load_der_private_key
    try:
        return _asymmetric(load(data, None))
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error


def read_key(file: Path, read: Callable[[bytes], TokenKey]) -> TokenKey:
    """Return the key in a file; raise SettingError with a sentence."""
    try:
        return read(file.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{file}: {error}") from error


def _asymmetric(key: object) -> TokenKey:
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < MIN_RSA_BITS:
            raise ValueError(f"an RSA key of {key.key_size} bits; {MIN_RSA_BITS} are the minimum")
        return TokenKey("RS256", key)
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        if isinstance(key.curve, ec.SECP256R1):
            return TokenKey("ES256", key)
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
