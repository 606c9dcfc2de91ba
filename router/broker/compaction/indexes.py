"""Owns the key indexes of a broker: their files and thread, and how each follows its log.

Theory of operation. An index is brought up to date when it is read, never when a message is
published: `catch_up` reads the log from the index's position, with the messages that may be
delivered, and adds what it found in batches. Readers that come meanwhile share that work. All files
are used in one thread, which keeps MAX_OPEN_FILES of them open.

An index must not know of more than the log keeps: entry ids that a power cut took in relaxed mode
are given out again. So a batch is added after the store has synced what it holds, and an index that
is used for the first time since the start is begun again if its last entry is not as it was.

A message that is deleted by hand after it came into the index hides the older ones of its key: the
index has one message for each key, and this one is not visible.
"""

from __future__ import annotations

import asyncio
import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog

from router.broker.compaction.key_index import (
    IndexDamagedError,
    KeyedMessage,
    KeyIndex,
    remove,
)
from router.broker.consume.entry_info import MessageKey, UnreadableEntryError
from router.broker.consume.visible import Visible
from router.broker.disk.files import Disk
from router.broker.storage import DamagedError, Entry, Store, StoreError

FOLDER: Final = "keys"
MAX_OPEN_FILES: Final = 32
BATCH_MESSAGES: Final = 10_000
BATCH_KEY_BYTES: Final = 4 << 20
READ_ENTRIES: Final = 256
READ_BYTES: Final = 256 << 10

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class KeyedFormat(Protocol):
    """A format of entries whose messages have keys."""

    def keys(self, payload: bytes) -> Sequence[MessageKey]:
        """Return the key of each message of an entry; raise UnreadableEntryError."""
        ...


class KeyIndexes:
    """The indexes of a data folder, by ledger.

    `formats` has the formats of entries by their tags. `pause` is awaited after each batch of work,
    so that what clients ask goes on.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        formats: Mapping[int, KeyedFormat],
        pause: Callable[[], Awaitable[None]],
        disk: Disk | None = None,
    ) -> None:
        self.store = store
        self.formats = formats
        self.pause = pause
        self._folder = folder / FOLDER
        self._disk = disk or Disk()
        self._thread = ThreadPoolExecutor(1, "keys")
        self._open: OrderedDict[int, KeyIndex] = OrderedDict()
        self._indexes: dict[int, PartitionIndex] = {}
        self._is_closed = False

    def of(self, visible: Visible) -> PartitionIndex:
        """Return the index of a partition; its file is made when it is first used."""
        ledger_id = visible.ledger.id
        found = self._indexes.get(ledger_id)
        if found is None:
            found = self._indexes[ledger_id] = PartitionIndex(self, visible)
        return found

    async def keep(self, ledger_ids: Collection[int]) -> None:
        """Remove the indexes of all other ledgers: their topics are deleted. Raises OSError."""
        for ledger_id in [one for one in self._indexes if one not in ledger_ids]:
            await self._indexes.pop(ledger_id).close()
        # Also those of topics that were made meanwhile.
        await self.in_thread(self._remove_others, {*ledger_ids, *self._indexes})

    async def close(self) -> None:
        """End all work and close the files; what begins later raises StoreError."""
        if self._is_closed:
            return
        self._is_closed = True
        for index in self._indexes.values():
            await index.close()
        await self._submit(self._close_files)
        self._thread.shutdown()

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Return what work in the thread of the files returns; raise StoreError once closed."""
        self.check_open()
        return await self._submit(work, *arguments)

    def check_open(self) -> None:
        """Raise StoreError once closed."""
        if self._is_closed:
            raise StoreError("the indexes of keys are closed")

    async def _submit(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, partial(work, *arguments)
        )

    def file(self, ledger_id: int) -> KeyIndex:
        """Return the file of a ledger, open; to be called in the thread. Raises sqlite3.Error."""
        found = self._open.get(ledger_id)
        if found is None:
            found = self._open[ledger_id] = KeyIndex(self._path(ledger_id), ledger_id, self._disk)
            if len(self._open) > MAX_OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(ledger_id)
        return found

    def drop(self, ledger_id: int) -> None:
        """Remove the file of a ledger; to be called in the thread. Raises OSError."""
        self._close_file(ledger_id)
        remove(self._path(ledger_id))

    def _path(self, ledger_id: int) -> Path:
        return self._folder / f"{ledger_id}.db"

    def _remove_others(self, ledger_ids: Collection[int]) -> None:
        for path in self._folder.glob("*.db"):
            if int(path.stem) not in ledger_ids:
                self.drop(int(path.stem))

    def _close_file(self, ledger_id: int) -> None:
        if (found := self._open.pop(ledger_id, None)) is not None:
            with suppress(sqlite3.Error):
                found.close()

    def _close_files(self) -> None:
        for ledger_id in list(self._open):
            self._close_file(ledger_id)


class PartitionIndex:
    """The index of one partition, whose messages are `visible`.

    What is read of it holds for the messages that were durable at the last `catch_up`.
    """

    def __init__(self, indexes: KeyIndexes, visible: Visible) -> None:
        self.visible = visible
        self._indexes = indexes
        self._ledger = visible.ledger
        self._position = 0
        self._fits = False
        self._work: asyncio.Task[None] | None = None

    async def catch_up(self) -> None:
        """Return when the index has all that was durable at the call.

        Raises OSError, sqlite3.Error, StoreError, and IndexDamagedError if it has to begin again.
        """
        end = self.visible.end_entry
        while not ((self._fits and self._position >= end) or self._ledger.discarded):
            if self._work is None:
                self._indexes.check_open()
                self._work = asyncio.get_running_loop().create_task(self._follow(end))
                self._work.add_done_callback(self._ended)
            await asyncio.shield(self._work)
            await asyncio.sleep(0)  # the callback of a task that has ended is still to run

    async def run(self, work: Callable[[KeyIndex], T]) -> T:
        """Return what work on the file returns; one that is damaged is removed.

        Raises IndexDamagedError then, and OSError.
        """
        return await self._indexes.in_thread(self._run, work)

    async def find(self, key: bytes) -> KeyedMessage | None:
        """Return the newest message of a key, maybe a tombstone; None: it has none.

        Raises as `catch_up` does.
        """
        found = await self._read(lambda file: file.find(key))
        return found if found is not None and self.visible.contains(found.number) else None

    async def page(self, after: bytes | None, limit: int) -> list[KeyedMessage]:
        """Return the newest messages of the keys behind one, in their order; None: the first.

        Tombstones are among them. Less than `limit`: there are no more. Raises as `catch_up` does.
        """
        visible: list[KeyedMessage] = []
        while len(visible) < limit:
            found = await self._read(partial(_page, after, limit))
            visible += (message for message in found if self.visible.contains(message.number))
            if len(found) < limit:
                break
            after = found[-1].key
        return visible[:limit]

    async def kept(self, end: int) -> array[int]:
        """Return the numbers of the newest messages that keys have before a number, in order.

        Tombstones are not among them, and `end` is durable. Raises as `catch_up` does.
        """
        return await self._read(lambda file: file.kept(end))

    async def close(self) -> None:
        """End reading the log."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait((self._work,))

    async def _read(self, work: Callable[[KeyIndex], T]) -> T:
        """Read the index as it is with all that is durable now; one that is damaged is rebuilt."""
        try:
            await self.catch_up()
            return await self.run(work)
        except IndexDamagedError:
            await self.catch_up()
            return await self.run(work)

    def _run(self, work: Callable[[KeyIndex], T]) -> T:
        try:
            file = self._indexes.file(self._ledger.id)
            if self._fits and file.progress.position != self._position:
                raise IndexDamagedError("the file was replaced")  # noqa: TRY301
            return work(file)
        except (sqlite3.DatabaseError, IndexDamagedError) as error:
            self._fits = False
            self._indexes.drop(self._ledger.id)
            _log.warning("key-index-rebuilt", ledger=self._ledger.id, reason=str(error))
            raise IndexDamagedError(str(error)) from error

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if not work.cancelled():
            work.exception()  # those that wait for the work raise it

    async def _follow(self, end: int) -> None:
        if not self._fits:
            await self._begin()
        while self._position < end and not self._ledger.discarded:
            await self._add_batch(end)
            await self._indexes.pause()

    async def _begin(self) -> None:
        """Go on where the file ends, or from the beginning if it is not of this log."""
        progress = await self.run(lambda file: file.progress)
        if progress.position and not await self._is_of_this_log(
            progress.position, progress.last_ms
        ):
            _log.warning("key-index-rebuilt", ledger=self._ledger.id, reason="of another log")
            await self.run(lambda file: file.clear())
            progress = await self.run(lambda file: file.progress)
        self._position = progress.position
        self._fits = True

    async def _is_of_this_log(self, position: int, last_ms: int) -> bool:
        if position > self.visible.end_entry:
            return False
        try:
            found = await self.visible.read(position - 1, 1, 1)
        except DamagedError:
            return True
        # It may be gone by retention, or because its messages are deleted.
        here = [entry for entry in found if entry.entry_id == position - 1]
        return not here or here[0].timestamp_ms == last_ms

    async def _add_batch(self, end: int) -> None:
        position, last_ms = self._position, 0
        messages: list[KeyedMessage] = []
        size = 0
        while position < end and len(messages) < BATCH_MESSAGES and size < BATCH_KEY_BYTES:
            try:
                entries = await self.visible.read(position, READ_ENTRIES, READ_BYTES)
            except DamagedError as damage:
                position = damage.last + 1
                continue
            if not entries:
                position = end
                break
            masks = [self.visible.messages(entry) for entry in entries]
            found = await self._indexes.in_thread(self._keyed, entries, masks)
            messages += found
            size += sum(len(message.key) for message in found)
            position, last_ms = entries[-1].entry_id + 1, entries[-1].timestamp_ms
        await self._indexes.store.synced()

        def add(file: KeyIndex) -> None:
            file.add(messages, position, last_ms)
            self._position = position

        await self.run(add)

    def _keyed(self, entries: Sequence[Entry], masks: Sequence[int | None]) -> list[KeyedMessage]:
        """Return the messages of entries that have a key and are not left out."""
        found: list[KeyedMessage] = []
        for entry, live in zip(entries, masks, strict=True):
            try:
                keys = self._indexes.formats[entry.format].keys(entry.payload)
            except UnreadableEntryError:
                continue
            if len(keys) != entry.messages:
                continue  # not a message for each number
            first, time_ms = entry.index + 1 - entry.messages, max(0, entry.timestamp_ms)
            for place, (key, tombstone) in enumerate(keys):
                if key is not None and (live is None or live >> place & 1):
                    found.append(KeyedMessage(key, first + place, time_ms, tombstone))
        return found


def _page(after: bytes | None, limit: int, file: KeyIndex) -> list[KeyedMessage]:
    return file.page(after, limit)
