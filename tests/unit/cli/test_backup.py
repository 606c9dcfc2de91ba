"""`router backup` where it needs no broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from router.broker.backup import Manifest
from router.broker.backup.manifest import METADATA, REGISTRY, StoredFile
from router.broker.backup.repository import MANIFEST
from router.cli import main

IDS = [f"202611{day}T010000.000Z" for day in (21, 22, 23)]


def backup(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["backup", str(folder), *options])


def made(folder: Path) -> None:
    """Make a folder of backups, of which one is damaged."""
    for name in IDS:
        files = tuple(StoredFile(file, 1, 1) for file in (METADATA, REGISTRY))
        manifest = Manifest(name, "then", "this", "0" * 16, 6, 2, files, ())
        place = folder / "backups" / name
        place.mkdir(parents=True)
        (place / MANIFEST).write_bytes(manifest.dump() if name != IDS[1] else b"{")


def test_a_damaged_manifest_hides_no_other_backup(tmp_path: Path) -> None:
    made(tmp_path)
    done = backup(tmp_path, "--list")
    assert done.exit_code == 65
    assert [line.split()[0] for line in done.stdout.splitlines()[:2]] == [IDS[0], IDS[2]]
    assert IDS[1] in done.stdout
    listed = json.loads(backup(tmp_path, "--list", "--json").stdout)
    assert [one["id"] for one in listed["backups"]] == [IDS[0], IDS[2]]
    assert len(listed["problems"]) == 1
    for name in IDS:
        place = tmp_path / "backups" / name / MANIFEST
        if name == IDS[1]:
            place.unlink()
    assert backup(tmp_path, "--list").exit_code == 0


@pytest.mark.parametrize("name", ["link", "data/backups", "data/../data/backup", "data"])
def test_backups_are_not_put_into_the_data_folder(tmp_path: Path, name: str) -> None:
    """The broker clears a folder `backup` there when it takes the next one."""
    data = tmp_path / "data"
    (data / "backup").mkdir(parents=True)
    (data / REGISTRY).touch()
    (tmp_path / "link").symlink_to(data / "backup")
    done = backup(tmp_path / name, "--data", str(data))
    assert (done.exit_code, "in the data folder" in done.stderr) == (73, True)
    assert [path.name for path in data.iterdir()] in ([REGISTRY, "backup"], ["backup", REGISTRY])


def test_a_manifest_that_is_lost_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    made(tmp_path)
    newest = tmp_path / "backups" / IDS[2]
    (newest / METADATA).touch()
    (newest / MANIFEST).unlink()
    sentence = f"backup {IDS[2]} lost its manifest.json"
    listed = backup(tmp_path, "--list")
    assert (listed.exit_code, sentence in listed.stdout) == (65, True)
    assert sentence in backup(tmp_path, "--verify", "--backup", IDS[0]).stdout
    for command in (["backup", "--verify"], ["restore", "--data", str(tmp_path / "data")]):
        words = [command[0], str(tmp_path), *command[1:], "--backup", IDS[2]]
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, sentence in done.stderr) == (65, True)
    (tmp_path / "backups" / IDS[1] / MANIFEST).unlink()
    done = CliRunner().invoke(main, ["restore", str(tmp_path), "--data", str(tmp_path / "data")])
    assert f"Warning: {sentence}" in done.stderr
