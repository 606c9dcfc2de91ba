"""The archive of Spark's classes: used where there is one that fits, missed by nobody."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from router.pipelines import session


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of Spark with one jar."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark.jar").write_bytes(b"PK")
    return tmp_path


def test_start_without_an_archive_has_no_options(home: Path) -> None:
    assert session.archive_options(home, "17") == ""


def test_archive_is_for_one_java_and_one_set_of_jars(home: Path) -> None:
    first = session.archive(home, "17.0.1")
    first.write_bytes(b"")
    assert f'"-XX:SharedArchiveFile={first}" ' in session.archive_options(home, "17.0.1")
    assert session.archive_options(home, "17.0.2") == ""
    os.utime(home / "jars" / "spark.jar", (1, 1))
    assert session.archive_options(home, "17.0.1") == ""


def test_archive_that_is_there_is_not_made_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    session.archive(home, "17").write_bytes(b"")
    assert session.make_archive(home, "17", print)


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true", "/nowhere/python"])
def test_archive_that_cannot_be_made_leaves_nothing(
    home: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    assert not session.make_archive(home, "17", print)
    assert list(home.iterdir()) == [home / "jars"]
