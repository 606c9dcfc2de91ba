"""Owns the reading of a backup as a whole: checksums of its files, and every entry in them.

Segments that are damaged are noted in the folder of backups if it can be written, and the next
backup copies them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from router.broker.backup.copying import FileCopier
from router.broker.backup.databases import opened_copy, opened_metadata
from router.broker.backup.failures import BackupError
from router.broker.backup.manifest import METADATA, REGISTRY, Manifest, StoredFile
from router.broker.backup.repository import Repository
from router.broker.disk.faults import FormatError
from router.broker.storage.files import inspect_copy


def verify(repository: Repository, manifest: Manifest, copier: FileCopier) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with a backup. Raises OSError."""
    for lost in manifest.missing:
        yield f"{lost} was not whole when the backup was taken"
    damaged = []
    for path, _name, file in repository.locate(manifest):
        if (crc := copier.checksum(path, file.size)) == file.crc:
            continue
        damaged.append(file)
        yield damage_of(path, file, whole=crc is not None)
    with suppress(OSError):
        repository.note_damage(manifest, damaged)
    folder = repository.folder_of(manifest.id)
    try:
        path = folder / REGISTRY
        with opened_copy(path.read_bytes(), path):
            pass
        if manifest.metadata is not None:
            yield from _inspect(repository, manifest, folder / METADATA)
    except (BackupError, FormatError, OSError, ValueError) as error:
        yield str(error)


def damage_of(path: Path, file: StoredFile, *, whole: bool) -> str:
    """Return what is wrong with a file of a backup whose checksum is another one."""
    if whole:
        return f"{path} is damaged: its checksum is not the one that it was written with"
    return f"{path} is not whole: {file.size} bytes of it are needed"


def _inspect(repository: Repository, manifest: Manifest, path: Path) -> Iterator[str]:
    segments = repository.segments_of(manifest.history)
    with opened_metadata(path.read_bytes(), path) as connection:
        for finding in inspect_copy(repository.disk, path.parent, segments, connection):
            yield finding.sentence
