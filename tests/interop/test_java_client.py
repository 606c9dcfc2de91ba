"""What users of the official Java client see is the same on both brokers; see test_scenarios."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.differences import check
from tests.interop.programs import compiled, outcomes

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SOURCE = Path(__file__).with_name("java") / "Scenarios.java"
NAMES = [
    name
    for file in sorted(SOURCE.parent.glob("*.java"))
    for name in re.findall(r"^    public static Object (\w+)\(", file.read_text("utf-8"), re.M)
]


@pytest.fixture(scope="module")
def seen(
    ours: Broker, apache: Broker, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the program saw on our broker and on Apache Pulsar, by scenario."""
    command = compiled(SOURCE, tmp_path_factory.mktemp("classes"))
    with ThreadPoolExecutor(2) as both:
        here, there = both.map(lambda broker: outcomes(command, broker), (ours, apache))
    return here, there


@pytest.mark.parametrize("name", NAMES)
def test_java_users_see_the_same_on_both_brokers(
    name: str, seen: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    here, there = seen
    check(f"java.{name}", here[name], there[name])
