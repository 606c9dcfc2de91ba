"""How far a stream has come: the places of its partitions, as Spark's checkpoint keeps them.

The JSON of an offset has, by full topic name and partition number (-1: not partitioned),
  `next`   the place behind the last entry of the batch, `ledger:entry`
  `index`  how many messages were before it since the partition began, where the store counts them
  `begin`  where the batch begins, if that is not `next` of an offset that is kept: in the first
           batch, at partitions that are new, and behind what was lost
  `low`    the message that a new stream was told to begin with, where it is not the first one of
           its entry: a number, or `ledger:entry:number`; until the batch that has it
  `lost`   the messages lost so far, of all batches; a loss that cannot be counted counts as one
  `losses` how many stretches that were
A batch is what lies between the places of two offsets: the same entries whenever it is read again,
for entries have the same places as long as they are kept, broker restarts or not. Places inside an
entry were not taken: a bound of rows is exact enough without, and Apache Pulsar could not keep it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from router.backends.pulsar.extents import Place
from router.errors import BadRequestError

VERSION: Final = 1
_POINT: Final = re.compile(r"([0-9]{1,19}):([0-9]{1,19})(?::([0-9]{1,19}))?")


class Part(NamedTuple):
    """A partition of a topic by the topic's full name; -1: the topic has none."""

    topic: str
    partition: int


class Point(NamedTuple):
    """A message by its position: its entry, and its number in the entry's batch."""

    place: Place
    within: int

    @classmethod
    def parse(cls, text: str) -> Point:
        """Read what rows show as `position`; raise ValueError."""
        found = _POINT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text} is no position")
        return cls(Place(int(found[1]), int(found[2])), int(found[3] or 0))

    def __str__(self) -> str:
        return f"{self.place}:{self.within}" if self.within else str(self.place)


RowKey = int | Point | None
"""The message that bounds the rows of a partition; None: entries bound them."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The places that a stream has come to; see the module."""

    next: Mapping[Part, Place] = field(default_factory=dict)
    index: Mapping[Part, int] = field(default_factory=dict)
    begin: Mapping[Part, Place] = field(default_factory=dict)
    lost: int = 0
    losses: int = 0
    low: Mapping[Part, int | Point] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return it as Spark keeps it: equal offsets make equal text."""
        told: dict[str, Any] = {
            "version": VERSION,
            "next": _nested({part: str(place) for part, place in self.next.items()}),
        }
        if self.index:
            told["index"] = _nested(self.index)
        if self.begin:
            told["begin"] = _nested({part: str(place) for part, place in self.begin.items()})
        if self.losses:
            told["lost"], told["losses"] = self.lost, self.losses
        if self.low:
            told["low"] = _nested({part: _bare(low) for part, low in self.low.items()})
        return told

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Offset:
        """Read what `json` wrote; raise BadRequestError for anything else."""
        if told.get("version") != VERSION:
            raise BadRequestError("the checkpoint's offset is of another version of this source")
        try:
            return cls(
                {part: Place.parse(text) for part, text in _flat(told["next"]).items()},
                {part: int(index) for part, index in _flat(told.get("index", {})).items()},
                {part: Place.parse(text) for part, text in _flat(told.get("begin", {})).items()},
                int(told.get("lost", 0)),
                int(told.get("losses", 0)),
                {part: _low(bare) for part, bare in _flat(told.get("low", {})).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadRequestError(
                f"the checkpoint's offset is none of this source: {error!r}"
            ) from error

    def still_low(self, begins: Mapping[Part, Place]) -> dict[Part, int | Point]:
        """Return `low` for the batch from here on, which `begins` here where nothing was lost."""
        return {
            part: low
            for part, low in self.low.items()
            if begins.get(part) == self.next.get(part) and not self._passed(part, low)
        }

    def _passed(self, part: Part, low: int | Point) -> bool:
        if isinstance(low, Point):
            return self.next[part] > low.place
        return part in self.index and self.index[part] >= low

    def starts(self, end: Offset) -> dict[Part, Place]:
        """Return where the batch from here to `end` begins, of the partitions that are in it."""
        found = {}
        for part, place in end.next.items():
            start = end.begin.get(part, self.next.get(part))
            if start is not None and start < place:
                found[part] = start
        return found


def _bare(low: int | Point) -> int | str:
    return str(low) if isinstance(low, Point) else low


def _low(bare: int | str) -> int | Point:
    return bare if isinstance(bare, int) else Point.parse(bare)


def _nested(values: Mapping[Part, Any]) -> dict[str, dict[str, Any]]:
    told: dict[str, dict[str, Any]] = {}
    for part in sorted(values):
        told.setdefault(part.topic, {})[str(part.partition)] = values[part]
    return told


def _flat(told: Mapping[str, Mapping[str, Any]]) -> dict[Part, Any]:
    return {
        Part(topic, int(partition)): value
        for topic, partitions in told.items()
        for partition, value in partitions.items()
    }
