"""The supervisor's lock: one holder, known to others, gone with its holder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from router.process import supervised
from router.process.supervised import LOCK, SupervisedError

HOLD = """
import sys
from pathlib import Path
from router.process import supervised

taken = supervised.take(Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""
EXEC = """
import os, sys
from pathlib import Path
from router.process import supervised

supervised.take(Path(sys.argv[1])).outlive_exec()
os.execv("/bin/sh", ["sh", "-c", "echo taken; read line"])
"""


def held_elsewhere(folder: Path, program: str) -> subprocess.Popen[str]:
    """Return another process that holds the folder's lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


def test_there_is_no_holder_when_the_folder_is_not_there(tmp_path: Path) -> None:
    assert supervised.holder(tmp_path / "data") is None
    assert not (tmp_path / "data").exists()


def test_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    """Whoever may write to the folder would have any file of the router's user truncated."""
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / LOCK).symlink_to(precious)
    with pytest.raises(SupervisedError):
        supervised.take(tmp_path)
    assert supervised.holder(tmp_path) is None
    assert precious.read_text() == "keep"


def test_holder_is_named_as_long_as_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with closing(supervised.take(folder)):
        assert supervised.holder(folder) == str(os.getpid())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert supervised.holder(folder) is None


def test_supervisor_that_was_killed_is_named_and_one_that_ended_is_not(tmp_path: Path) -> None:
    assert supervised.killed(tmp_path) is None
    with held_elsewhere(tmp_path, HOLD) as other:
        assert supervised.killed(tmp_path) is None
        other.kill()
        other.wait()
        assert supervised.killed(tmp_path) == str(other.pid)
    taken = supervised.take(tmp_path)
    assert supervised.killed(tmp_path) is None
    taken.end()
    assert supervised.killed(tmp_path) is None
    assert supervised.holder(tmp_path) is None


def test_broker_alone_has_no_children_to_wait_for(tmp_path: Path) -> None:
    """It leaves its process id in the file, however it ends."""
    with held_elsewhere(tmp_path, EXEC) as other:
        assert supervised.holder(tmp_path) == str(other.pid)
        other.communicate("\n")
    assert supervised.killed(tmp_path) is None
    supervised.take(tmp_path, 0).close()
    assert supervised.killed(tmp_path) == str(os.getpid())


def test_forked_child_that_closed_its_copy_does_not_end_the_supervision(tmp_path: Path) -> None:
    taken = supervised.take(tmp_path)
    taken.close()
    taken.end()
    assert supervised.killed(tmp_path) == str(os.getpid())


@pytest.mark.parametrize("program", [HOLD, EXEC])
def test_there_is_no_holder_when_it_was_killed(tmp_path: Path, program: str) -> None:
    with held_elsewhere(tmp_path, program) as other:
        assert supervised.holder(tmp_path) == str(other.pid)
        with pytest.raises(SupervisedError, match=f"process {other.pid}") as refused:
            supervised.take(tmp_path, 0, lambda _: None)
        assert refused.value.status == os.EX_TEMPFAIL
        other.kill()
        other.wait()
        assert supervised.holder(tmp_path) is None
        supervised.take(tmp_path, 0).close()


def test_take_waits_for_a_holder_that_leaves(tmp_path: Path) -> None:
    first = supervised.take(tmp_path)
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            first.close()

    with closing(supervised.take(tmp_path, 10, pause)):
        assert len(waits) == 3


def test_take_waits_only_so_long(tmp_path: Path) -> None:
    waits: list[float] = []
    with closing(supervised.take(tmp_path)), pytest.raises(SupervisedError):
        supervised.take(tmp_path, 1, waits.append)
    assert sum(waits) == pytest.approx(1)


def test_a_question_for_the_holder_takes_no_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    descriptor = os.open(tmp_path / LOCK, os.O_RDWR)
    assert supervised.holder(tmp_path) is None
    supervised.take(tmp_path, 0).close()
    os.close(descriptor)


def test_a_forked_child_that_closes_its_copy_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    with closing(supervised.take(tmp_path)) as taken:
        if not (child := os.fork()):
            taken.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert supervised.holder(tmp_path) == str(os.getpid())


def test_take_says_when_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SupervisedError, match="cannot use the data folder") as refused:
        supervised.take(tmp_path / "file" / "data")
    assert refused.value.status == os.EX_CANTCREAT
