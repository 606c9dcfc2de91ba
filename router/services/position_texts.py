"""Positions as operators read and write them: LEDGER:ENTRY:PARTITION, and the index in a batch."""

from __future__ import annotations

import re
from typing import Final

from router.model import Position

_POSITION: Final = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,9})(?::([0-9]{1,9}))?")


def write_position(position: Position, *, with_index: bool = False) -> str:
    """Return a position as a text, partitions counted from 0."""
    index = f":{position.batch_index}" if with_index and position.batch_index >= 0 else ""
    return f"{position.ledger}:{position.entry}:{max(0, position.partition)}{index}"


def parse_position(text: str) -> Position | None:
    """Return the position that a text says, partitions counted from 0; None: it says none."""
    found = _POSITION.fullmatch(text.strip())
    if found is None:
        return None
    return Position(int(found[1]), int(found[2]), int(found[3]), int(found[4] or -1))
