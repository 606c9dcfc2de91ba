"""The command line of the simulation."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import math
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.simulation import broker, kazoo_client
from tests.simulation.lease_run import AnyPlan, LeasePlan
from tests.simulation.plan import Plan, Result
from tests.simulation.run import remove_left, run
from tests.simulation.shrink import as_test, shrink

NEW: Final = "new"
GARBAGE: Final = (20_000, 20, 20)
"""The thresholds of Python's garbage collector, with which a run takes a tenth more memory."""
CPU_SECONDS: Final = 120.0
"""What a run may take at most, and for each of its hours besides; they take about a tenth of it."""
_kept: Final[list[bytearray]] = []


def main() -> None:
    """Run what the arguments say; the exit status says whether a seed failed."""
    given = _arguments()
    remove_left()
    broker.install()
    kazoo_client.install()
    # What is loaded and compiled at its first use is there for all runs then.
    run((LeasePlan if given.nodes else Plan)("warm-up", 0.005, faults=()))
    # That is not looked through again, and what a run leaves is looked for less often: it was a
    # sixth of the time, most of it for what dead brokers hold.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    if given.disturb:
        _disturb(given.disturb)
    plans = list(_plans(given))
    _say(f"seeds from {plans[0].seed}")
    if given.jobs == 1:
        sys.exit(_run_all(plans, given))
    children = []
    for job in range(given.jobs):
        if (pid := os.fork()) == 0:
            os._exit(_run_all(plans[job :: given.jobs], given))
        children.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    sys.exit(any(statuses))


def _plans(given: argparse.Namespace) -> Iterator[AnyPlan]:
    """Yield what is to be run."""
    if given.plan:
        yield eval(given.plan, {"Plan": Plan, "LeasePlan": LeasePlan})
        return
    # os.urandom is replaced by then.
    first = str(int.from_bytes(os.getrandom(4))) if given.seed == NEW else given.seed
    for number in range(given.runs):
        seed = str(int(first) + number) if first.isdecimal() else first
        yield (LeasePlan if given.nodes else Plan).from_seed(seed, given.hours)


def _run_all(plans: Sequence[AnyPlan], given: argparse.Namespace) -> bool:
    """Run plans one after the other; return whether one failed."""
    failed, began, first_cpu, hours, count = False, _elapsed(), _cpu_seconds(), 0.0, 0
    for plan in plans:
        before = _cpu_seconds()
        if given.seconds is not None and _elapsed() - began > given.seconds:
            break
        result = run_apart(plan, keeps_trace=bool(given.trace))
        hours, count = hours + result.seconds / 3600, count + 1
        _say(summary(plan, result, _cpu_seconds() - before))
        if given.trace:
            Path(given.trace).write_text("".join(result.lines or []))
        if result.violations:
            failed = True
            _report(plan, result, given)
            if given.stop:
                break
    cpu, elapsed = _cpu_seconds() - first_cpu, _elapsed() - began
    _say(f"{count} seeds, {hours:.1f} simulated h in {elapsed:.0f} s, {cpu:.0f} s of CPU")
    return failed


def _report(plan: AnyPlan, result: Result, given: argparse.Namespace) -> None:
    """Print what failed, how to repeat it, and the smallest plan that fails in the same way."""
    lines = [f"  {line}" for line in result.violations]
    nodes = " --nodes" if isinstance(plan, LeasePlan) else ""
    lines.append(f'  again: make simulate ARGS="--seed {plan.seed} --hours {plan.hours!r}{nodes}"')
    _say("\n".join(lines))
    if given.shrink:
        small, found = shrink(plan, result, run_apart, _elapsed)
        _say(f"  smaller: {small}\n  {found.violations[0]}\n\n{as_test(small)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", default="1", help="the first seed, new: any")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--hours", type=float, default=0.5, help="simulated hours of each")
    parser.add_argument("--nodes", action="store_true", help="several nodes that share leases")
    parser.add_argument("--seconds", type=float, help="begin no run after so long")
    parser.add_argument("--jobs", type=int, default=1, help="how many seeds run at a time")
    parser.add_argument("--plan", help="run this plan, as a failing one is printed")
    parser.add_argument("--shrink", action="store_true", help="make a failing plan small")
    parser.add_argument("--stop", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--mutation", help="the name of a fault to plant; see mutations.py")
    parser.add_argument("--disturb", type=int, help="have objects be elsewhere in memory, by this")
    parser.add_argument("--trace", help="write the trace of the last run to this file")
    return parser.parse_args()


def _disturb(number: int) -> None:
    """Have objects get other addresses, and garbage be collected at other times."""
    gc.set_threshold(number)
    chance = Random(number)
    _kept.extend(bytearray(chance.randint(1, 2000)) for _ in range(number))
    del _kept[::3]


def _elapsed() -> float:
    """Return the seconds of the machine's clock, which the simulation does not replace."""
    return os.times().elapsed


def _cpu_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def run_apart(plan: AnyPlan, *, keeps_trace: bool = False) -> Result:
    """Run a plan in a forked process: it begins as every other one does."""
    limit = math.ceil(CPU_SECONDS * (1 + plan.hours))
    result = _forked(lambda: run(plan, keeps_trace=keeps_trace), limit)
    if result is None:
        return Result([f"the simulation crashed, or had no end within {limit} s"], "", {}, 0.0)
    assert isinstance(result, Result)
    return result


def _forked(work: Callable[[], Any], limit: int) -> Any:
    """Return what a function returns in a forked process.

    None: it crashed, or took more than `limit` seconds of CPU, and where it was is printed.
    """
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.close(reader)
            faulthandler.register(signal.SIGXCPU, 2, chain=True)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
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


def summary(plan: AnyPlan, result: Result, cpu: float) -> str:
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
