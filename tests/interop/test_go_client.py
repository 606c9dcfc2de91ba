"""What users of the official Go client see is the same on both brokers; see test_scenarios."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.differences import check
from tests.interop.programs import outcome
from tests.servers.golang import INTEROP, built

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

NAMES = re.findall(r'^\t\{"(\w+)", \w+\},$', (INTEROP / "main.go").read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def command() -> list[str]:
    return [str(built(INTEROP))]


@pytest.mark.parametrize("name", NAMES)
def test_go_users_see_the_same_on_both_brokers(
    name: str, command: list[str], seen: tuple[dict[str, Any], dict[str, Any]], apache: Broker
) -> None:
    here, there = seen
    again = partial(outcome, command, apache, name)
    check(f"go.{name}", here[name], there[name], again)
