"""The blacklist of the broker's listeners: a task of the event loop reads it."""

from __future__ import annotations

import asyncio

from router.access import addresses
from router.access.addresses import BLACKLIST_INTERVAL_SECONDS, BLACKLIST_RECORDS
from router.errors import RouterError
from router.sharing.registry import AsyncRegistry, all_records


class BrokerBlacklist(addresses.BlacklistCopy):
    """The list of one broker; used on its event loop."""

    def __init__(self, registry: AsyncRegistry) -> None:
        super().__init__()
        self._registry = registry
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the list, and go on reading it until `stop`."""
        await self.refresh()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def stop(self) -> None:
        """Stop reading the list."""
        if self._reading is not None:
            self._reading.cancel()

    async def refresh(self) -> None:
        """Read the list now; the last one stays if the registry does not answer."""
        try:
            records = all_records(self._registry, BLACKLIST_RECORDS)
            names = [record.name async for record in records]
        except RouterError as error:
            self.unavailable(error)
        else:
            self.replace(names)

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(BLACKLIST_INTERVAL_SECONDS)
            await self.refresh()
