"""The blacklist of an HTTP worker: a thread reads it, and administrators change it."""

from __future__ import annotations

import threading
from itertools import count

from router.access import addresses
from router.access.addresses import BLACKLIST_INTERVAL_SECONDS, BLACKLIST_RECORDS, normal
from router.errors import RouterError
from router.sharing.registry import Registry


class WorkerBlacklist(addresses.BlacklistCopy):
    """The list of all nodes; callable from many threads or greenlets."""

    def __init__(self, registry: Registry, timeout: float) -> None:
        super().__init__()
        self._registry = registry
        self._timeout = timeout
        self._reads = count(1)
        self._last_read = 0
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin reading the list."""
        threading.Thread(target=self._run, name="blacklist", daemon=True).start()

    def stop(self) -> None:
        """Stop reading the list."""
        self._ended.set()

    def names(self) -> list[str]:
        """Return the addresses and networks in the registry now; raise what the registry raises."""
        return [record.name for record in self._registry.list(BLACKLIST_RECORDS, self._timeout)]

    def add(self, text: str) -> None:
        """Put an address or network on the list; raise BadRequestError for what is neither."""
        self._registry.put(BLACKLIST_RECORDS, normal(text), b"{}", None, self._timeout)
        self.refresh()

    def remove(self, text: str) -> bool:
        """Take an address or network off the list; return whether it was on it."""
        was = self._registry.delete(BLACKLIST_RECORDS, normal(text), self._timeout)
        self.refresh()
        return was

    def refresh(self) -> None:
        """Read the list now; it is in force here when this returns."""
        number = next(self._reads)
        names = self.names()
        # A read that began earlier and ends later, as the thread's may, knows less.
        if number > self._last_read:
            self._last_read = number
            self.replace(names)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.refresh()
            except RouterError as error:
                if not self._ended.is_set():
                    self.unavailable(error)
            self._ended.wait(BLACKLIST_INTERVAL_SECONDS)
