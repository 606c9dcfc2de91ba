"""What users of the official client see is the same on our broker and on Apache Pulsar.

Where it is not, `differences.DIFFERENCES` says what is seen on which, and why: that table is also
what the page "Differences from Apache Pulsar" is checked against.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.interop.brokers import Broker, world_on
from tests.interop.differences import DIFFERENCES, LANGUAGES, check
from tests.interop.scenarios import SCENARIOS

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


def seen(name: str, broker: Broker) -> Any:
    """Return what a scenario shows on a broker; what it raises is what it shows."""
    world = world_on(broker)
    try:
        shown: object = SCENARIOS[name](world)
    except Exception as error:  # noqa: BLE001 - the outcome of a scenario that could not go on
        shown = f"ended by {type(error).__name__}"
    finally:
        world.close()
    return json.loads(json.dumps(shown))


@pytest.mark.parametrize("name", SCENARIOS)
def test_users_see_the_same_on_both_brokers(name: str, ours: Broker, apache: Broker) -> None:
    with ThreadPoolExecutor(2) as both:
        here, there = both.map(lambda broker: seen(name, broker), (ours, apache))
    check(name, here, there, lambda: seen(name, apache))


def test_every_difference_is_one_of_a_scenario() -> None:
    assert {name for name in DIFFERENCES if name.partition(".")[0] not in LANGUAGES} <= set(
        SCENARIOS
    )
