"""What users of the official Go client see is the same on both brokers; see test_scenarios."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.differences import check
from tests.interop.programs import outcomes
from tests.servers.golang import INTEROP, built

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

NAMES = re.findall(r'^\t\{"(\w+)", \w+\},$', (INTEROP / "main.go").read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def seen(ours: Broker, apache: Broker) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the program saw on our broker and on Apache Pulsar, by scenario."""
    command = [str(built(INTEROP))]
    with ThreadPoolExecutor(2) as both:
        here, there = both.map(lambda broker: outcomes(command, broker), (ours, apache))
    return here, there


@pytest.mark.parametrize("name", NAMES)
def test_go_users_see_the_same_on_both_brokers(
    name: str, seen: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    here, there = seen
    check(f"go.{name}", here[name], there[name])
