"""Addresses that the broker's listeners serve nothing, as the registry had them lately.

The list is read again and again, because other nodes change it as well. While the registry does not
answer, the last list stays in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from router.access.blacklist import KIND, LOOK_SECONDS, Networks
from router.coordination import Registry
from router.errors import RouterError

_log = structlog.get_logger(__name__)


class Blacklist:
    """The list of one broker; used on its event loop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._names: list[str] = []
        self._listed = Networks()
        self._failing = False
        self._reading: asyncio.Task[None] | None = None
        self._observers: list[Callable[[], None]] = []

    def holds(self, address: str) -> bool:
        """Return whether an address is on the list; a client of the node's own socket has none."""
        return bool(self._listed) and bool(address) and self._listed.hold(address)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this whenever the list is another."""
        self._observers.append(changed)

    async def start(self) -> None:
        """Read the list, and go on reading it until `stop`."""
        await self.look()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def stop(self) -> None:
        """Read it no more."""
        if self._reading is not None:
            self._reading.cancel()

    async def look(self) -> None:
        """Read the list now; the last one stays if the registry does not answer."""
        try:
            names = await self._all()
        except RouterError as error:
            if not self._failing:
                _log.warning("the blacklist is as it was last read", reason=str(error))
            self._failing = True
            return
        self._failing = False
        if names != self._names:
            self._names, self._listed = names, Networks(names)
            for changed in self._observers:
                changed()

    async def _all(self) -> list[str]:
        names: list[str] = []
        after = ""
        while page := await self._registry.list(KIND, after):
            names += [record.name for record in page]
            after = page[-1].name
        return names

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()
