"""What users of NATS do: each scenario returns what they saw, as plain values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

from tests.nats.users import User

Scenario = Callable[[User], Awaitable[Any]]
SCENARIOS: Final[dict[str, tuple[Scenario, Any]]] = {}
"""Each scenario with what the real server shows; RECORDED: what the file of its name holds."""
RECORDED: Final = object()

MODULES: Final = ("core", "transcripts", "publishing", "consuming", "buckets")


def shows(expected: Any) -> Callable[[Scenario], Scenario]:
    """Enter a scenario with what it shows on nats-server."""

    def enter(scenario: Scenario) -> Scenario:
        SCENARIOS[scenario.__name__] = (scenario, expected)
        return scenario

    return enter


for _module in MODULES:
    import_module(f"{__name__}.{_module}")
