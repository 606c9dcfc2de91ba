"""The build's name: stable for the same files, another one when they change."""

from __future__ import annotations

import os
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path

from router.process.build import VERSION, build_id, fingerprint


def test_version_is_the_installed_one() -> None:
    assert version("dragoman") == VERSION


def test_version_is_written_down_once() -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[3] / "setup.cfg")
    assert setup["metadata"]["version"] == "attr: router.process.build.VERSION"


def test_build_id_names_version_and_fingerprint() -> None:
    name, _, digits = build_id().partition("+")
    assert name == VERSION
    assert len(digits) == 10
    assert build_id() == build_id()


def test_fingerprint_changes_when_a_source_file_does(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    source = tmp_path / "room" / "a.py"
    source.write_text("1")
    os.utime(source, (1, 1))
    seen = {fingerprint(tmp_path)}
    (tmp_path / "notes.txt").write_text("not code")
    assert fingerprint(tmp_path) in seen
    source.write_text("22")
    os.utime(source, (1, 1))
    seen.add(fingerprint(tmp_path))
    os.utime(source, (2, 2))
    seen.add(fingerprint(tmp_path))
    source.rename(tmp_path / "room" / "b.py")
    seen.add(fingerprint(tmp_path))
    assert len(seen) == 4
