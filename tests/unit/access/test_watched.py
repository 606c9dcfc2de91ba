"""A reload reads files that do not seem changed, and changes nothing where they are unfit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.access.certificates import Certificates, PemFile
from router.access.watched import Watched, in_text, reload_all
from router.errors import SettingError
from tests.processes import ManualClock


def number(text: str) -> int:
    """Return the number that a file holds."""
    return int(text)


def rewritten(file: Path, text: str) -> None:
    """Write other contents of the same length, and give the file its old time."""
    before = file.stat()
    with file.open("r+") as out:
        out.write(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_watched_file_that_does_not_seem_changed_is_read(tmp_path: Path) -> None:
    file, clock = tmp_path / "file", ManualClock()
    file.write_text("1")
    watched = Watched(file, in_text(number), clock)
    rewritten(file, "2")
    clock.advance(10)
    assert watched.get() == 1
    reload_all()
    assert (watched.get(), watched.version()) == (2, 1)


def test_what_was_read_last_stays_when_the_file_is_unfit(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("1")
    bad.write_text("1")
    parts = [Watched(file, in_text(number), ManualClock()) for file in (bad, good, bad)]
    rewritten(bad, "x")
    rewritten(good, "2")
    reload_all()
    assert [part.get() for part in parts] == [1, 2, 1]


def test_a_certificate_that_does_not_load_is_said(tmp_path: Path) -> None:
    absent = PemFile("server.cert", str(tmp_path / "absent"))
    certificates = Certificates(absent, PemFile("server.key", ""), PemFile("server.client_ca", ""))
    with pytest.raises(SettingError, match=r"server\.cert"):
        certificates.reload()
