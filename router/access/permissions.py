"""The permissions file: lines `user topics rights`, everything else is denied.

    # user     topics        rights
    billing    orders.*      publish, subscribe
    dashboard  *             subscribe
    ops        *             publish subscribe manage
    *          public.*      subscribe

`*` as the user stands for everybody who is known, and within a topic pattern for any characters. An
API key is a user by its name. An INI file was not taken: a line a rule is easier to sort, to diff
and to grep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from router.access.watched import Watched, in_text

MOST_REMEMBERED: Final = 20_000
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]+")


class Right(Enum):
    """What a principal may do with a topic; `manage` is create and delete and what else there is.

    `view` is to see that it is there, and comes with any other right.
    """

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    MANAGE = "manage"
    CREATE = "create"
    DELETE = "delete"
    VIEW = "view"


GRANTED: Final = {word.value: word for word in (Right.PUBLISH, Right.SUBSCRIBE, Right.MANAGE)}


def implied(rights: frozenset[Right]) -> frozenset[Right]:
    """Return the rights with those that come with them."""
    if Right.MANAGE in rights:
        rights |= {Right.CREATE, Right.DELETE}
    elif rights >= {Right.CREATE, Right.DELETE}:
        rights |= {Right.MANAGE}
    return rights | {Right.VIEW} if rights else rights


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: who may do what with which topics."""

    user: str
    topics: re.Pattern[str]
    rights: frozenset[Right]
    written: str
    """The line without its user, as people read it."""

    def covers(self, topic: str) -> bool:
        """Return whether the rule is about this topic."""
        return self.topics.fullmatch(topic) is not None

    def covers_all(self) -> bool:
        """Return whether the rule is about every topic that there can be."""
        return self.topics.pattern == ".*"


class Permissions:
    """What the file grants; a change of it counts within a second."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        read: Callable[[str], Sequence[Rule]] | None = None,
    ) -> None:
        self._file = Watched(path, in_text(read or parse), clock)
        # With the rules that it follows from: an answer worked out while the file changed is kept
        # beside the old rules, and goes with them.
        self._remembered: tuple[Sequence[Rule], dict[tuple[str, str, Right], bool]] = ((), {})

    def allow(self, user: str, topic: str, right: Right) -> bool:
        """Return whether a rule grants the right; topics by their local name."""
        rules = self._file.get()
        of, remembered = self._remembered
        if of is not rules or len(remembered) >= MOST_REMEMBERED:
            remembered = {}
            self._remembered = rules, remembered
        asked = user, topic, right
        if (known := remembered.get(asked)) is not None:
            return known
        granted = right in _joined(r for r in rules if r.user in {"*", user} and r.covers(topic))
        remembered[asked] = granted
        return granted

    def users(self, topic: str, right: Right) -> list[str]:
        """Return who has the right on a topic, as the rules name them."""
        return sorted(
            {r.user for r in self._file.get() if right in implied(r.rights) and r.covers(topic)}
        )

    def rules(self) -> Sequence[Rule]:
        """Return the rules, in the order of the file."""
        return self._file.get()

    def everywhere(self, user: str, right: Right) -> bool:
        """Return whether the user has the right on every topic that there can be."""
        return right in _joined(
            rule for rule in self._file.get() if rule.user in {"*", user} and rule.covers_all()
        )


def _joined(rules: Iterable[Rule]) -> frozenset[Right]:
    return implied(frozenset(right for rule in rules for right in rule.rights))


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
            rights = frozenset(GRANTED[word] for word in words[2:])
        except KeyError as error:
            known = ", ".join(GRANTED)
            raise ValueError(f"line {number}: {error} is no right; known are {known}") from error
        written = f"{words[1]}: {', '.join(words[2:])}"
        rules.append(Rule(words[0], compiled(words[1]), rights, written))
    return rules


def compiled(pattern: str) -> re.Pattern[str]:
    """Return what matches a pattern in which * is any characters."""
    # One run of any characters for neighbouring stars: two would make matching slow.
    parts = re.split(r"\*+", pattern)
    return re.compile(".*".join(re.escape(part) for part in parts))
