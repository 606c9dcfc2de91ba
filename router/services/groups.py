"""Where groups stand on a topic: their lag, moving them, and ending them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from router.backends import Backend, ResetTarget, Start
from router.errors import (
    BadReadOptionError,
    BadRequestError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    PartitionStats,
    Position,
    Subscription,
    SubscriptionStats,
    TopicName,
    TopicStats,
)
from router.services.position_texts import parse_position

__all__ = [
    "Preview",
    "ResetTarget",
    "TopicGroup",
    "TopicGroups",
    "grouped",
    "moment",
    "positions",
    "target",
]

MAX_DIGITS: Final = 15
MAX_POSITIONS: Final = 1_000
"""Partitions that one reset names."""
_POSITIONS: Final = re.compile(r"\s*[0-9]+:")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXPECTED: Final = (
    "expected earliest, latest, milliseconds since 1970, or a time with its zone such as"
    " 2026-07-31T13:45:00Z or 2026-07-31T13:45:00+02:00"
)


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """A group on all partitions of a topic, by partition; `backlog` in messages."""

    name: str
    partitions: tuple[SubscriptionStats, ...]

    @property
    def backlog(self) -> int:
        """Return how many messages it has not acknowledged."""
        return sum(partition.backlog for partition in self.partitions)

    @property
    def consumers(self) -> int:
        """Return how many consumers read it now; a poll that waits is one for each partition."""
        return sum(partition.consumers for partition in self.partitions)

    @property
    def last_used_ms(self) -> int:
        """Return when it was read or acknowledged last, in ms since 1970; 0: not known."""
        return max(partition.last_used_ms for partition in self.partitions)

    @property
    def durable(self) -> bool:
        """Return whether it outlives its consumers."""
        return all(partition.durable for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a reset would do: the lag that a group has, and the least and most that it would have.

    Least and most differ for a time, since no store tells how many messages are older.
    """

    lag: int
    least: int
    most: int

    def sentence(self) -> str:
        """Return what would change, for people."""
        after = f"{self.most:,}"
        if self.least != self.most:
            after = f"between {self.least:,} and {self.most:,}"
        return f"Lag now: {self.lag:,}. Lag after the reset: {after}."


class TopicGroups:
    """The groups of topics, as administrators see them."""

    def __init__(self, backend: Backend, timeout: float) -> None:
        self._backend = backend
        self._timeout = timeout

    def listed(self, topic: TopicName) -> list[TopicGroup]:
        """Return the groups of a topic, by name; raise TopicNotFoundError."""
        return grouped(self._described(topic).subscriptions)

    def described(self, group: Subscription) -> tuple[TopicStats, TopicGroup]:
        """Return what a topic holds, and one of its groups.

        Raises TopicNotFoundError, SubscriptionNotFoundError.
        """
        stats = self._described(group.topic)
        for found in grouped(stats.subscriptions):
            if found.name == group.name:
                return stats, found
        raise _no_group(group)

    def preview(self, group: Subscription, to: ResetTarget) -> Preview:
        """Return what `reset` would do now; raise what it raises, and change nothing."""
        stats, found = self.described(group)
        if isinstance(to, tuple):
            return _preview_of_positions(found, stats, _resolved(stats, to))
        stored = sum(partition.messages for partition in stats.partitions)
        return Preview(
            found.backlog,
            stored if to is Start.EARLIEST else 0,
            0 if to is Start.LATEST else stored,
        )

    def reset(self, group: Subscription, to: ResetTarget) -> None:
        """Move a group on all partitions; a number is a time in ms since 1970.

        Positions move it on their partitions alone, to the message there. What its polls hold then
        is not acknowledged any more. Raises TopicNotFoundError, SubscriptionNotFoundError,
        BadRequestError for a position that the topic does not have.
        """
        if isinstance(to, tuple):
            to = _resolved(self._described(group.topic), to)
        try:
            self._backend.reset(group, to, self._timeout)
        except TopicNotFoundError:
            raise _no_topic(group.topic) from None
        except SubscriptionNotFoundError:
            raise _no_group(group) from None

    def delete(self, group: Subscription) -> None:
        """End a group that has no readers, on all partitions.

        Raises TopicNotFoundError, SubscriptionNotFoundError, SubscriptionBusyError.
        """
        self.described(group)
        try:
            self._backend.unsubscribe(group, self._timeout)
        except TopicNotFoundError:
            raise _no_topic(group.topic) from None

    def _described(self, topic: TopicName) -> TopicStats:
        try:
            return self._backend.describe_topic(topic, self._timeout)
        except TopicNotFoundError:
            raise _no_topic(topic) from None


def grouped(subscriptions: Iterable[SubscriptionStats]) -> list[TopicGroup]:
    """Return what is told of partitions by group, all in order."""
    found: dict[str, list[SubscriptionStats]] = {}
    for one in subscriptions:
        found.setdefault(one.name, []).append(one)
    return [
        TopicGroup(name, tuple(sorted(found[name], key=lambda one: one.partition)))
        for name in sorted(found)
    ]


def target(option: str, text: str) -> ResetTarget:
    """Read where a group is to go on: what `moment` reads, or `positions`.

    Raises BadReadOptionError.
    """
    return positions(option, text) if _POSITIONS.match(text) else moment(option, text)


def positions(option: str, text: str) -> tuple[Position, ...]:
    """Read positions with commas between them, one for each partition.

    A position is LEDGER:ENTRY:PARTITION; the index in a batch that may follow is left out. Raises
    BadReadOptionError.
    """
    parts = text.split(",", MAX_POSITIONS)
    found = [parse_position(part) for part in parts]
    if len(parts) > MAX_POSITIONS:
        raise BadReadOptionError(f"{option}: expected at most {MAX_POSITIONS} positions.")
    places = tuple(replace(one, batch_index=-1) for one in found if one is not None)
    if len(places) < len(found):
        raise BadReadOptionError(
            f"{option}: expected positions such as 5:17:0 (ledger, entry, partition)."
        )
    if len({place.partition for place in places}) < len(places):
        raise BadReadOptionError(f"{option}: expected one position for each partition.")
    return places


def _resolved(stats: TopicStats, to: tuple[Position, ...]) -> tuple[Position, ...]:
    """Return positions with partitions as the store numbers them; raise BadRequestError."""
    if not stats.info.partitions:
        to = tuple(
            replace(p, partition=NOT_PARTITIONED if not p.partition else p.partition) for p in to
        )
    known = {one.partition: one for one in stats.partitions}
    for position in to:
        found = known.get(position.partition)
        if found is None:
            raise BadRequestError(
                f"topic {stats.info.topic.local} has no partition {position.partition}, but"
                f" {len(known)}"
            )
        # A mistyped ledger must not move a group to the end.
        if position.ledger > found.ledger:
            raise BadRequestError(
                f"partition {max(0, position.partition)} has no ledger {position.ledger}: its last"
                f" one is {found.ledger}"
            )
    return to


def _preview_of_positions(
    group: TopicGroup, stats: TopicStats, to: tuple[Position, ...]
) -> Preview:
    moved = {position.partition: position for position in to}
    stays = sum(one.backlog for one in group.partitions if one.partition not in moved)
    bounds = [
        _left(one, moved[one.partition]) for one in stats.partitions if one.partition in moved
    ]
    least, most = (stays + sum(side) for side in zip(*bounds, strict=True))
    return Preview(group.backlog, least, most)


def _left(partition: PartitionStats, position: Position) -> tuple[int, int]:
    """Return the least and most messages from a position on: an entry is one or more of them.

    Which entries those that were deleted are of is not known.
    """
    if position.ledger < partition.ledger:
        return 0, partition.messages
    entries_left = max(0, partition.next_entry - max(position.entry, partition.first_entry))
    before = max(0, min(position.entry, partition.next_entry) - partition.first_entry)
    if not entries_left:
        return 0, 0
    stored = partition.messages + partition.deleted
    least = max(0, min(entries_left, stored) - partition.deleted)
    return least, min(partition.messages, max(0, stored - before))


@lru_cache(maxsize=1_024)
def moment(option: str, text: str) -> Start | int:
    """Read where a group is to begin, from a request or a command; times in ms since 1970.

    `option` is its name there. Raises BadReadOptionError.
    """
    if text in {start.value for start in Start}:
        return Start(text)
    if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
        return int(text)
    # A plus sign that was sent as it is stands for a space in a query.
    for written in (text, "+".join(text.rsplit(" ", 1))):
        try:
            return _milliseconds(datetime.fromisoformat(written))
        except (ValueError, OverflowError):
            continue
    raise BadReadOptionError(f"{option}: {_EXPECTED}.")


def _milliseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise ValueError("a time without a zone")
    # Rounded up: what was stored before it does not count.
    return max(0, -((_EPOCH - time) // timedelta(milliseconds=1)))


def _no_topic(topic: TopicName) -> TopicNotFoundError:
    return TopicNotFoundError(f"[{topic.local}]")


def _no_group(group: Subscription) -> SubscriptionNotFoundError:
    return SubscriptionNotFoundError(f"There is no group {group.name} on {group.topic.local}.")
