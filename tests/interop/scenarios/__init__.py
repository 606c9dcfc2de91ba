"""All scenarios by name, each a public function of one of these modules."""

from __future__ import annotations

import inspect
from types import ModuleType

from tests.interop.scenarios import (
    acknowledging,
    administering,
    producing,
    reading,
    redelivering,
    schemas,
    sharing,
    subscribing,
    topics,
)
from tests.interop.world import Scenario


def _of(module: ModuleType) -> dict[str, Scenario]:
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": found
        for name, found in vars(module).items()
        if inspect.isfunction(found)
        and found.__module__ == module.__name__
        and not name.startswith("_")
    }


SCENARIOS: dict[str, Scenario] = {
    name: scenario
    for module in (
        producing,
        subscribing,
        acknowledging,
        redelivering,
        sharing,
        reading,
        schemas,
        topics,
        administering,
    )
    for name, scenario in _of(module).items()
}
