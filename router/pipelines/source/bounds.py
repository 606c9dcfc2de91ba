"""Where a read begins and ends: a word, a time, or an offset for each partition.

Offsets are written as the options of Spark's Kafka connector have them, a JSON object by topic and
partition: `{"orders": {"0": 120, "1": -2}}`. A number counts the messages before, -2 is earliest
and -1 latest. A text is a position as the column `position` has it, for stores that do not count.
What is not named is read from its first message, and to its last one.

A batch consists of whole entries. A bound inside an entry therefore takes the entry into the batch,
and the task that reads it drops the rows outside of the bound: `row_key` orders rows and bounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from router.errors import SettingError
from router.model import TopicName
from router.pipelines.source.offsets import Part, Point, RowKey

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_WORDS: Final = {-2: EARLIEST, -1: LATEST}

At = str | int | Point
"""A word or a time, the number of a message, or a message's position."""


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
            told = json.loads(text)
        except ValueError as error:
            raise SettingError(f"{name} = {text!r}: {expected}") from error
        if not isinstance(told, dict):
            raise SettingError(f"{name} = {text!r}: {expected}")
        offsets: dict[Part, At] = {}
        for topic, partitions in told.items():
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
        with suppress(ValueError):
            return Point.parse(value)
    raise SettingError(
        f"{where} = {value!r}: expected the number of a message, -2 (earliest), -1 (latest)"
        " or a position such as '12:3:0'"
    )
