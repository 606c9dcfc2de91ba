"""The program of the page about NATS runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.console import ROOT, blocks
from tests.ports import free_port
from tests.processes import BrokerProcess

PAGE = ROOT / "docs" / "nats.md"
ADDRESS = "127.0.0.1:4222"


def test_the_program_publishes_and_receives(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    process = BrokerProcess(tmp_path / "data", free_port(), broker_nats=address)
    process.start()
    (program,) = blocks(PAGE, "python")
    done = subprocess.run(
        [sys.executable, "-c", program.replace(ADDRESS, address)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert process.stop() == 0
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["b'rain'", "1", "fruit.new b'two pears'"]
