"""Addresses of clients: how they are read and limited, and the list of those that are refused.

A record of the kind `blacklist` is named by an address or a network, and is empty otherwise. HTTP
workers and the broker's listeners each keep a copy of the list (`BlacklistCopy`), which a thread or
a task of theirs reads again every few seconds, because other nodes change it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import structlog

from router.errors import BadRequestError, BlacklistedError, RouterError
from router.errors.quoting import quoted

BLACKLIST_RECORDS: Final = "blacklist"
"""The kind of the registry's records of refused addresses."""
BLACKLIST_INTERVAL_SECONDS: Final = 2.0
"""Time between two reads of the list."""
MAX_REMEMBERED_ADDRESSES: Final = 10_000
# A network gives this much to one client in IPv6, which then has all of its addresses.
CLIENT_PREFIX_BITS: Final = 64
_MAPPED_BITS: Final = 96
_MAX_ADDRESS_CHARACTERS: Final = 45

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_log = structlog.get_logger(__name__)


def parse_address(text: str) -> Address | None:
    """Return an address, IPv4 if it is one written as IPv6; None for what is no address."""
    address = text.partition("%")[0]
    return _parsed(address) if len(address) <= _MAX_ADDRESS_CHARACTERS else None


@lru_cache(maxsize=1_024)
def _parsed(text: str) -> Address | None:
    # Requests come from a few addresses, and each of them is looked at several times.
    try:
        found = ip_address(text)
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def client_network(address: str) -> str:
    """Return what rate limits count: the address, or the network of one client in IPv6."""
    found = parse_address(address)
    if isinstance(found, IPv6Address):
        return str(ip_network((found, CLIENT_PREFIX_BITS), strict=False))
    return address if found is None else str(found)


class Networks:
    """Addresses and networks; true if there are any."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._networks = tuple(_networks(names))
        self._remembered: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._networks)

    def hold(self, address: str) -> bool:
        """Return whether an address is among them, by itself or in a network."""
        remembered = self._remembered
        known = remembered.get(address)
        if known is None:
            parsed = parse_address(address)
            known = parsed is not None and any(parsed in network for network in self._networks)
            if len(remembered) >= MAX_REMEMBERED_ADDRESSES:
                remembered.clear()
            remembered[address] = known
        return known


class BlacklistCopy:
    """A copy of the list, which stays in force while the registry does not answer.

    `active` says whether it holds anything. Before the first read it is empty.
    """

    def __init__(self) -> None:
        self.active = False
        self._names: list[str] = []
        self._networks = Networks()
        self._failing = False
        self._observers: list[Callable[[], None]] = []

    def holds(self, address: str) -> bool:
        """Return whether an address is on the list, by itself or in a network.

        A client of the node's own socket has no address ("") and is never on it.
        """
        return self.active and address != "" and self._networks.hold(address)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this whenever the list has changed."""
        self._observers.append(changed)

    def replace(self, names: list[str]) -> None:
        """Take the list as it was just read."""
        self._failing = False
        if names == self._names:
            return
        self._names, self._networks = names, Networks(names)
        self.active = bool(self._networks)
        for changed in self._observers:
            changed()

    def unavailable(self, error: RouterError) -> None:
        """Log that the list cannot be read, once until it can."""
        if not self._failing:
            _log.warning("the blacklist is as it was last read", reason=str(error))
        self._failing = True


def refusal(address: str) -> BlacklistedError:
    """Return the failure of a refused client, in the words of the original Message Router."""
    return BlacklistedError(
        f"Source address [{address}] is blacklisted. Please contact the cluster management team."
    )


def parse_network(text: str) -> Network:
    """Return a network, or an address as the network of one; raise ValueError."""
    if "%" in text:
        raise ValueError("an interface is no part of an address")
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
