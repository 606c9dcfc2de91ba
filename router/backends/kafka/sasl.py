"""The client's side of SASL PLAIN and SCRAM (RFC 5802, RFC 7677), without channel binding."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Generator
from typing import Final

MAX_ITERATIONS: Final = 1_000_000
"""What a server may have the client compute, about a second."""
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

Exchange = Generator[bytes, bytes, None]
"""Yields what is sent to the server, is sent what the server answers, and ends when both agree."""


def exchange(mechanism: str, username: str, password: str) -> Exchange:
    """Return the exchange of a mechanism; it raises ValueError for a server's invalid answer."""
    if mechanism == "PLAIN":
        return _plain(username, password)
    return scram(_HASHES[mechanism], username, password, secrets.token_urlsafe(24))


def _plain(username: str, password: str) -> Exchange:
    yield f"\0{username}\0{password}".encode()


def scram(digest: str, username: str, password: str, nonce: str) -> Exchange:
    """Return the exchange of SCRAM with a hash of hashlib and the client's nonce."""
    name = username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}"
    server_first = (yield f"n,,{client_first}".encode()).decode()
    found = _attributes(server_first)
    salt, iterations, both = b64decode(found["s"]), int(found["i"]), found["r"]
    if not both.startswith(nonce) or not 1 <= iterations <= MAX_ITERATIONS:
        raise ValueError("the server's nonce or number of iterations is wrong")
    client_final = f"c={b64encode(b'n,,').decode()},r={both}"
    signed = ",".join((client_first, server_first, client_final)).encode()
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = yield f"{client_final},p={b64encode(proof).decode()}".encode()
    server_key = hmac.digest(salted, b"Server Key", digest)
    verifier = b64decode(_attributes(server_final.decode()).get("v", ""))
    if not hmac.compare_digest(verifier, hmac.digest(server_key, signed, digest)):
        raise ValueError("the server does not know the password")


def _attributes(text: str) -> dict[str, str]:
    found = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if "e" in found:
        raise ValueError(f"the server answered {found['e']}")
    return found
