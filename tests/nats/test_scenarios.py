"""Users of each client of NATS see the same on nats-server and on the router's broker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nats.conftest import OURS
from tests.nats.differences import DIFFERENCES
from tests.nats.golang_scenarios import GO_SCENARIOS
from tests.nats.javascript_scenarios import JAVASCRIPT_SCENARIOS
from tests.nats.playing import GO, JAVASCRIPT, PYTHON, Shown
from tests.nats.record import recorded
from tests.nats.scenarios import RECORDED, SCENARIOS
from tests.nats.schemas import faults

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

EXPECTED: dict[str, dict[str, Any]] = {
    PYTHON: {name: shows for name, (_, shows) in SCENARIOS.items()},
    GO: GO_SCENARIOS,
    JAVASCRIPT: JAVASCRIPT_SCENARIOS,
}
CASES = [(client, name) for client, expected in EXPECTED.items() for name in expected]


@pytest.mark.parametrize(("client", "name"), CASES)
def test_users_see_what_nats_server_shows(shown: Shown, client: str, name: str) -> None:
    expected = EXPECTED[client][name]
    found = shown[client, name]
    assert found.error == ""
    if expected is RECORDED:
        expected = _recorded(name, ours=shown.server == OURS)
    elif shown.server == OURS and name in DIFFERENCES:
        expected = DIFFERENCES[name].ours
    assert found.shows == expected
    assert [fault for reply in found.replies for fault in faults(reply)] == []


def _recorded(name: str, *, ours: bool) -> Any:
    expected = recorded(name)
    if ours and name in DIFFERENCES:
        for path, value in DIFFERENCES[name].ours.items():
            place = expected
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
    return expected
