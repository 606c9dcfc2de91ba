"""Holding the data folder: one process at a time, none where it is marked."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from router.broker.folder import FolderBusyError, FolderError, exposed, hold
from router.process import node_socket


def impatient(_seconds: float) -> None:
    """Wait no time at all."""


def test_folder_is_made_private_when_it_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "data"
    with hold(folder, 0):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folder_that_all_users_may_write_to_is_named(tmp_path: Path) -> None:
    assert exposed(tmp_path) is None
    tmp_path.chmod(0o770)
    assert exposed(tmp_path) is None
    for mode in (0o777, 0o1777, 0o702):
        tmp_path.chmod(mode)
        assert f"chmod o-w {tmp_path}" in str(exposed(tmp_path))


def test_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    aim.write_text("precious")
    (folder := tmp_path / "data").mkdir()
    (folder / "broker.lock").symlink_to(aim)
    with pytest.raises(FolderError, match="data folder") as refused, hold(folder, 0):
        pass
    assert refused.value.status == os.EX_CANTCREAT
    assert aim.read_text() == "precious"


def test_second_holder_is_refused_when_the_first_answers(tmp_path: Path) -> None:
    with (
        hold(tmp_path, 0),
        node_socket.listen(tmp_path),
        pytest.raises(FolderBusyError, match=f"process {os.getpid()}") as refused,
        hold(tmp_path, 1000, impatient),
    ):
        pass
    assert refused.value.status == os.EX_TEMPFAIL


def test_second_holder_waits_only_so_long_when_the_first_is_silent(tmp_path: Path) -> None:
    waited: list[float] = []
    with hold(tmp_path, 0), pytest.raises(FolderBusyError), hold(tmp_path, 1, waited.append):
        pass
    assert sum(waited) == pytest.approx(1)


def test_folder_is_had_when_the_first_holder_leaves_meanwhile(tmp_path: Path) -> None:
    first = hold(tmp_path, 0)
    first.__enter__()
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            first.__exit__(None, None, None)

    with hold(tmp_path, 10, pause):
        assert len(waited) == 3


def test_socket_is_gone_when_the_folder_is_let_go(tmp_path: Path) -> None:
    with hold(tmp_path, 0), node_socket.listen(tmp_path):
        assert (tmp_path / "broker.sock").exists()
    assert not (tmp_path / "broker.sock").exists()


def test_marked_folder_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "READ-ONLY").write_text("fdatasync failed: EIO\n")
    for _ in range(2):
        with pytest.raises(FolderError, match=r"EIO.*check --repair") as refused, hold(tmp_path, 0):
            pass
        assert refused.value.status == os.EX_DATAERR


def test_folder_that_cannot_be_made_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot use the data folder"), hold(tmp_path / "file", 0):
        pass
