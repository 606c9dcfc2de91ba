"""What an audit says of one partition: how many, which are missing, and which are there twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Neighbours in a partition, both ends included; `first` and `last` are positions."""

    first: str
    last: str
    messages: int

    def __str__(self) -> str:
        return (
            self.first if self.messages == 1 else f"{self.first} to {self.last} ({self.messages})"
        )


class Twice(NamedTuple):
    """A position that is stored more than once, over the archive and the dead letters."""

    position: str
    copies: int


@dataclass(frozen=True, slots=True)
class Account:
    """One partition's books. All counts are messages; `archived` and `dead` count repeats too.

    `waiting`: published behind the last that was archived or is a dead letter: they may be under
    way. `gone`: archived, and older than all that the topic still holds, which retention explains.
    `unknown`: archived, but not in the topic where it should be: it is another topic's archive.
    """

    topic: str
    partition: int
    published: int = 0
    archived: int = 0
    dead: int = 0
    gone: int = 0
    unknown: int = 0
    missing: int = 0
    waiting: int = 0
    repeats: int = 0
    gaps: tuple[Span, ...] = ()
    twice: tuple[Twice, ...] = ()

    def balanced(self, *, complete: bool) -> bool:
        """Tell whether nothing is missing and nothing twice; `complete`: nothing may wait."""
        wrong = self.missing or self.repeats or self.unknown
        return not (wrong or (complete and self.waiting))

    @property
    def adds_up(self) -> bool:
        """Tell whether the counts fit one another, as they do unless the audit itself is wrong."""
        there = self.archived + self.dead - self.repeats
        known = there - self.gone - self.unknown
        return self.published == known + self.missing + self.waiting

    def lines(self, *, complete: bool) -> list[str]:
        """Return the account for people: a line, and one more for each gap and repeat."""
        verdict = "complete" if self.balanced(complete=complete) else "NOT COMPLETE"
        place = f"{self.topic}[{self.partition}]"
        found = [
            f"{place}: {verdict}: published {self.published} = archived {self.archived}"
            f" + dead {self.dead} - repeats {self.repeats} - gone {self.gone}"
            f" - unknown {self.unknown} + missing {self.missing} + waiting {self.waiting}"
        ]
        found += [f"{place}: missing {gap}" for gap in self.gaps]
        named = sum(gap.messages for gap in self.gaps)
        if named < self.missing:
            found.append(f"{place}: missing {self.missing - named} more in further gaps")
        found += [f"{place}: {one.position} is there {one.copies} times" for one in self.twice]
        told = sum(one.copies - 1 for one in self.twice)
        if told < self.repeats:
            found.append(f"{place}: {self.repeats - told} more repeats")
        return found


def spans(published: Iterable[str], there: Iterable[str]) -> list[Span]:
    """Return the gaps: what is published, in the partition's order, and not there.

    The slow twin of what the audit asks of Spark: its memory grows with the partition.
    """
    known = set(there)
    found: list[Span] = []
    gap = False
    for position in published:
        if position in known:
            gap = False
        elif gap:
            found[-1] = Span(found[-1].first, position, found[-1].messages + 1)
        else:
            found.append(Span(position, position, 1))
            gap = True
    return found
