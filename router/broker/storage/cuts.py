"""Owns the cut of a backup: one moment, and that what it names stays on disk until it is copied.

A cut is what a crash at that moment would have left, without what was on its way: the metadata, the
segments as far as it names them, and the journal behind it up to a commit group. So what a backup
holds is a prefix of everything that was done, in the order of commit groups, and the recovery that
every start relies on makes a store of it. No second way is needed to say what belongs to a moment.

Before it, a checkpoint into a new journal file leaves little journal to copy. Cursors in a
checkpoint may be ahead of the journal: the cut waits until they are not. At the moment itself the
event loop takes the place in the journal and the databases in one step, in which no cause can have
an effect: what one of them has without its cause cannot be in another.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from router.broker.storage.checkpointer import Checkpointer
from router.broker.storage.context import StoreContext
from router.model.administration import JournalCut


class Cuts:
    """Cuts of a store, one at a time."""

    def __init__(self, context: StoreContext, checkpointer: Checkpointer) -> None:
        self._context = context
        self._checkpointer = checkpointer

    async def begin(self, take: Callable[[], None]) -> JournalCut:
        """Hold the files of this moment until `end`; `take` takes the databases as they are.

        Raises StoreError if the store failed, and what `take` raises.
        """
        journal = self._context.journal
        self._context.files.roll()
        await self._mark()
        failure: Exception | None = None
        async with self._checkpointer.alone():
            await self._checkpointer.write_checkpoint()
            await self._mark()
            self._context.removals.hold()
            cut = JournalCut(self._checkpointer.cut, journal.number, journal.size)
            try:
                take()
            except (sqlite3.Error, OSError) as error:
                failure = error  # the store has not failed
        if failure is not None:
            await self.end()
            raise failure
        return cut

    async def end(self) -> None:
        """Let the files go; raise StoreError if the disk fails."""
        async with self._checkpointer.alone():
            await self._checkpointer.in_thread(self._context.removals.release)

    async def _mark(self) -> None:
        """Return when all that was appended so far is on disk, and a commit group was begun.

        It has no records if nothing else is appended. Raises StoreError.
        """
        journal = self._context.journal
        journal.pending.parts.append(b"")
        await journal.synced()
