"""Whatever clients of all dialects do to a partition, each is delivered what a plain model says.

Examples are the same in each run, but in `make soak`, which tries many others.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.broker.consume.engine_machine import EngineMachine
from tests.unit.broker.consume.mutations import MUTATIONS, Mutation

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

LONG = "SOAK_ENGINE_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("SOAK_ENGINE_EXAMPLES", "40"))
MAX_MUTATION_EXAMPLES = 300
STEPS = 50


def test_all_dialects_at_once_are_delivered_what_a_plain_model_says() -> None:
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=not LONG,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class ImpatientMachine(EngineMachine):
    """A machine that takes what does not come soon for lost: here something is wrong always."""

    patience = 1.0


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name.replace(" ", "-"))
def test_the_machine_finds_planted_faults(mutation: Mutation) -> None:
    # A fault may show in another step when an example is run again: it is found all the same.
    with mutation.planted(), pytest.raises((AssertionError, Flaky)):
        run_state_machine_as_test(
            ImpatientMachine,
            settings=settings(
                max_examples=MAX_MUTATION_EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
