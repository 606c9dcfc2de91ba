"""How tests are shared out among parallel workers: what uses one server runs in one worker.

A group is the unit that pytest-xdist gives to a worker (`--dist loadgroup`). Tests that use the
Kafka, the nats-server, the Apache Pulsar or the Spark session of the whole run, or the browser,
form a group each, so that each is started once; all others form a group for each file, so that what
a module shares is made once. The longest groups come first: the short ones then fill the other
worker's time. A test is right in any worker, whatever runs beside it; the one exception is the
marker `alone`, whose tests are run by a call of pytest of their own.
"""

from __future__ import annotations

import pytest

# A fixture, or the parameter of a fixture (or one of several in a tuple), by which a test uses what
# its group shares.
GROUPS = {
    "spark": {"spark"},
    "pulsar": {"apache_pulsar", "apache"},
    "kafka": {"kafka"},
    "nats": {"nats_server"},
    "browser": {"browser"},
}


def group(item: pytest.Item) -> str:
    """Return the name of a test's group."""
    used = set(getattr(item, "fixturenames", ()))
    call = getattr(item, "callspec", None)
    if call is not None:
        for value in call.params.values():
            several = value if isinstance(value, tuple) else (value,)
            used |= {one for one in several if isinstance(one, str)}
    for name, marks in GROUPS.items():
        if used & marks:
            return name
    return str(item.path.relative_to(item.config.rootpath))


def share(items: list[pytest.Item]) -> None:
    """Give each test its group, and order the groups: the shared servers' first."""
    ranks = {name: rank for rank, name in enumerate(GROUPS)}
    named = [(group(item), item) for item in items]
    for name, item in named:
        item.add_marker(pytest.mark.xdist_group(name))
    named.sort(key=lambda pair: ranks.get(pair[0], len(ranks)))
    items[:] = [item for _, item in named]
