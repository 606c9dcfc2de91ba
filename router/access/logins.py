"""How the result of a password check is kept: the same for HTTP and for Pulsar clients.

A result is remembered for a short while under a keyed hash of the credentials (never the
credentials themselves) and does not count once the users file changed. That credentials were right
once is remembered for longer: they are checked again without the limits of
router/access/attempts.py, so that a flood of wrong passwords does not keep out known users.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from router.model import Principal

MAX_REMEMBERED: Final = 10_000
# What a network gives to one client in IPv6, who then has all of its addresses.
SHARE_BITS: Final = 64

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: Principal
    until: float
    version: int


class Verified:
    """The credentials that were verified lately, `keep` seconds ago at most, and before that."""

    def __init__(self, keep: float, clock: Callable[[], float]) -> None:
        self._keep = keep
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._found: dict[bytes, _Verified] = {}
        self._lock = threading.Lock()

    def digest(self, credentials: bytes) -> bytes:
        """Return what credentials are remembered by."""
        return hmac.digest(self._secret, credentials, "sha256")

    def get(self, digest: bytes, version: int) -> Principal | None:
        """Return whose credentials these are if that was found out from this version of a file."""
        found = self._found.get(digest)
        if found is None or found.until <= self._clock() or found.version != version:
            return None
        return found.principal

    def seen(self, digest: bytes) -> bool:
        """Return whether the credentials were verified before, however long ago that is."""
        return digest in self._found

    def keep(self, digest: bytes, principal: Principal, version: int) -> None:
        """Remember whose credentials these are; the oldest are dropped."""
        with self._lock:
            self._found.pop(digest, None)
            while len(self._found) >= MAX_REMEMBERED:
                del self._found[next(iter(self._found))]
            self._found[digest] = _Verified(principal, self._clock() + self._keep, version)

    def drop(self, digest: bytes) -> None:
        """Forget credentials: they are wrong now."""
        with self._lock:
            self._found.pop(digest, None)


def bucket(address: str, name: str) -> str:
    """Return the name of the ration of password checks for a user and an address."""
    # Names come from strangers and may be long; a bucket's name is not.
    return "login:" + sha256(f"{share(address)}\0{name}".encode()).hexdigest()


def parse_address(text: str) -> Address | None:
    """Return an address, IPv4 where it is one written as IPv6; None for what is no address."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def share(address: str) -> str:
    """Return what a ration is for: the address, of IPv6 the network of its client."""
    found = parse_address(address)
    if isinstance(found, IPv6Address):
        return str(ip_network((found, SHARE_BITS), strict=False))
    return address if found is None else str(found)
