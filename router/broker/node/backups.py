"""Owns the backups that clients of the node protocol take: one at a time, held by its client.

The broker holds a cut (router/broker/storage/cuts.py), and puts what changes under a reader's
hands into the folder `backup` of the data folder: the two databases, and links to the subject
indexes. These are of before the cut, as after a crash: one that was written later would count
messages that the backup does not have. The client copies all of it. A cut ends when the client says
so, when its connection ends, and when the disk is full: what a backup holds could be the space that
publishers need.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from router.broker.disk.database import DatabaseSnapshot
from router.broker.disk.faults import lacks_space
from router.broker.folder import BACKUP
from router.broker.node.registry import FILE as REGISTRY
from router.broker.node.registry import FileRegistry
from router.broker.storage import Clock, Store, StoreError
from router.errors import BackendUnavailableError, ConflictError, DiskFullError, RouterError
from router.errors.quoting import failure_text
from router.metrics import Sample
from router.model.administration import BackupCut

METADATA: Final = "metadata.db"
SUBJECTS: Final = "subjects"
_log = structlog.get_logger(__name__)


class _Held:
    """The cut of a client, from its request on."""

    def __init__(self, owner: object, time_ms: int) -> None:
        self.owner = owner
        self.time_ms = time_ms
        self.id = secrets.randbits(63)
        self.begun = self.ended = False
        self.given_up = ""


class Backups:
    """Begins and ends backups; open it with `open`. `store` None: the node has no log.

    `clock` is a time of day, in seconds.
    """

    def __init__(
        self, folder: Path, registry: FileRegistry, store: Store | None, clock: Clock
    ) -> None:
        self._folder = folder
        self._registry = registry
        self._store = store
        self._clock = clock
        self._newest_ms: int | None = None
        self._held: _Held | None = None
        self._ending: asyncio.Task[None] | None = None
        if store is not None:
            store.pressure[self._yield_space] = None

    @classmethod
    async def open(
        cls, folder: Path, registry: FileRegistry, store: Store | None, clock: Clock
    ) -> Backups:
        """Remove what a process left that was killed, and serve.

        Raises DiskFullError, BackendUnavailableError.
        """
        found = cls(folder, registry, store, clock)
        await asyncio.to_thread(found._clear)
        found._newest_ms = await registry.backup_time_ms()
        return found

    async def collect(self) -> list[Sample]:
        """Return when the newest backup was taken; nothing if none was."""
        if self._newest_ms is None:
            return []
        return [("router_backup_time_seconds", (), self._newest_ms / 1000)]

    async def begin(self, owner: object) -> BackupCut:
        """Hold a cut for a client.

        Raises ConflictError while there is another one, DiskFullError, BackendUnavailableError, and
        StoreError if the store failed.
        """
        while self._held is not None:
            if not self._held.given_up or self._ending is None or self._ending.done():
                raise ConflictError("another backup of this data folder is being taken")
            await asyncio.wait([self._ending])
        held = self._held = _Held(owner, int(self._clock() * 1000))
        try:
            await self._registry.name_folder()
            cut = await self._cut(held.id)
        except BaseException as error:
            await self._release(held)
            if isinstance(error, OSError | sqlite3.Error):
                kind = DiskFullError if lacks_space(error) else BackendUnavailableError
                raise kind(
                    f"the state of the broker cannot be copied: {failure_text(error)}"
                ) from error
            raise
        held.begun = True
        if held.given_up:
            await self._release(held)
            raise ConflictError(held.given_up)
        return cut

    async def end(self, owner: object, number: int) -> None:
        """Let a cut go; raise ConflictError if it was not held until now."""
        held = self._held
        if held is None or (held.owner, held.id) != (owner, number) or not held.begun:
            raise ConflictError("the broker does not hold this backup any more")
        if held.given_up or held.ended:
            raise ConflictError(held.given_up or "the backup has ended")
        await self._release(held)
        self._newest_ms = held.time_ms
        try:
            await self._registry.note_backup(held.time_ms)
        except RouterError as error:  # the backup is taken all the same
            _log.warning("backup-not-noted", reason=failure_text(error))

    def gone(self, owner: object) -> None:
        """End the cut of a client that is gone."""
        if self._held is not None and self._held.owner is owner:
            self._give_up(self._held, "its client is gone")

    def _yield_space(self) -> None:
        if self._held is not None and self._store is not None and self._store.full:
            self._give_up(self._held, "the broker needs the space that the backup holds")

    def _give_up(self, held: _Held, reason: str) -> None:
        if not held.given_up:
            held.given_up = reason
            _log.warning("backup-given-up", reason=reason)
            if held.begun:
                self._ending = asyncio.ensure_future(self._release(held))

    async def _cut(self, number: int) -> BackupCut:
        snapshots: dict[str, DatabaseSnapshot] = {}
        names = [REGISTRY] if self._store is None else [METADATA, REGISTRY]

        def prepare() -> None:
            self._clear()
            (self._folder / BACKUP).mkdir(mode=0o700)
            for name in names:
                snapshots[name] = DatabaseSnapshot(self._folder / name)
            _link_all(self._folder / SUBJECTS, self._folder / BACKUP / SUBJECTS)

        def take() -> None:
            for snapshot in snapshots.values():
                snapshot.take()

        def write() -> None:
            for name, snapshot in snapshots.items():
                snapshot.write(self._folder / BACKUP / name)

        try:
            await asyncio.to_thread(prepare)
            journal = None
            if self._store is None:
                take()
            else:
                journal = await self._store.cuts.begin(take)
            await asyncio.to_thread(write)
        finally:
            for snapshot in snapshots.values():
                snapshot.close()
        return BackupCut(number, journal)

    async def _release(self, held: _Held) -> None:
        if held.ended:
            return
        held.ended = True
        try:
            if self._store is not None:
                await self._store.cuts.end()
            await asyncio.to_thread(self._clear)
        except StoreError as error:
            _log.warning("backup-not-ended", reason=failure_text(error))
        finally:
            self._held = None

    def _clear(self) -> None:
        shutil.rmtree(self._folder / BACKUP, ignore_errors=True)


def _link_all(source: Path, target: Path) -> None:
    """Link the subject indexes, which others replace as a whole; without one it is built again."""
    if not source.is_dir():
        return
    target.mkdir(mode=0o700)
    for path in source.glob("*.idx"):
        with suppress(OSError):  # it is removed with its stream, or there are no links here
            (target / path.name).hardlink_to(path)
