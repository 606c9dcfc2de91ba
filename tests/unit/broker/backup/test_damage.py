"""Segments that are damaged in a folder of backups, or in the data folder while it is backed up."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from router.broker.backup import BackupError, Manifest, Repository
from router.broker.backup.copying import FileCopier
from router.broker.backup.restoring import restore
from router.broker.disk.files import Disk
from router.broker.storage.files import check
from tests.unit.broker.backup.rig import problems, restored, taken

pytestmark = pytest.mark.timeout(60)


def flip(path: Path, place: int) -> None:
    """Damage a byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def largest(folder: Path) -> Path:
    """Return a segment that is followed by others, and complete."""
    return min(folder.rglob("*.seg"))


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
def test_what_was_found_damaged_is_copied_again_for_all_backups(folder: Path, suffix: str) -> None:
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 60)
    damaged = largest(target).with_suffix(suffix)
    flip(damaged, 20)
    second = taken(data, target, 3)
    (said,) = (line for line in problems(target, second) if "checksum" in line)
    assert str(damaged) in said
    third = taken(data, target)
    assert [problems(target, manifest) for manifest in (first, second, third)] == [[], [], []]
    before = damaged.stat().st_mtime_ns
    taken(data, target)
    assert damaged.stat().st_mtime_ns == before, "copied once more"


def test_damage_of_what_a_backup_has_alone_hides_no_other(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 60)
    flip(largest(target), 20)
    flip(target / "backups" / first.id / "registry.db", 20)
    assert len(problems(target, first)) > 2
    assert problems(target, taken(data, target)) == []


def test_what_is_damaged_stays_if_the_data_folder_has_no_other(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 60)
    damaged = largest(target)
    flip(damaged, 20)
    content = damaged.read_bytes()
    assert problems(target, first)
    largest(data / "ledgers").unlink()
    manifest = taken(data, target)
    assert [name for name in manifest.missing if damaged.name in name]
    assert damaged.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_verified(folder: Path) -> None:
    class ReadOnly(Disk):
        def open(self, path: Path, flags: int) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise OSError(errno.EROFS, "read-only", str(path))
            return super().open(path, flags)

    data, target = folder / "data", folder / "backups"
    manifest = taken(data, target, 60)
    flip(largest(target), 20)
    from_disk = Repository(target, ReadOnly())
    assert problems(target, manifest, from_disk)
    assert not (target / "damaged.ndjson").exists()


class BadSector(Disk):
    """A disk that cannot read one file from a place on."""

    def __init__(self, path: Path, place: int) -> None:
        self.path, self.place = path, place
        self._descriptors: set[int] = set()

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self._descriptors.discard(descriptor)
        if path == self.path:
            self._descriptors.add(descriptor)
        return descriptor

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        if descriptor in self._descriptors:
            if start >= self.place:
                raise OSError(errno.EIO, "bad sector")
            size = min(size, self.place - start)
        return super().pread(descriptor, size, start)


def test_of_a_segment_that_is_not_whole_the_rest_is_backed_up(folder: Path) -> None:
    """As of one that was backed up before it was damaged: what was copied then."""
    data = folder / "data"
    early = taken(data, folder / "early", 60)
    path, size = max((p, p.stat().st_size) for p in (data / "ledgers").rglob("*.seg"))
    content = path.read_bytes()
    name = f"{path.parent.name}/{path.name}"

    def held(target: Path, manifest: Manifest) -> bytes:
        assert manifest.missing == (f"ledgers/{name}",)
        assert any(name in line for line in problems(target, manifest))
        disk, place = Disk(), folder / f"of-{target.name}"
        restore(Repository(target), manifest, place, FileCopier(disk), disk)
        assert any(finding.serious for finding in check(place))
        return (place / "ledgers" / name).read_bytes()

    os.truncate(path, size - 1)
    assert held(folder / "late", taken(data, folder / "late")) == content[:-1]
    # The copy holds more than the data folder: it stays as it is.
    again = taken(data, folder / "early")
    assert (again.missing, problems(folder / "early", early)) == ((), [])
    assert problems(folder / "early", again) == []


def test_a_bad_sector_costs_no_other_segment_its_backup(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    taken(data, folder / "other", 60)
    path = largest(data / "ledgers")
    disk = BadSector(path, 0)
    manifest = taken(data, target, disk=disk)
    assert manifest.missing == (f"ledgers/{path.parent.name}/{path.name}",)
    names = {file.path for file in manifest.segments if file.path.endswith(".seg")}
    assert len(names) == len([*(data / "ledgers").rglob("*.seg")]) - 1
    whole = taken(data, target)
    assert (whole.missing, problems(target, whole)) == ((), [])
    # Nor in the folder of backups: verification goes on, and a restore says what it cannot read.
    copy = largest(target)
    disk = BadSector(copy, 0)
    assert [line for line in problems(target, whole, Repository(target, disk)) if "whole" in line]
    with pytest.raises(BackupError, match="is not whole") as refused:
        restore(Repository(target, disk), whole, folder / "place", FileCopier(disk), disk)
    assert refused.value.status == 65
    restored(target, whole, folder / "restored")


def test_a_bad_sector_in_what_was_copied_before_ends_no_backup(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    first = taken(data, target, 60)
    path = max((data / "ledgers").rglob("*.seg"))
    manifest = taken(data, target, 3, disk=BadSector(path, 0))
    name = f"{path.parent.name}/{path.name}"
    assert manifest.missing == (f"ledgers/{name}",)
    kept = [file for file in first.segments if file.path == name]
    assert kept == [file for file in manifest.segments if file.path == name]
    whole = taken(data, target)
    assert (whole.missing, problems(target, whole)) == ((), [])


def test_a_backup_does_without_an_index_that_cannot_be_read(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"
    taken(data, folder / "other", 60)
    index = largest(data / "ledgers").with_suffix(".idx")
    manifest = taken(data, target, disk=BadSector(index, 0))
    assert index.exists()
    assert not list(target.rglob(index.name))
    assert (manifest.missing, problems(target, manifest)) == ((), [])
    taken(data, target)
    assert list(target.rglob(index.name))
