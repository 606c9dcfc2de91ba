"""Plays scenarios against any server: `python -m tests.nats nats://HOST:PORT [part of a name…]`."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.nats.playing import play
from tests.nats.record import recorded
from tests.nats.scenarios import RECORDED, SCENARIOS
from tests.nats.schemas import faults


def main() -> None:
    """Print what differs from nats-server; a line for each scenario."""
    url, *parts = sys.argv[1:]
    names = [one for one in SCENARIOS if not parts or any(part in one for part in parts)]
    for name, outcome in play(url, names).items():
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


def _difference(expected: Any, shows: Any) -> str:
    if isinstance(expected, list) and len(expected) == len(shows) > 3:
        pairs = zip(expected, shows, strict=True)
        return "".join(f"\n    {one}\n    {other}" for one, other in pairs if one != other)
    if isinstance(expected, dict):
        keys = [key for key in expected if expected[key] != shows.get(key)]
        return "".join(f"\n    {key}: {expected[key]}\n    {shows.get(key)}" for key in keys)
    return f"\n    {json.dumps(expected)}\n    {json.dumps(shows)}"


if __name__ == "__main__":
    main()
