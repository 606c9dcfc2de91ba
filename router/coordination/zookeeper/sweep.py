"""Taking empty folders away, so that the tree is no larger than what stands in it.

Who leaves a queue alone takes its folders away at once. Where others were seen, the last of them
cannot be known without asking: such folders are looked at again after a while, each once however
often its lease changed hands. What nodes left that were killed is found when a session begins.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from kazoo.exceptions import NoNodeError, NotEmptyError

from router.coordination.zookeeper.link import Link
from router.coordination.zookeeper.names import IDS, LEASES

EVERY: Final = 30.0
LEASES_DEPTH: Final = 3
IDS_DEPTH: Final = 2


class Sweep:
    """Looks at folders that may be empty; `root` is the folder above that stays."""

    def __init__(self, link: Link, every: float = EVERY) -> None:
        self._link = link
        self._every = every
        self._marked: dict[str, str] = {}
        self._all = True

    def mark(self, folder: str, root: str) -> None:
        """Have a folder looked at some time."""
        self._marked[folder] = root

    def mark_all(self) -> None:
        """Have all folders looked at soon."""
        self._all = True

    async def run(self) -> None:
        """Sweep for ever; raise DownError with the link."""
        while True:
            if self._all:
                for root, depth in ((LEASES, LEASES_DEPTH), (IDS, IDS_DEPTH)):
                    await self._look(self._link.path(root), self._link.path(root), depth)
                self._all = False
            for folder in list(self._marked):
                await self._look(folder, self._marked[folder], 0)
                del self._marked[folder]
            await asyncio.sleep(self._every)

    async def _look(self, folder: str, root: str, depth: int) -> None:
        children: list[str] = []
        with contextlib.suppress(NoNodeError):
            children = await self._link.ask(lambda client: client.get_children_async(folder))
        if not children:
            await tidy(self._link, folder, root)
        elif depth:
            for child in children:
                await self._look(f"{folder}/{child}", root, depth - 1)


async def tidy(link: Link, folder: str, root: str) -> None:
    """Delete a folder, and those above it up to `root`, as long as they are empty."""
    while folder.startswith(f"{root}/"):
        if not await _remove(link, folder):
            return
        folder = folder.rpartition("/")[0]


async def _remove(link: Link, folder: str) -> bool:
    try:
        await link.ask(lambda client: client.delete_async(folder))
    except NotEmptyError:
        return False
    except NoNodeError:
        return True
    return True
