"""What publishers sent and groups were given, in phases, and what is wrong with it.

Theory of operation. Messages are texts `label:number`, or `label:number:xxx` where they are to be
long. Each label is a key with a publisher of its own, which counts up and never sends a number
twice. An audit gets four lists, which clients keep: posts, deliveries, what the store holds in the
end, read past the router, and when each phase began. It changes nothing and needs no server, so its
own test feeds it traffic with faults.

- *Lost*: acknowledged and not stored, or stored and not given to a group that reads all.
- *Doubled*: stored more than once.
- *Repeated*: given to a group once more; `Repeat.since` is when it was given before.
- *Late*: first given, or stored, behind a higher number of its label.
- *Denied*: refused with 503, which promises that nothing is stored, and stored all the same.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

# Statuses that promise that nothing was stored; all others but 200 leave the outcome open.
NOT_STORED = frozenset({429, 503})
_MESSAGE = re.compile(r"([A-Za-z][\w-]*):(\d+)(?::x*)?")


@dataclass(frozen=True, slots=True)
class Post:
    """A request to publish one message; status 0: no answer came."""

    message: str
    sent: float
    status: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """An answer with messages, to one consumer of a group."""

    group: str
    consumer: str
    at: float
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A message that a group was given again, when, and when it was given last before."""

    group: str
    message: str
    at: float
    since: float


@dataclass(frozen=True, slots=True)
class Late:
    """A message behind a higher number of its label, in a partition or for a group's consumer."""

    place: str
    message: str
    behind: str


@dataclass
class Report:
    """What an audit found."""

    rows: list[dict[str, int | str]] = field(default_factory=list)
    lost: dict[str, list[str]] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)

    def __str__(self) -> str:
        """A table with a line for each phase."""
        names = list(self.rows[0]) if self.rows else []
        lines = [" ".join(f"{name:>12}" for name in names)]
        lines += [" ".join(f"{row[name]:>12}" for name in names) for row in self.rows]
        lost = {place: len(found) for place, found in self.lost.items()}
        lines.append(f"lost {lost}, doubled {len(self.doubled)}, denied {len(self.denied)}")
        return "\n".join(lines)


@dataclass
class Audit:
    """The lists of one run; times are of one monotonic clock."""

    posts: list[Post] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)
    stored: list[list[str]] = field(default_factory=list)
    # Groups that began at the first message, and read to the end.
    complete: set[str] = field(default_factory=set)
    # What a group had before the traffic: it is not to be given to it again, and not missed.
    before: dict[str, frozenset[str]] = field(default_factory=dict)

    def begin(self, phase: str, at: float) -> None:
        """Begin a phase."""
        self.phases.append((phase, at))

    def began(self, phase: str) -> float:
        """Return when a phase began."""
        return dict(self.phases)[phase]

    def report(self) -> Report:
        """Return all that is wrong, and a row of figures for each phase."""
        found = Report()
        held = Counter(message for partition in self.stored for message in partition)
        found.doubled = sorted(message for message, times in held.items() if times > 1)
        found.denied = [
            p.message for p in self.posts if p.status in NOT_STORED and p.message in held
        ]
        found.lost = {place: lost for place, lost in self._lost(held) if lost}
        found.repeats = list(self._repeats())
        found.late = [*self._late_in_store(), *self._late_for_consumers()]
        found.rows = self._rows(found.repeats)
        return found

    def _lost(self, held: Counter[str]) -> Iterator[tuple[str, list[str]]]:
        acknowledged = [post.message for post in self.posts if post.status == 200]
        yield "store", [message for message in acknowledged if message not in held]
        given: dict[str, set[str]] = defaultdict(set)
        for delivery in self.deliveries:
            given[delivery.group].update(delivery.messages)
        for group in sorted(self.complete):
            seen = given[group] | self.before.get(group, frozenset())
            yield group, sorted(held.keys() - seen)
            yield f"{group}, not in the store", sorted(given[group] - held.keys())

    def _repeats(self) -> Iterator[Repeat]:
        last: dict[tuple[str, str], float] = {
            (group, message): 0.0 for group, known in self.before.items() for message in known
        }
        for delivery in sorted(self.deliveries, key=lambda delivery: delivery.at):
            for message in delivery.messages:
                place = (delivery.group, message)
                if place in last:
                    yield Repeat(delivery.group, message, delivery.at, last[place])
                last[place] = delivery.at

    def _late_in_store(self) -> Iterator[Late]:
        for number, partition in enumerate(self.stored):
            yield from late(f"partition {number}", partition)

    def _late_for_consumers(self) -> Iterator[Late]:
        """Repeats apart, a consumer is given each label in order."""
        seen: dict[str, set[str]] = defaultdict(set)
        firsts: dict[str, list[str]] = defaultdict(list)
        for delivery in sorted(self.deliveries, key=lambda delivery: delivery.at):
            place = f"{delivery.group}/{delivery.consumer}"
            new = [m for m in delivery.messages if m not in seen[delivery.group]]
            seen[delivery.group].update(new)
            firsts[place] += new
        for place, messages in firsts.items():
            yield from late(place, messages)

    def _rows(self, repeats: Sequence[Repeat]) -> list[dict[str, int | str]]:
        names = [name for name, _ in self.phases]
        posts = Counter((self._phase(p.sent), _outcome(p.status)) for p in self.posts)
        given: Counter[str] = Counter()
        for delivery in self.deliveries:
            given[self._phase(delivery.at)] += len(delivery.messages)
        again = Counter(self._phase(repeat.at) for repeat in repeats)
        return [
            {
                "phase": name,
                **{o: posts[name, o] for o in ("stored", "refused", "unknown")},
                "given": given[name],
                "repeated": again[name],
            }
            for name in names
        ]

    def _phase(self, at: float) -> str:
        place = bisect_right([began for _, began in self.phases], at) - 1
        return self.phases[max(place, 0)][0]


def _outcome(status: int) -> str:
    if status == 200:
        return "stored"
    return "refused" if status in NOT_STORED else "unknown"


def late(place: str, messages: Iterable[str]) -> Iterator[Late]:
    """Yield the messages that come behind a higher number of their label."""
    highest: dict[str, int] = {}
    for message in messages:
        if (found := _MESSAGE.fullmatch(message)) is None:
            continue  # it has no order
        label, number = found[1], int(found[2])
        if number < highest.get(label, -1):
            yield Late(place, message, f"{label}:{highest[label]}")
        else:
            highest[label] = number
