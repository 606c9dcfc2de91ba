"""The broker under simulated faults: fixed seeds, each of which is a run, byte for byte.

Each test starts a process, because the simulation replaces the clocks of its own.
"""

from __future__ import annotations

import subprocess
import sys

SEEDS = 10
HOURS = 0.2


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulation and return what it printed."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_promises_hold_under_the_faults_of_fixed_seeds() -> None:
    done = simulate("--seed", "1", "--runs", str(SEEDS), "--hours", str(HOURS))

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok seed") == SEEDS


def test_a_seed_is_a_run_byte_for_byte() -> None:
    first, second = (simulate("--seed", "10", "--hours", "0.1") for _ in range(2))

    trace = [word for word in first.stdout.split() if word.endswith(";")]
    assert trace
    assert _without_time(first.stdout) == _without_time(second.stdout)


def _without_time(line: str) -> str:
    """Return a line of the simulation without the CPU time that it took."""
    before, _, after = line.partition(" s of CPU")
    return before.rpartition(" in ")[0] + after
