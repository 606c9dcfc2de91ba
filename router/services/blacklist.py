"""Addresses that are served nothing: a durable list, as this worker last read it.

A thread reads the list every few seconds, so that no request waits for that, and requests look
into a set. While the registry does not answer, the last list stays in force; before the first
answer no address is on it.
"""

from __future__ import annotations

import threading
from itertools import count

import structlog

from router.access.blacklist import KIND, LOOK_SECONDS, Networks, normal
from router.backends import Registry
from router.errors import RouterError

_log = structlog.get_logger(__name__)


class Blacklist:
    """The list; `active` says whether anybody is on it. Callable from many threads or greenlets."""

    def __init__(self, registry: Registry, timeout: float) -> None:
        self._registry = registry
        self._timeout = timeout
        self.active = False
        self._listed = Networks()
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
        return self._listed.hold(address)

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
        listed = Networks(self.names())
        # A look that began earlier and ends later, as the thread's may, knows less.
        if number > self._last:
            self._last, self._listed = number, listed
            self.active = bool(listed)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
                self._failing = False
            except RouterError as error:
                if not (self._failing or self._ended.is_set()):
                    _log.warning("the blacklist is as it was last read", reason=str(error))
                self._failing = True
            self._ended.wait(LOOK_SECONDS)
