"""What users of the official Java client see is the same on both brokers; see test_scenarios."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.differences import check
from tests.interop.programs import compiled, outcome

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SOURCE = Path(__file__).with_name("java") / "Scenarios.java"
NAMES = [
    name
    for file in sorted(SOURCE.parent.glob("*.java"))
    for name in re.findall(r"^    public static Object (\w+)\(", file.read_text("utf-8"), re.M)
]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return compiled(SOURCE, tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("name", NAMES)
def test_java_users_see_the_same_on_both_brokers(
    name: str, command: list[str], seen: tuple[dict[str, Any], dict[str, Any]], apache: Broker
) -> None:
    here, there = seen
    again = partial(outcome, command, apache, name)
    check(f"java.{name}", here[name], there[name], again)
