"""The rate of copies, and what is on disk when it is said to be."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from router.broker.backup import copying, taking
from router.broker.backup.copying import BURST_SECONDS, FileCopier
from router.broker.backup.repository import PROGRESS
from router.broker.disk.files import Buffer, Disk
from tests.unit.broker.backup.rig import taken

pytestmark = pytest.mark.timeout(60)
RATE = 1 << 20


class ManualTime:
    """The time of a process that does nothing else."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_copies_keep_to_their_rate_whatever_time_passed_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualTime()
    monkeypatch.setattr(copying, "time", clock)
    source = folder / "source"
    source.write_bytes(bytes(20 * RATE))
    copier = FileCopier(Disk(), RATE)
    for idle in (0.0, 3600.0):
        clock.now += idle
        begun = clock.now
        copier.checksum(source, 20 * RATE)
        saved = 20 - (clock.now - begun)
        assert -1e-6 <= saved <= BURST_SECONDS + 1e-6


class SyncedDisk(Disk):
    """A disk that knows what of its files and names a power cut would take."""

    def __init__(self) -> None:
        self._open: dict[int, Path] = {}
        self._written: set[Path] = set()
        self._made: set[Path] = set()
        self.noted: list[str] = []
        self.published = 0

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT and not path.exists():
            self._made.add(path)
        descriptor = super().open(path, flags)
        self._open[descriptor] = path
        return descriptor

    def make_folder(self, path: Path) -> bool:
        self._made |= {one for one in (path, *path.parents) if not one.exists()}
        return super().make_folder(path)

    def write(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        path = self._open[descriptor]
        if path.name == PROGRESS:
            names = [json.loads(line)[1] for part in parts for line in bytes(part).splitlines()]
            written = {f"{one.parent.name}/{one.name}" for one in self._written}
            assert not written & {*names}
            self.noted += names
        else:
            self._written.add(path)
        return super().write(descriptor, parts)

    def rename(self, source: Path, target: Path) -> None:
        """All that a manifest names must be on disk before it has its name."""
        assert self._written == set()
        assert {path for path in self._made if path.name != "lock"} == {source}
        self.published += 1
        super().rename(source, target)

    def sync_data(self, descriptor: int) -> None:
        super().sync_data(descriptor)
        self._written.discard(self._open[descriptor])

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self._made = {path for path in self._made if path.parent != folder}

    def sync_all(self, descriptor: int) -> None:
        super().sync_all(descriptor)
        self._written.clear()
        self._made.clear()


@pytest.mark.parametrize("least", [400, 1 << 20], ids=["large", "small"])
def test_what_a_backup_names_is_on_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """What the notes of one that is cut short name, too."""
    for module in (copying, taking):
        monkeypatch.setattr(module, "MIN_SYNCED_BYTES", least)
    noted: list[str] = []
    for count in (20, 2, 1, 3, 2, 1):
        disk = SyncedDisk()
        taken(folder / "data", folder / "backups", count, disk)
        noted += disk.noted
        assert disk.published == 1
    assert len(noted) > len({*noted}) > 5


def test_backups_are_private(folder: Path) -> None:
    taken(folder / "data", folder / "backups", 20)
    for path in (folder / "backups").rglob("*"):
        assert path.stat().st_mode & 0o77 == 0, path
