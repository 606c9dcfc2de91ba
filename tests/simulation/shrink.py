"""Making a failing plan small: fewer clients and faults, less time, while it still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from textwrap import dedent

from tests.simulation.lease_run import AnyPlan
from tests.simulation.plan import Result

MAX_RUNS = 40
MAX_SECONDS = 60.0
"""No run begins after so long."""


def shrink(
    plan: AnyPlan, result: Result, run: Callable[[AnyPlan], Result], elapsed: Callable[[], float]
) -> tuple[AnyPlan, Result]:
    """Return the smallest plan found that fails in the same way, and what came of it."""
    kind = _kind(result)
    left, until = MAX_RUNS, elapsed() + MAX_SECONDS
    candidates: list[AnyPlan] = [
        replace(plan, hours=result.seconds / 3600 + 0.001),
        *plan.smaller(),
    ]
    while candidates and left and elapsed() < until:
        left -= 1
        smaller = candidates.pop(0)
        found = run(smaller)
        if _kind(found) == kind:
            plan, result = smaller, found
            candidates = list(plan.smaller())
    return plan, result


def _kind(result: Result) -> str:
    """Return what the first violation is, without the time and the names."""
    return result.violations[0].split(": ")[1] if result.violations else ""


def as_test(plan: AnyPlan) -> str:
    """Return a test that runs the plan, for tests/simulation/test_simulation.py."""
    return dedent(f'''\
        def test_seed_{plan.seed}() -> None:
            done = simulate("--plan", """{plan}""")

            assert done.returncode == 0, done.stdout
        ''')
