"""The permissions file: lines `user topics rights`, everything else is denied.

    # user     topics        rights
    billing    orders.*      publish, subscribe
    dashboard  *             subscribe
    ops        *             publish subscribe manage
    *          public.*      subscribe

`*` as the user stands for every user of the users file, and within a topic pattern for any
characters. An INI file was not taken: a line a rule is easier to sort, to diff and to grep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from router.web.access.watched import Watched

MOST_REMEMBERED: Final = 20_000
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]+")


class Right(Enum):
    """What a principal may do with a topic."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: who may do what with which topics."""

    user: str
    topics: re.Pattern[str]
    rights: frozenset[Right]


class Permissions:
    """What the file grants; a change of it counts within a second."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._file = Watched(path, parse, clock)
        self._version = 0
        self._remembered: dict[tuple[str, str, Right], bool] = {}

    def allow(self, user: str, topic: str, right: Right) -> bool:
        """Return whether a rule grants the right; topics by their local name."""
        rules = self._file.get()
        if self._version != self._file.version or len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
            self._version = self._file.version
        asked = user, topic, right
        if (known := self._remembered.get(asked)) is not None:
            return known
        granted = any(
            right in rule.rights and rule.user in {"*", user} and rule.topics.fullmatch(topic)
            for rule in rules
        )
        self._remembered[asked] = granted
        return granted

    def users(self, topic: str, right: Right) -> list[str]:
        """Return who has the right on a topic, as the rules name them."""
        return sorted(
            {r.user for r in self._file.get() if right in r.rights and r.topics.fullmatch(topic)}
        )


def parse(text: str) -> Sequence[Rule]:
    """Read the file; raise ValueError naming the line that cannot be used."""
    rules = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        words = re.split(r"[,\s]+", line.strip(", \t"))
        if len(words) < 3 or not _PATTERN.fullmatch(words[1]):
            raise ValueError(f"line {number}: expected `user topics rights`, * for any characters")
        try:
            rights = frozenset(Right(word) for word in words[2:])
        except ValueError as error:
            known = ", ".join(right.value for right in Right)
            raise ValueError(f"line {number}: {error}; known are {known}") from error
        rules.append(Rule(words[0], _compiled(words[1]), rights))
    return rules


def _compiled(pattern: str) -> re.Pattern[str]:
    # One run of any characters for neighbouring stars: two would make matching slow.
    parts = re.split(r"\*+", pattern)
    return re.compile(".*".join(re.escape(part) for part in parts))
