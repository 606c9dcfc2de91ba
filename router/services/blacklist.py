"""Addresses that are served nothing: a durable list, as this worker last read it.

A record of the kind `blacklist` is named by an address or a network and is empty otherwise. A
thread reads the list every few seconds, so that no request waits for that, and requests look into a
set. While nobody answers, the last list stays in force; before the first answer nobody is on it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from itertools import count
from typing import Final

import structlog

from router.access.logins import Address, parse_address
from router.backends import Registry
from router.errors import BadRequestError, RouterError

KIND: Final = "blacklist"
LOOK_EVERY: Final = 2.0
MOST_REMEMBERED: Final = 10_000
_MAPPED: Final = 96

__all__ = ["Address", "Blacklist", "Network", "normal", "parse_address", "parse_network"]

_log = structlog.get_logger(__name__)

Network = IPv4Network | IPv6Network


class Blacklist:
    """The list; `active` says whether anybody is on it. Callable from many threads or greenlets."""

    def __init__(self, registry: Registry, timeout: float) -> None:
        self._registry = registry
        self._timeout = timeout
        self.active = False
        self._networks: tuple[Network, ...] = ()
        self._remembered: dict[str, bool] = {}
        self._looks = count(1)
        self._last = 0
        self._ended = threading.Event()
        self._failing = False

    def start(self) -> None:
        """Begin reading the list."""
        threading.Thread(target=self._run, name="blacklist", daemon=True).start()

    def stop(self) -> None:
        """Read it no more."""
        self._ended.set()

    def holds(self, address: str) -> bool:
        """Return whether an address is on the list, by itself or in a network."""
        remembered = self._remembered
        known = remembered.get(address)
        if known is None:
            parsed = parse_address(address)
            known = parsed is not None and any(parsed in network for network in self._networks)
            if len(remembered) >= MOST_REMEMBERED:
                remembered.clear()
            remembered[address] = known
        return known

    def names(self) -> list[str]:
        """Return the list as it is."""
        return [record.name for record in self._registry.list(KIND, self._timeout)]

    def add(self, text: str) -> None:
        """Put an address or network on the list; raise BadRequestError for what is neither."""
        self._registry.put(KIND, normal(text), b"{}", None, self._timeout)
        self.look()

    def remove(self, text: str) -> bool:
        """Take an address or network off the list; return whether it was on it."""
        was = self._registry.delete(KIND, normal(text), self._timeout)
        self.look()
        return was

    def look(self) -> None:
        """Read the list now; it is in force here when this returns."""
        number = next(self._looks)
        networks = tuple(_networks(self.names()))
        # A look that began earlier and ends later, as the thread's may, knows less.
        if number > self._last:
            # Another thread may still fill the old dict; it is the new one that answers now.
            self._last, self._networks, self._remembered = number, networks, {}
            self.active = bool(networks)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
                self._failing = False
            except RouterError as error:
                if not (self._failing or self._ended.is_set()):
                    _log.warning("the blacklist is as it was last read", reason=str(error))
                self._failing = True
            self._ended.wait(LOOK_EVERY)


def _networks(names: Iterable[str]) -> Iterator[Network]:
    for name in names:
        try:
            yield ip_network(name)
        except ValueError as error:  # written by somebody else
            _log.error("a record of the blacklist is no address", reason=str(error))


def parse_network(text: str) -> Network:
    """Return a network, or an address as the network of one; raise ValueError."""
    if "%" in text:
        raise ValueError("an interface of ours is no part of an address")
    found = ip_network(text.strip(), strict=False)
    mapped = found.network_address
    if isinstance(mapped, IPv6Address) and mapped.ipv4_mapped and found.prefixlen >= _MAPPED:
        return IPv4Network((mapped.ipv4_mapped, found.prefixlen - _MAPPED))
    return found


def normal(text: str) -> str:
    """Return how an address or network is written on the list; raise BadRequestError."""
    try:
        found = parse_network(text)
    except ValueError as error:
        raise BadRequestError(f"{text[:80]!r} is no address and no network.") from error
    one = found.prefixlen == found.max_prefixlen
    return str(found.network_address) if one else str(found)
