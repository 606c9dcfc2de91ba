"""The files of a running broker, and what it says of a folder that is open to all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Have what is started make files for all to read, were it not for its own umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_of_the_broker_are_private_whatever_umask_it_is_started_with(
    tmp_path: Path, open_umask: None
) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o777)
    broker = BrokerProcess(folder, free_port())
    broker.start()
    try:
        found = {path: path.lstat().st_mode for path in folder.rglob("*")}
        log = folder / "broker.log"
        assert "Umask:\t0077\n" in Path(f"/proc/{broker.pid}/status").read_text()
        wait_until(lambda: f"chmod o-w {folder}" in log.read_text())
    finally:
        broker.stop()
    assert {"metadata.db", "registry.db", "broker.log"} <= {path.name for path in found}
    assert not [path for path, mode in found.items() if stat.S_IMODE(mode) & 0o077]
