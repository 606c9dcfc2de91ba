"""The file of permissions: lines `user topics rights`; everything else is denied.

    # user     topics        rights
    billing    orders.*      publish, subscribe
    dashboard  *             subscribe
    support    orders.*      browse
    ops        *             publish subscribe manage
    *          public.*      subscribe

`*` as the user stands for every authenticated client, and in a topic pattern for any characters. An
API key is a user by its name. The format is not INI, because one line per rule is easier to sort,
to compare and to search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from router.access.watched import Watched, in_text

MAX_REMEMBERED_ANSWERS: Final = 20_000
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]+")


class Right(Enum):
    """What a principal may do with a topic; `manage` includes `create` and `delete`.

    `view` is to see that the topic exists, and comes with every other right. `browse` is to look at
    messages on the console's pages, masked; who may subscribe sees them as they are.
    """

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    BROWSE = "browse"
    MANAGE = "manage"
    CREATE = "create"
    DELETE = "delete"
    VIEW = "view"


GRANTED: Final = {
    word.value: word for word in (Right.PUBLISH, Right.SUBSCRIBE, Right.BROWSE, Right.MANAGE)
}


def with_implied(rights: frozenset[Right]) -> frozenset[Right]:
    """Return the rights and those that they imply."""
    if Right.MANAGE in rights:
        rights |= {Right.CREATE, Right.DELETE}
    elif rights >= {Right.CREATE, Right.DELETE}:
        rights |= {Right.MANAGE}
    if Right.SUBSCRIBE in rights:
        rights |= {Right.BROWSE}
    return rights | {Right.VIEW} if rights else rights


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: a user, a pattern of topics, and the rights on them."""

    user: str
    topics: re.Pattern[str]
    rights: frozenset[Right]
    written: str
    """The line without its user, for display."""

    def covers(self, topic: str) -> bool:
        """Return whether the rule applies to this topic."""
        return self.topics.fullmatch(topic) is not None

    def covers_all(self) -> bool:
        """Return whether the rule applies to every possible topic."""
        return self.topics.pattern == ".*"


class Permissions:
    """The rights that the file grants; a change of the file counts within a second."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        read: Callable[[str], Sequence[Rule]] | None = None,
    ) -> None:
        self._file = Watched(path, in_text(read or parse), clock)
        # With the rules that the answers follow from: an answer computed while the file changes is
        # kept with the old rules, and dropped with them.
        self._remembered: tuple[Sequence[Rule], dict[tuple[str, str, Right], bool]] = ((), {})

    def version(self) -> int:
        """Return the number of the rules; it grows when they change."""
        return self._file.version()

    def allows(self, user: str, topic: str, right: Right) -> bool:
        """Return whether a rule grants the right on a topic, given by its local name."""
        rules = self._file.get()
        of, remembered = self._remembered
        if of is not rules or len(remembered) >= MAX_REMEMBERED_ANSWERS:
            remembered = {}
            self._remembered = rules, remembered
        question = user, topic, right
        if (known := remembered.get(question)) is not None:
            return known
        granted = right in _joined(r for r in rules if r.user in {"*", user} and r.covers(topic))
        remembered[question] = granted
        return granted

    def users(self, topic: str, right: Right) -> list[str]:
        """Return the users with this right on a topic, as the rules name them."""
        return sorted(
            {
                r.user
                for r in self._file.get()
                if right in with_implied(r.rights) and r.covers(topic)
            }
        )

    def rules(self) -> Sequence[Rule]:
        """Return the rules, in the order of the file."""
        return self._file.get()

    def allows_all(self, user: str, right: Right) -> bool:
        """Return whether the user has the right on every possible topic."""
        return right in _joined(
            rule for rule in self._file.get() if rule.user in {"*", user} and rule.covers_all()
        )


def _joined(rules: Iterable[Rule]) -> frozenset[Right]:
    return with_implied(frozenset(right for rule in rules for right in rule.rights))


def parse(text: str) -> Sequence[Rule]:
    """Return the rules of a file; raise ValueError naming an unusable line."""
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
        rules.append(Rule(words[0], compile_pattern(words[1]), rights, written))
    return rules


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a pattern in which * matches any characters."""
    # One run of any characters for neighbouring stars: two would make matching slow.
    parts = re.split(r"\*+", pattern)
    return re.compile(".*".join(re.escape(part) for part in parts))
