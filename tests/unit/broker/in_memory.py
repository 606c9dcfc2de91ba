"""A folder in memory: what a power cut leaves is simulated, so real syncs would only cost time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder of the test's own; on a disk where there is no file system in memory."""
    if not os.access(IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=IN_MEMORY, prefix="router-test-") as name:
        yield Path(name)
