"""Takes a backup: copies what the broker holds, and writes the manifest last.

The order makes any point a place to stop at: segments and their lengths, then all else, then the
disk, then that the broker held the files until now, and last the manifest. Until it is there a
backup does not count; what it had copied is not copied again by the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from router.broker.backup.copying import MIN_SYNCED_BYTES, FileCopier, OtherBytesError
from router.broker.backup.databases import history_of, opened_metadata, origin_of
from router.broker.backup.failures import BackupError, damaged, interrupted, unusable
from router.broker.backup.manifest import METADATA, REGISTRY, Manifest, StoredFile
from router.broker.backup.repository import PROGRESS, Repository, note
from router.broker.disk.files import opened, read_all, write_all
from router.broker.folder import BACKUP
from router.broker.storage.files import (
    METADATA_FORMAT,
    Segment,
    file_of,
    index_of,
    journal_of,
    journal_path,
    segments_of,
)
from router.errors import BackendTimeoutError, BackendUnavailableError, ConflictError
from router.model.administration import BackupCut, JournalCut
from router.process.build import build_id

SUBJECTS: Final = "subjects"
_ID: Final = "%Y%m%dT%H%M%S.%f"
_LOST: Final = "what is copied is kept: take the backup again"


class BackupSource(Protocol):
    """The broker of a data folder, which holds a cut while it is copied."""

    def begin(self) -> BackupCut:
        """Hold the files of this moment; raise ConflictError if another backup is taken."""
        ...

    def end(self, cut: BackupCut) -> None:
        """Let them go; raise ConflictError if they were not held until now."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """A backup under way; `total`: called with how many bytes are to be copied.

    `reserve`: bytes that stay free on the disk of the data folder, if the backup is on it too.
    """

    data: Path
    repository: Repository
    copier: FileCopier
    total: Callable[[int], None]
    reserve: int = 0


def take(work: Work, source: BackupSource, now: datetime) -> Manifest:
    """Take a backup of the folder `data` and return its manifest.

    Raises BackupError, and RouterError if the broker cannot be reached.
    """
    repository = work.repository
    try:
        with repository.writing(), _held(source) as (cut, confirm):
            manifest = _Taking(work, _new_id(repository, now)).run(cut, now)
            confirm()
            repository.publish(manifest)
            repository.clear_incomplete()
            return manifest
    except FileNotFoundError as error:
        if not Path(error.filename or "").is_relative_to(work.data):
            raise _unwritten(repository, error) from error
        raise interrupted(f"the backup was cut short: the broker let it go; {_LOST}") from error
    except OSError as error:
        raise _unwritten(repository, error) from error


def _unwritten(repository: Repository, error: OSError) -> BackupError:
    return unusable(f"the backup in {repository.folder} cannot be written: {error}")


@contextmanager
def _held(source: BackupSource) -> Iterator[tuple[BackupCut, Callable[[], None]]]:
    """Hold a cut; yields what ends it and raises BackupError if it was not held until then."""
    try:
        cut = source.begin()
    except ConflictError as error:
        raise interrupted(f"{error}: try again when it has ended") from error

    def confirm() -> None:
        try:
            source.end(cut)
        except (ConflictError, BackendUnavailableError, BackendTimeoutError) as error:
            raise interrupted(f"the backup was cut short ({error}); {_LOST}") from error

    yield cut, confirm


class _Taking:
    """One backup while it is taken."""

    def __init__(self, work: Work, backup_id: str) -> None:
        self._data = work.data
        self._repository = work.repository
        self._disk = work.repository.disk
        self._copier = work.copier
        self._total = work.total
        self._reserve = work.reserve
        self._id = backup_id
        self._folder = work.repository.folder_of(backup_id)
        self._files: list[StoredFile] = []
        self._segments: list[StoredFile] = []
        self._missing: list[str] = []

    def run(self, cut: BackupCut, now: datetime) -> Manifest:
        """Copy what a cut names, to disk, and return the manifest."""
        with opened(self._disk, self._repository.folder, os.O_RDONLY | os.O_DIRECTORY) as root:
            registry = self._read(REGISTRY)
            origin = self._origin(registry)
            self._disk.make_folder(self._folder)
            self._disk.sync_folder(self._folder.parent)
            history = "" if cut.journal is None else self._copy_log(cut.journal)
            self._store(REGISTRY, registry)
            self._copier.sync(root)
            self._refuse_replaced(root)
        return Manifest(
            id=self._id,
            time=now.isoformat(timespec="milliseconds"),
            build=build_id(),
            history=history,
            metadata=None if cut.journal is None else METADATA_FORMAT,
            copied=self._copier.copied,
            files=tuple(self._files),
            segments=tuple(self._segments),
            missing=tuple(self._missing),
            origin=origin,
        )

    def _origin(self, registry: bytes) -> str:
        """Return the name of the data folder; raise BackupError if another one has backups here."""
        origin = origin_of(registry, self._data / BACKUP / REGISTRY)
        if self._repository.origin() not in {"", origin}:
            raise unusable(
                f"{self._repository.folder} holds the backups of another data folder: take those"
                " of this one into another folder"
            )
        return origin

    def _copy_log(self, journal: JournalCut) -> str:
        """Copy the log, and return the name of its history."""
        data = self._read(METADATA)
        path = self._data / BACKUP / METADATA
        with opened_metadata(data, path) as connection:
            history, segments = history_of(connection), list(segments_of(connection))
        known = self._repository.known(history)
        left = _to_copy(segments, known)
        self._total(left)
        self._refuse_too_much(left)
        self._disk.make_folder(place := self._repository.segments_of(history))
        self._disk.sync_folder(place.parent)
        with self._progress(history, known) as done:
            for ledger, segment in segments:
                self._copy_segment(history, ledger, segment, known, done)
        self._store(METADATA, data)
        for number in range(journal.first, journal.last + 1):
            size = journal.size if number == journal.last else None
            self._copy_journal(journal_path(self._data, number), size)
        for name in self._disk.list(self._data / BACKUP / SUBJECTS):
            self._store(f"{SUBJECTS}/{name}", self._read(f"{SUBJECTS}/{name}"))
        return history

    def _refuse_too_much(self, size: int) -> None:
        """Raise BackupError if it cannot fit: the disk may be that of the broker, and stay full."""
        folder = self._repository.folder
        free = self._disk.free(folder)
        if folder.stat().st_dev == self._data.stat().st_dev:
            free = max(0, free - self._reserve)
        if size > free:
            raise unusable(f"{folder} has {free} bytes free, and {size} are to be copied")

    def _refuse_replaced(self, root: int) -> None:
        """Raise BackupError if the folder is another one now: some files are in the one before."""
        folder = self._repository.folder
        if not os.path.samestat(os.fstat(root), folder.stat()):
            raise unusable(f"{folder} was moved or unmounted meanwhile: not all files are in it")

    def _copy_segment(
        self,
        history: str,
        ledger: int,
        segment: Segment,
        known: Mapping[str, StoredFile],
        done: Callable[[StoredFile], None],
    ) -> None:
        folder = self._repository.segments_of(history)
        source = file_of(self._data / "ledgers", ledger, segment)
        target = file_of(folder, ledger, segment)
        name = f"{ledger}/{target.name}"
        before = known.get(name)
        index_name = f"{ledger}/{target.stem}.idx"
        if _is_whole(before, segment.size, target):
            assert before is not None
            self._segments.append(before)
            index = known.get(index_name)
            if index is not None and _is_whole(index, index.size, target.with_suffix(".idx")):
                self._segments.append(index)
                return
        else:
            try:
                size, crc = self._copier.extend(source, target, before, segment.size)
            except OtherBytesError as error:
                raise unusable(
                    f"{error}: the data folder was put back by other means than `router restore`,"
                    " and needs another folder for its backups, or the copy is damaged, which"
                    " --verify sets right"
                ) from error
            if size < segment.size:
                self._missing.append(f"ledgers/{name}")
            if not size:
                return
            file = StoredFile(name, size, crc)
            self._segments.append(file)
            if size - (0 if before is None else before.size) >= MIN_SYNCED_BYTES:
                done(file)
        self._copy_index(source, target, segment, known.get(index_name), index_name)

    def _copy_index(
        self, source: Path, target: Path, segment: Segment, known: StoredFile | None, name: str
    ) -> None:
        """Copy the points of a segment that lie in it; without them reading is only slower."""
        points = index_of(self._disk, source, segment)
        if not points:
            return
        try:
            crc = self._copier.extend_by(points, target.with_suffix(".idx"), known)
        except OtherBytesError:
            return
        self._segments.append(StoredFile(name, len(points), crc))

    def _copy_journal(self, path: Path, size: int | None) -> None:
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            size = self._disk.size(descriptor) if size is None else size
            data = read_all(self._disk, descriptor, size, 0)
        copy = journal_of(data, cut=size != path.stat().st_size)
        if copy is None or len(data) < size:
            raise damaged(f"the journal {path} is damaged: run `router check`")
        self._store(f"journal/{path.name}", copy)

    def _read(self, name: str) -> bytes:
        """Return a file that others change in place, as the broker kept it at the cut."""
        return (self._data / BACKUP / name).read_bytes()

    def _store(self, name: str, data: bytes) -> None:
        crc = self._copier.extend_by(data, self._folder / name)
        self._files.append(StoredFile(name, len(data), crc))

    @contextmanager
    def _progress(
        self, history: str, known: Mapping[str, StoredFile]
    ) -> Iterator[Callable[[StoredFile], None]]:
        """Yield what notes that a segment is copied and on disk, for a backup after this one."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with opened(self._disk, self._folder / PROGRESS, flags) as descriptor:
            if known:
                lines = [note(history, file) for file in known.values()]
                write_all(self._disk, descriptor, [b"".join(lines)])
            self._disk.sync_data(descriptor)
            self._disk.sync_folder(self._folder)
            yield lambda file: write_all(self._disk, descriptor, [note(history, file)])


def _is_whole(known: StoredFile | None, size: int, target: Path) -> bool:
    """Return whether a copy holds so many bytes already."""
    try:
        return known is not None and known.size == size <= target.stat().st_size
    except FileNotFoundError:
        return False


def _to_copy(segments: list[tuple[int, Segment]], known: Mapping[str, StoredFile]) -> int:
    total = 0
    for ledger, segment in segments:
        before = known.get(f"{ledger}/{file_of(Path(), ledger, segment).name}")
        total += segment.size - (0 if before is None else min(before.size, segment.size))
    return total


def _new_id(repository: Repository, now: datetime) -> str:
    """Return the time as an id, behind all that there are: the clock may have been set back."""
    found = now.astimezone(UTC)
    if known := repository.all_ids():
        newest = datetime.strptime(known[-1].removesuffix("Z"), _ID).replace(tzinfo=UTC)
        found = max(found, newest + timedelta(milliseconds=1))
    return f"{found.strftime(_ID)[:-3]}Z"
