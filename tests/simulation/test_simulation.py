"""The broker under simulated faults: fixed seeds, each a run, byte for byte, and new seeds.

New are those of each version of the source, so that a failure comes again for who looks at it.

Each test starts a process, because the simulation replaces the clocks of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation import command, run
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.plan import PROTOCOLS, Plan

SEEDS = 6
HOURS = 0.1
NEW_SEEDS = 16
NODE_SEEDS = 10
NEW_SECONDS = 60


def simulate(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the simulation and return what it printed."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def seed_of_the_source() -> str:
    """Return a seed that is another one for each version of the product, in a clone of it."""
    command = ["git", "rev-parse", "HEAD:router"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return str(int(done.stdout[:8], 16)) if done.returncode == 0 else "new"


@pytest.mark.timeout(300)
def test_promises_hold_under_the_faults_of_fixed_seeds() -> None:
    done = simulate("--seed", "1", "--runs", str(SEEDS), "--hours", str(HOURS))

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok seed") == SEEDS


@pytest.mark.timeout(300)
def test_promises_hold_under_the_faults_of_new_seeds() -> None:
    # No run begins after NEW_SECONDS; what fails is printed with its seed, and as a small test.
    options = ("--runs", str(NEW_SEEDS), "--hours", "0.25", "--seconds", str(NEW_SECONDS))
    done = simulate("--seed", seed_of_the_source(), *options, "--stop", "--shrink")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok seed" in done.stdout


def test_a_run_that_has_no_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(_plan: Plan, *, keeps_trace: bool) -> None:
        while not keeps_trace:
            pass

    monkeypatch.setattr(command, "CPU_SECONDS", 1)
    monkeypatch.setattr(command, "run", spin)
    [found] = command.run_apart(Plan("1", 0)).violations
    assert "no end within 1 s" in found


def test_leases_of_several_nodes_have_one_holder_under_the_faults_of_new_seeds() -> None:
    options = ("--runs", str(NODE_SEEDS), "--hours", str(HOURS), "--stop", "--shrink")
    done = simulate("--nodes", "--seed", seed_of_the_source(), *options)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok seed") == NODE_SEEDS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", ["Plan('all', 0.05)", "LeasePlan('all', 0.1)"])
def test_a_seed_is_a_run_byte_for_byte_in_any_checkout_wherever_objects_are_in_memory(
    plan: str, tmp_path: Path
) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("router", "tests"):
        # The files are written now, not when those of this checkout were.
        shutil.copytree(name, tmp_path / name, copy_function=shutil.copyfile, ignore=ignored)

    first = simulate("--plan", plan)
    second = simulate("--plan", plan, "--disturb", "333", folder=tmp_path)

    assert "ok seed all" in first.stdout, first.stdout + first.stderr
    assert _without_time(first.stdout) == _without_time(second.stdout)


def test_nobody_sleeps_through_the_quiet_time() -> None:
    # By its chance this client's first pause would last 4,104 s.
    clients: dict[str, Any] = {**dict.fromkeys(PROTOCOLS, 0), "administrators": 1}
    plan = Plan("10", 0.05, publishers=1, pollers=1, mean_pause=240.0, faults=(), **clients)
    done = simulate("--plan", repr(plan))

    assert "ok seed 10" in done.stdout, done.stdout + done.stderr


def test_a_run_removes_what_killed_ones_left(tmp_path: Path) -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    left, own = (
        tempfile.mkdtemp(prefix=f"{run.FOLDERS}{pid}-", dir=tmp_path)
        for pid in (done.pid, os.getpid())
    )
    with patch.object(run, "IN_MEMORY", tmp_path):
        run.remove_left()

    assert not Path(left).exists()
    assert Path(own).exists()


def _without_time(output: str) -> str:
    """Return what a run of one seed printed of it, without the CPU time that it took."""
    (line,) = (one for one in output.splitlines() if " seed " in one)
    before, _, after = line.partition(" s of CPU")
    return before.rpartition(" in ")[0] + after


def test_every_mutation_has_its_place_in_the_source() -> None:
    for mutation in MUTATIONS:
        path = Path(*mutation.module.split(".")).with_suffix(".py")
        assert mutated(path.read_text(), mutation)


def test_a_planted_fault_is_found_and_made_small() -> None:
    name = "a commit group is acknowledged before its sync"
    options = ("--runs", "4", "--hours", "0.1", "--stop", "--shrink")
    done = simulate("--seed", "1", *options, "--mutation", name)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "again: make simulate ARGS=" in done.stdout
    (plan,) = (line for line in done.stdout.splitlines() if line.startswith("  smaller: "))
    again = simulate("--plan", plan.removeprefix("  smaller: "), "--mutation", name)
    assert again.returncode == 1, again.stdout + again.stderr
