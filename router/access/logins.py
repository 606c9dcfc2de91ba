"""What a password check costs and how its result is kept: the same for HTTP and for Pulsar clients.

A check costs a tenth of a second and tens of megabytes on purpose, so its result is remembered for
a short while under a keyed hash of the credentials (never the credentials themselves), and
forgotten when the users file changes. Checks are rationed by the node for each user and address.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from router.model import Principal

MOST_REMEMBERED: Final = 10_000
# What a network gives to one client in IPv6, who then has all of its addresses.
SHARE_BITS: Final = 64

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: Principal
    until: float
    version: int


class Verified:
    """The credentials that were verified lately, `keep` seconds ago at most."""

    def __init__(self, keep: float, clock: Callable[[], float]) -> None:
        self._keep = keep
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._found: dict[bytes, _Verified] = {}

    def digest(self, credentials: bytes) -> bytes:
        """Return what credentials are remembered by."""
        return hmac.digest(self._secret, credentials, "sha256")

    def get(self, digest: bytes, version: int) -> Principal | None:
        """Return whose credentials these are if that was found out from this version of a file."""
        found = self._found.get(digest)
        if found is None:
            return None
        if found.until <= self._clock() or found.version != version:
            self._found.pop(digest, None)
            return None
        return found.principal

    def keep(self, digest: bytes, principal: Principal, version: int) -> None:
        """Remember whose credentials these are."""
        if len(self._found) >= MOST_REMEMBERED:
            self._found.clear()
        self._found[digest] = _Verified(principal, self._clock() + self._keep, version)


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
