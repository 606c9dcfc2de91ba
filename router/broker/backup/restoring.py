"""Owns the making of a data folder from a backup.

The folder is marked READ-ONLY until all of it is there, so no broker serves a part of it, and a
restore that was cut short goes on where it was. Then the store is opened once and closed, which
brings what the journal holds to rest, so that a start has little to recover.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from router.broker.backup.copying import FileCopier
from router.broker.backup.failures import BackupError, damaged, unusable
from router.broker.backup.manifest import METADATA, REGISTRY, Manifest, StoredFile
from router.broker.backup.repository import Repository
from router.broker.backup.taking import SUBJECTS
from router.broker.backup.verifying import damage_of
from router.broker.disk import row_sums
from router.broker.disk.files import Disk, opened, write_all
from router.broker.folder import LOCK, MARK, hold_unserved
from router.broker.storage import Clock, Store, StoreError, StoreOptions
from router.broker.storage.files import METADATA_FORMAT, begin_history

SENTENCE: Final = "a restore was cut short; run `router restore` again"
STARTS_LEFT_OUT: Final = 1_000
"""Starts that the folder may have had since the backup. Ids that count them must not come back."""
LOST_AND_FOUND: Final = "lost+found"
"""What the root of a file system has from the beginning."""
_DATA: Final = (METADATA, REGISTRY, "journal", "ledgers", SUBJECTS)


def restore(
    repository: Repository, manifest: Manifest, folder: Path, copier: FileCopier, disk: Disk
) -> None:
    """Put the files of a backup into an empty folder, and check each of them.

    Raises BackupError; the folder is marked then, and another call goes on or begins again with
    another backup.
    """
    if manifest.metadata not in {None, METADATA_FORMAT}:
        raise unusable(
            f"backup {manifest.id} has format {manifest.metadata}, and this release reads and"
            f" writes format {METADATA_FORMAT} only: use the release that took it"
        )
    try:
        disk.make_folder(folder)
        disk.sync_folder(folder.parent)
        with hold_unserved(folder), opened(disk, folder, os.O_RDONLY | os.O_DIRECTORY) as root:
            _mark(folder, disk)
            _copy(repository, manifest, folder, copier, disk)
            _begin_history(folder)
            copier.sync(root)
            for name in ("", *_DATA):
                if (folder / name).is_dir():
                    disk.sync_folder(folder / name)
            disk.unlink(folder / MARK)
            disk.sync_folder(folder)
    except StoreError as error:
        raise unusable(str(error)) from error
    except (OSError, sqlite3.Error) as error:
        raise unusable(f"the data folder {folder} cannot be written: {error}") from error


def settle(folder: Path, options: StoreOptions, clock: Clock) -> None:
    """Bring what the journal of a restored folder holds to rest; raise BackupError."""

    async def run() -> None:
        store = await Store.open(folder, options, clock)
        await store.close()
        if store.failed.done():
            raise StoreError(f"the store failed: {store.failed.result()}")

    if not (folder / METADATA).exists():
        return
    try:
        with hold_unserved(folder):
            asyncio.run(run())
    except StoreError as error:
        raise BackupError(
            f"the data is restored, and the next start recovers its last part: {error}",
            os.EX_IOERR,
        ) from error


def _mark(folder: Path, disk: Disk) -> None:
    """Mark an empty folder, or one that is marked so already; raise BackupError."""
    mark = folder / MARK
    if mark.exists() and SENTENCE in mark.read_text(encoding="utf-8", errors="replace"):
        return
    # A mark without its sentence would be one that no restore has made.
    written = mark.with_suffix(".new")
    found = sorted({*disk.list(folder)} - {LOCK, LOST_AND_FOUND, written.name})
    if found:
        raise unusable(f"{folder} is not empty ({found[0]}): move it away, or name another folder")
    with opened(disk, written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_all(disk, descriptor, [f"{SENTENCE}\n".encode()])
        disk.sync_data(descriptor)
    disk.rename(written, mark)
    disk.sync_folder(folder)


def _copy(
    repository: Repository, manifest: Manifest, folder: Path, copier: FileCopier, disk: Disk
) -> None:
    files = {name: (path, file) for path, name, file in repository.locate(manifest)}
    for name in _DATA:
        _remove_others(folder, name, files.__contains__, disk)
    for name, (path, file) in files.items():
        if not _is_there(folder / name, file, copier):
            _copy_file(path, folder / name, file, copier)


def _copy_file(path: Path, target: Path, file: StoredFile, copier: FileCopier) -> None:
    size, crc = copier.extend(path, target, None, file.size)
    if (size, crc) != file[1:]:
        raise damaged(damage_of(path, file, whole=size == file.size))


def _is_there(target: Path, file: StoredFile, copier: FileCopier) -> bool:
    """Return whether an earlier call restored a file, but for the databases, which change."""
    try:
        if target.stat().st_size != file.size or target.suffix == ".db":
            return False
    except FileNotFoundError:
        return False
    return copier.checksum(target, file.size) == file.crc


def _remove_others(folder: Path, name: str, is_named: Callable[[str], bool], disk: Disk) -> None:
    path = folder / name
    if path.is_dir():
        for below in disk.list(path):
            _remove_others(folder, f"{name}/{below}", is_named, disk)
    else:
        for end in ("-wal", "-shm", "-journal"):
            disk.unlink(path.with_name(path.name + end))
        if not is_named(name):
            disk.unlink(path)


def _begin_history(folder: Path) -> None:
    """Say that the folder goes on otherwise than the one that the backup was taken of."""
    for name in (METADATA, REGISTRY):
        if not (folder / name).exists():
            continue
        with closing(sqlite3.connect(folder / name)) as connection, connection:
            row_sums.install(connection)
            connection.execute(
                "UPDATE meta SET value = value + ? WHERE key = 'boot'", (STARTS_LEFT_OUT,)
            )
            if name == METADATA:
                begin_history(connection)
