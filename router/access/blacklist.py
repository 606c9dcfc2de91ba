"""The list of addresses that are served nothing: how it is written, and who is on it.

A record of the kind `blacklist` is named by an address or a network and is empty otherwise. HTTP
and the broker's listeners both go by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

import structlog

from router.access.logins import parse_address
from router.errors import BadRequestError, BlacklistedError
from router.quoting import quoted

KIND: Final = "blacklist"
LOOK_SECONDS: Final = 2.0
"""Time between two reads of the list."""
MAX_REMEMBERED: Final = 10_000
_MAPPED_BITS: Final = 96

Network = IPv4Network | IPv6Network

_log = structlog.get_logger(__name__)


class Networks:
    """The list as it was read once; true if there is anything on it."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._networks = tuple(_networks(names))
        self._remembered: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._networks)

    def hold(self, address: str) -> bool:
        """Return whether an address is on the list, by itself or in a network."""
        remembered = self._remembered
        known = remembered.get(address)
        if known is None:
            parsed = parse_address(address)
            known = parsed is not None and any(parsed in network for network in self._networks)
            if len(remembered) >= MAX_REMEMBERED:
                remembered.clear()
            remembered[address] = known
        return known


def refusal(address: str) -> BlacklistedError:
    """Return the failure that tells a client of its address, in the original's words."""
    return BlacklistedError(
        f"Source address [{address}] is blacklisted. Please contact the cluster management team."
    )


def parse_network(text: str) -> Network:
    """Return a network, or an address as the network of one; raise ValueError."""
    if "%" in text:
        raise ValueError("an interface of ours is no part of an address")
    found = ip_network(text.strip(), strict=False)
    mapped = found.network_address
    if isinstance(mapped, IPv6Address) and mapped.ipv4_mapped and found.prefixlen >= _MAPPED_BITS:
        return IPv4Network((mapped.ipv4_mapped, found.prefixlen - _MAPPED_BITS))
    return found


def normal(text: str) -> str:
    """Return how an address or network is written on the list; raise BadRequestError."""
    try:
        found = parse_network(text)
    except ValueError as error:
        raise BadRequestError(f"{quoted(text)} is no address and no network.") from error
    one = found.prefixlen == found.max_prefixlen
    return str(found.network_address) if one else str(found)


def _networks(names: Iterable[str]) -> Iterator[Network]:
    for name in names:
        try:
            yield ip_network(name)
        except ValueError as error:  # written by something else
            _log.error("a record of the blacklist is no address", reason=str(error))
