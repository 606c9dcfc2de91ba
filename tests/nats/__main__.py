"""Plays scenarios against any server: `python -m tests.nats nats://HOST:PORT [part of a name…]`."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.nats.playing import PYTHON, play
from tests.nats.record import recorded
from tests.nats.scenarios import RECORDED, SCENARIOS
from tests.nats.schemas import faults


def main() -> None:
    """Print what differs from nats-server; a line for each scenario."""
    url, *parts = sys.argv[1:]
    names = [one for one in SCENARIOS if not parts or any(part in one for part in parts)]
    for name, outcome in play(PYTHON, url, names).items():
        expected = SCENARIOS[name][1]
        if expected is RECORDED:
            expected = recorded(name)
        wrong = [fault for reply in outcome.replies for fault in faults(reply)]
        if outcome.error:
            print(f"{name}: {outcome.error}")  # noqa: T201
        elif outcome.shows != expected:
            print(f"{name}: {_difference(expected, outcome.shows)}")  # noqa: T201
        else:
            print(f"{name}: {wrong[:2] or 'ok'}")  # noqa: T201


def _difference(expected: Any, shows: Any, path: str = "") -> str:
    """Return a line for each place where values differ: what nats-server shows, what was shown."""
    if isinstance(expected, dict) and isinstance(shows, dict):
        keys: list[Any] = [*expected, *(shows.keys() - expected.keys())]
        parts = [(key, expected.get(key), shows.get(key)) for key in keys]
    elif isinstance(expected, list) and isinstance(shows, list) and len(expected) == len(shows):
        parts = [(n, *pair) for n, pair in enumerate(zip(expected, shows, strict=True))]
    else:
        return f"\n    {path}: {json.dumps(expected)} != {json.dumps(shows)}"
    found = [(key, one, other) for key, one, other in parts if one != other]
    return "".join(_difference(one, other, f"{path}[{key}]") for key, one, other in found)


if __name__ == "__main__":
    main()
