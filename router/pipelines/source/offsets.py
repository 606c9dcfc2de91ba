"""How far a stream has come, as Spark's checkpoint keeps it, and where a read begins and ends.

The JSON of an offset has, by full topic name and partition number (-1: not partitioned),
  `next`   the place behind the last entry of the batch, `ledger:entry`
  `index`  how many messages were before it since the partition began, where the store counts them
  `begin`  where the batch begins, if that is not `next` of an offset that is kept: in the first
           batch, at partitions that are new, and behind what was lost
  `low`    the message that a new stream was told to begin with, where it is not the first one of
           its entry: a number, or `ledger:entry:number`; until the batch that has it
  `lost`   the messages lost so far, of all batches; a loss that cannot be counted counts as one
  `losses` how many ranges that were
A batch is what lies between the places of two offsets: the same entries whenever it is read again,
for entries have the same places as long as they are kept, broker restarts or not. Places inside an
entry were not taken: a bound of rows is exact enough without, and Apache Pulsar could not keep it.

A read begins and ends at a word, a time, or an offset for each partition. Offsets are written as
the options of Spark's Kafka connector have them, a JSON object by topic and partition: `{"orders":
{"0": 120, "1": -2}}`. A number counts the messages before, -2 is earliest and -1 latest. A text is
a position as the column `position` has it, for stores that do not count, or a time in ms since 1970
behind an @. What is not named is read from its first message, and to its last one.

A batch consists of whole entries. A bound inside an entry therefore takes the entry into the batch,
and the task that reads it drops the rows outside of the bound: `row_key` orders rows and bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from router.backends.pulsar.extents import EntryPosition
from router.errors import BadRequestError, SettingError
from router.model import TopicName

VERSION: Final = 1
_POINT: Final = re.compile(r"([0-9]{1,19}):([0-9]{1,19})(?::([0-9]{1,19}))?")
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
TIME: Final = "@"
_WORDS: Final = {-2: EARLIEST, -1: LATEST}


class Part(NamedTuple):
    """A partition of a topic by the topic's full name; -1: the topic has none."""

    topic: str
    partition: int


class MessagePoint(NamedTuple):
    """A message by its position: its entry, and its number in the entry's batch."""

    place: EntryPosition
    within: int

    @classmethod
    def parse(cls, text: str) -> MessagePoint:
        """Read what rows show as `position`; raise ValueError."""
        found = _POINT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text} is no position")
        return cls(EntryPosition(int(found[1]), int(found[2])), int(found[3] or 0))

    def __str__(self) -> str:
        return f"{self.place}:{self.within}" if self.within else str(self.place)


At = str | int | MessagePoint
"""A word or a time, the number of a message, or a message's position."""
RowKey = int | MessagePoint | None
"""The message that bounds the rows of a partition; None: entries bound them."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The places that a stream has come to; see the module."""

    next: Mapping[Part, EntryPosition] = field(default_factory=dict)
    index: Mapping[Part, int] = field(default_factory=dict)
    begin: Mapping[Part, EntryPosition] = field(default_factory=dict)
    lost: int = 0
    losses: int = 0
    low: Mapping[Part, int | MessagePoint] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return it as Spark keeps it: equal offsets make equal text."""
        saved: dict[str, Any] = {
            "version": VERSION,
            "next": _nested({part: str(place) for part, place in self.next.items()}),
        }
        if self.index:
            saved["index"] = _nested(self.index)
        if self.begin:
            saved["begin"] = _nested({part: str(place) for part, place in self.begin.items()})
        if self.losses:
            saved["lost"], saved["losses"] = self.lost, self.losses
        if self.low:
            saved["low"] = _nested({part: _bare(low) for part, low in self.low.items()})
        return saved

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> Offset:
        """Read what `json` wrote; raise BadRequestError for anything else."""
        if saved.get("version") != VERSION:
            raise BadRequestError("the checkpoint's offset is of another version of this source")
        try:
            return cls(
                {part: EntryPosition.parse(text) for part, text in _flat(saved["next"]).items()},
                {part: int(index) for part, index in _flat(saved.get("index", {})).items()},
                {
                    part: EntryPosition.parse(text)
                    for part, text in _flat(saved.get("begin", {})).items()
                },
                int(saved.get("lost", 0)),
                int(saved.get("losses", 0)),
                {part: _low(bare) for part, bare in _flat(saved.get("low", {})).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadRequestError(
                f"the checkpoint's offset is none of this source: {error!r}"
            ) from error

    def still_low(self, begins: Mapping[Part, EntryPosition]) -> dict[Part, int | MessagePoint]:
        """Return `low` for the batch from here on, which `begins` here where nothing was lost."""
        return {
            part: low
            for part, low in self.low.items()
            if begins.get(part) == self.next.get(part) and not self._passed(part, low)
        }

    def _passed(self, part: Part, low: int | MessagePoint) -> bool:
        if isinstance(low, MessagePoint):
            return self.next[part] > low.place
        return part in self.index and self.index[part] >= low

    def starts(self, end: Offset) -> dict[Part, EntryPosition]:
        """Return where the batch from here to `end` begins, of the partitions that are in it."""
        found = {}
        for part, place in end.next.items():
            start = end.begin.get(part, self.next.get(part))
            if start is not None and start < place:
                found[part] = start
        return found


def _bare(low: int | MessagePoint) -> int | str:
    return str(low) if isinstance(low, MessagePoint) else low


def _low(bare: int | str) -> int | MessagePoint:
    return bare if isinstance(bare, int) else MessagePoint.parse(bare)


def _nested(values: Mapping[Part, Any]) -> dict[str, dict[str, Any]]:
    saved: dict[str, dict[str, Any]] = {}
    for part in sorted(values):
        saved.setdefault(part.topic, {})[str(part.partition)] = values[part]
    return saved


def _flat(saved: Mapping[str, Mapping[str, Any]]) -> dict[Part, Any]:
    return {
        Part(topic, int(partition)): value
        for topic, partitions in saved.items()
        for partition, value in partitions.items()
    }


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read begins, or ends (exclusively).

    `word` is earliest, latest or a time in ms since 1970; `offsets` go before it. They are kept by
    full topic name and by partition as rows show it: 0 where the topic has no partitions.
    """

    word: str
    offsets: Mapping[Part, At] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, name: str, text: str, words: tuple[str, ...], named: Callable[[str], TopicName]
    ) -> Bound:
        """Read the option `name`; `words[0]` is for what an object leaves out.

        Raises SettingError, BadNameError.
        """
        if text in words or (text.isascii() and text.isdigit()):
            return cls(text)
        expected = f"expected {' or '.join(words)}, a time in ms since 1970, or a JSON object"
        try:
            saved = json.loads(text)
        except ValueError as error:
            raise SettingError(f"{name} = {text!r}: {expected}") from error
        if not isinstance(saved, dict):
            raise SettingError(f"{name} = {text!r}: {expected}")
        offsets: dict[Part, At] = {}
        for topic, partitions in saved.items():
            if not isinstance(partitions, dict):
                raise SettingError(f'{name}: {topic} needs an object such as {{"0": 120}}')
            for partition, value in partitions.items():
                if not (partition.isascii() and partition.isdigit()):
                    raise SettingError(f"{name}: {topic} has no partition {partition!r}")
                part = Part(str(named(topic)), int(partition))
                offsets[part] = _at(f"{name}: {topic}[{partition}]", value)
        return cls(words[0], offsets)

    def at(self, part: Part) -> At:
        """Return the bound of a partition."""
        return self.offsets.get(Part(part.topic, max(0, part.partition)), self.word)

    def row_key(self, part: Part) -> RowKey:
        """Return the message that bounds the rows of a partition; None: entries bound them."""
        at = self.at(part)
        return None if isinstance(at, str) else at


FROM_EARLIEST: Final = Bound(EARLIEST)
TO_LATEST: Final = Bound(LATEST)


def _at(where: str, value: Any) -> At:
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= 0:
            return value
        if value in _WORDS:
            return _WORDS[value]
    if isinstance(value, str):
        time = value.removeprefix(TIME)
        if time != value and time.isascii() and time.isdigit():
            return time
        with suppress(ValueError):
            return MessagePoint.parse(value)
    raise SettingError(
        f"{where} = {value!r}: expected the number of a message, -2 (earliest), -1 (latest)"
        " or a position such as '12:3:0'"
    )
