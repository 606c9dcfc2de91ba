"""Owns the folder of backups: where each file lies, which backups are complete, and what may go.

The layout:
  lock                                   held by the command that writes
  backups/<id>/manifest.json             what belongs to the backup; without it there is none
  backups/<id>/metadata.db, journal/, …  what belongs to this backup alone
  backups/<id>/copied.ndjson             of a backup that was cut short: segments that are copied;
                                         of one that is being removed: what was its manifest
  damaged.ndjson                         segments that were found damaged, to be copied again
  segments/<history>/<ledger>/<file>     segments and their indexes, of all backups of a history

A segment's file is only ever appended to, and so is its copy (one that is written again without
deleted messages has another name): an earlier backup means the first bytes of a file, a later one
more of them. The alternative, a file for each backup, would copy the last segment of each partition
every time. A history is a line of appends (router/broker/storage/metadata.py):
after a restore or a repair the same name may stand for other bytes.

What has other names is not looked at, nor is a symbolic link in one of these folders: nothing is
removed that a backup did not put there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from router.broker.backup.failures import BackupError, damaged, interrupted, unusable
from router.broker.backup.manifest import Manifest, StoredFile, segments_in
from router.broker.disk.files import Disk, opened, write_all

MANIFEST: Final = "manifest.json"
PROGRESS: Final = "copied.ndjson"
DAMAGED: Final = "damaged.ndjson"
LATEST: Final = "latest"
_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z")
_HISTORY: Final = re.compile(r"[0-9a-f]{16}")
_LEDGER: Final = re.compile(r"[0-9]+")
_SEGMENT: Final = re.compile(r"[0-9]+(-[0-9]+)?\.(seg|idx)")


class Repository:
    """A folder of backups. Methods raise OSError beside what they say."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self.disk = disk or Disk()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder, made if it is not there, for this process alone; raise BackupError."""
        if self.disk.make_folder(self.folder):
            self.disk.sync_folder(self.folder.parent)
        for name in ("backups", "segments"):
            self.disk.make_folder(self.folder / name)
        self.disk.sync_folder(self.folder)
        with opened(self.disk, self.folder / "lock", os.O_RDWR | os.O_CREAT) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise interrupted(
                    f"another command takes a backup into {self.folder}: try again when it has"
                    " ended"
                ) from error
            yield

    def folder_of(self, backup_id: str) -> Path:
        """Return the folder of a backup."""
        return self.folder / "backups" / backup_id

    def segments_of(self, history: str) -> Path:
        """Return the folder of the segments of a history, laid out as `ledgers` is."""
        return self.folder / "segments" / history

    def locate(self, manifest: Manifest) -> Iterator[tuple[Path, str, StoredFile]]:
        """Yield the files of a backup: where each lies, its path in a data folder, and itself."""
        for file in manifest.files:
            yield self.folder_of(manifest.id) / file.path, file.path, file
        for file in manifest.segments:
            path = self.segments_of(manifest.history) / file.path
            yield path, f"ledgers/{file.path}", file

    def all_ids(self) -> list[str]:
        """Return the ids of all backups, complete or not, the oldest first."""
        return self._list(self.folder / "backups", _ID)

    def ids(self) -> list[str]:
        """Return the ids of the complete backups, the oldest first."""
        return [name for name in self.all_ids() if (self.folder_of(name) / MANIFEST).exists()]

    def lost(self) -> list[str]:
        """Return the ids of backups that have files and lost their manifest, the oldest first.

        A backup that was cut short, or is being removed, is none of them.
        """
        complete = {*self.ids()}
        rest = [name for name in self.all_ids() if name not in complete]
        names = [(name, self.disk.list(self.folder_of(name))) for name in rest]
        return [name for name, files in names if files and PROGRESS not in files]

    def load(self, backup_id: str = LATEST) -> Manifest:
        """Return the manifest of a backup; raise BackupError if there is none, or a damaged one."""
        ids = self.ids()
        if backup_id in self.lost():
            raise damaged(no_manifest(backup_id))
        if not ids:
            raise unusable(f"{self.folder} holds no complete backup")
        if backup_id == LATEST:
            backup_id = ids[-1]
        if backup_id not in ids:
            raise unusable(f"{self.folder} holds no backup {backup_id}; the newest is {ids[-1]}")
        path = self.folder_of(backup_id) / MANIFEST
        return Manifest.load(path.read_bytes(), path)

    def origin(self) -> str:
        """Return the data folder that the newest backup is of; empty: it is not known."""
        for name in reversed(self.ids()):
            with suppress(BackupError):
                return self.load(name).origin
        return ""

    def known(self, history: str) -> Mapping[str, StoredFile]:
        """Return how far each segment of a history is copied, by backups that are complete or not.

        A manifest that cannot be read says nothing; what was found damaged does not count.
        """
        longest: dict[str, StoredFile] = {}
        for name in self.all_ids():
            for file in self._copied(name, history):
                if file.path not in longest or longest[file.path].size < file.size:
                    longest[file.path] = file
        for file in _noted(self.folder / DAMAGED, history):
            longest.pop(file.path, None)
        return longest

    def note_damage(self, manifest: Manifest, files: Iterable[StoredFile]) -> None:
        """Have the next backup copy the segments among these files again."""
        segments = {*manifest.segments}
        lines = [note(manifest.history, file) for file in files if file in segments]
        if lines:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with opened(self.disk, self.folder / DAMAGED, flags) as descriptor:
                write_all(self.disk, descriptor, [b"".join(lines)])
                self.disk.sync_data(descriptor)

    def clear_incomplete(self) -> None:
        """Remove what the backup before this one needed: others that were cut short, and notes.

        Their segments stay where others name them. What lost its manifest stays for the operator.
        """
        complete = {*self.ids(), *self.lost()}
        for name in self.all_ids():
            if name not in complete:
                self._remove_tree(self.folder_of(name))
        self.disk.unlink(self.folder / DAMAGED)

    def publish(self, manifest: Manifest) -> None:
        """Make a backup complete; all its files must be on disk."""
        folder = self.folder_of(manifest.id)
        new = folder / f"{MANIFEST}.new"
        with opened(self.disk, new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            write_all(self.disk, descriptor, [manifest.dump()])
            self.disk.sync_data(descriptor)
        self.disk.rename(new, folder / MANIFEST)
        self.disk.sync_folder(folder)
        self.disk.unlink(folder / PROGRESS)

    def prune(self, keep: int) -> list[str]:
        """Remove all but the newest `keep` backups, and what only they need; return their ids.

        Raises BackupError, and removes no segment, if the manifest of one that stays is damaged,
        or while another command takes a backup: nothing names yet what it has copied.
        """
        with self.writing():
            gone = self.ids()[:-keep]
            for name in gone:
                folder = self.folder_of(name)
                self.disk.rename(folder / MANIFEST, folder / PROGRESS)
                self.disk.sync_folder(folder)
                self._remove_tree(folder)
            self._remove_unused()
            return gone

    def _remove_unused(self) -> None:
        """Remove segments that no backup names."""
        used: dict[str, set[str]] = {}
        for name in self.ids():
            manifest = self.load(name)
            names = used.setdefault(manifest.history, set())
            names.update(file.path for file in manifest.segments)
        root = self.folder / "segments"
        for history in self._list(root, _HISTORY):
            for ledger in self._list(root / history, _LEDGER):
                folder = root / history / ledger
                for name in self._list(folder, _SEGMENT):
                    if f"{ledger}/{name}" not in used.get(history, ()):
                        self.disk.unlink(folder / name)
                self._remove_empty(folder)
            self._remove_empty(root / history)

    def _remove_empty(self, folder: Path) -> None:
        if not self.disk.list(folder):
            self.disk.remove_folder(folder)

    def _list(self, folder: Path, names: re.Pattern[str]) -> list[str]:
        """Return the names of a folder that backups give, sorted."""
        found = [name for name in self.disk.list(folder) if names.fullmatch(name)]
        return [name for name in found if not (folder / name).is_symlink()]

    def _copied(self, name: str, history: str) -> Iterable[StoredFile]:
        folder = self.folder_of(name)
        path = folder / MANIFEST
        if not path.exists():
            return _noted(folder / PROGRESS, history)
        try:
            manifest = Manifest.load(path.read_bytes(), path)
        except BackupError:
            return ()
        return manifest.segments if manifest.history == history else ()

    def _remove_tree(self, folder: Path) -> None:
        for name in self.disk.list(folder):
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                self._remove_tree(path)
            else:
                self.disk.unlink(path)
        self.disk.remove_folder(folder)


def no_manifest(backup_id: str) -> str:
    """Return the sentence about a backup that lost its manifest."""
    return f"backup {backup_id} lost its {MANIFEST}: it cannot be restored, and is passed over"


def _noted(path: Path, history: str) -> Iterator[StoredFile]:
    """Yield the segments of a history that a file notes, up to where it was cut short."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    with suppress(ValueError, TypeError):
        for line in lines:
            if not line.endswith(b"\n"):
                return
            of, *file = json.loads(line)
            if of == history:
                yield from segments_in([file])


def note(history: str, file: StoredFile) -> bytes:
    """Return the line that names a segment."""
    return json.dumps([history, *file]).encode() + b"\n"
