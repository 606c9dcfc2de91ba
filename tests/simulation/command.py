"""The command line of the simulation."""

from __future__ import annotations

import argparse
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulation import broker
from tests.simulation.plan import Plan
from tests.simulation.run import Result, run


def main() -> None:
    """Run what the arguments say; the exit status says whether a seed failed."""
    given = _arguments()
    broker.install()
    # What is loaded and compiled at its first use is there for all runs then.
    run(Plan("warm-up", 0.005, faults=()))
    failed = False
    for number in range(given.runs):
        seed = str(int(given.seed) + number) if given.seed.isdecimal() else given.seed
        if given.seconds is not None and _cpu_seconds() > given.seconds:
            break
        plan, before = Plan.from_seed(seed, given.hours), _cpu_seconds()
        result = run_apart(plan, keeps_trace=bool(given.trace))
        _say(summary(plan, result, _cpu_seconds() - before))
        if given.trace:
            Path(given.trace).write_text("".join(result.lines or []))
        if result.violations:
            failed = True
            for line in result.violations:
                _say(f"  {line}")
            _say(f'  again: make simulate ARGS="--seed {seed} --hours {given.hours:g}"')
    sys.exit(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", default="1", help="the first seed")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--hours", type=float, default=0.5, help="simulated hours of each")
    parser.add_argument("--seconds", type=float, help="begin no run after so much CPU time")
    parser.add_argument("--trace", help="write the trace of the last run to this file")
    return parser.parse_args()


def _cpu_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def run_apart(plan: Plan, *, keeps_trace: bool = False) -> Result:
    """Run a plan in a forked process: it begins as every other one does."""
    result = _forked(lambda: run(plan, keeps_trace=keeps_trace))
    if result is None:
        return Result(["the simulation crashed"], "", {}, 0.0)
    assert isinstance(result, Result)
    return result


def _forked(work: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked process, None: that crashed."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.close(reader)
            data = pickle.dumps(work())
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(data)
            status = 0
        except BaseException:  # noqa: BLE001 - the end of the process
            import traceback  # noqa: PLC0415 - for a failure

            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else None


def summary(plan: Plan, result: Result, cpu: float) -> str:
    """Return a line about a run."""
    counts = ", ".join(f"{value} {name}" for name, value in sorted(result.counts.items()))
    state = "FAILED" if result.violations else "ok"
    return (
        f"{state} seed {plan.seed}: {result.seconds / 3600:.2f} h in {cpu:.1f} s of CPU,"
        f" trace {result.digest[:16]}; {counts}"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
