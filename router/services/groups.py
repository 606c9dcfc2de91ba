"""Where groups stand on a topic: their lag, moving them, and ending them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from router.backends import Backend, Start
from router.errors import BadReadOptionError, SubscriptionNotFoundError, TopicNotFoundError
from router.model import Subscription, SubscriptionStats, TopicName

MAX_DIGITS: Final = 15
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXPECTED: Final = (
    "expected earliest, latest, milliseconds since 1970, or a time with its zone such as"
    " 2026-07-31T13:45:00Z or 2026-07-31T13:45:00+02:00"
)


@dataclass(frozen=True, slots=True)
class Group:
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


class Groups:
    """The groups of topics, as administrators see them."""

    def __init__(self, backend: Backend, timeout: float) -> None:
        self._backend = backend
        self._timeout = timeout

    def listed(self, topic: TopicName) -> list[Group]:
        """Return the groups of a topic, by name; raise TopicNotFoundError."""
        try:
            stats = self._backend.describe_topic(topic, self._timeout)
        except TopicNotFoundError:
            raise _no_topic(topic) from None
        return grouped(stats.subscriptions)

    def preview(self, group: Subscription, to: Start | int) -> Preview:
        """Return what `reset` would do now; raise what it raises, and change nothing."""
        try:
            stats = self._backend.describe_topic(group.topic, self._timeout)
        except TopicNotFoundError:
            raise _no_topic(group.topic) from None
        found = {one.name: one for one in grouped(stats.subscriptions)}.get(group.name)
        if found is None:
            raise _no_group(group)
        stored = sum(partition.messages for partition in stats.partitions)
        return Preview(
            found.backlog,
            stored if to is Start.EARLIEST else 0,
            0 if to is Start.LATEST else stored,
        )

    def reset(self, group: Subscription, to: Start | int) -> None:
        """Move a group on all partitions; a number is a time in ms since 1970.

        What its polls hold then is not acknowledged any more. Raises TopicNotFoundError,
        SubscriptionNotFoundError.
        """
        try:
            self._backend.reset(group, to, self._timeout)
        except TopicNotFoundError:
            raise _no_topic(group.topic) from None
        except SubscriptionNotFoundError:
            raise _no_group(group) from None

    def delete(self, group: Subscription) -> None:
        """End a group that nobody reads, on all partitions.

        Raises TopicNotFoundError, SubscriptionNotFoundError, SubscriptionBusyError.
        """
        if group.name not in (found.name for found in self.listed(group.topic)):
            raise _no_group(group)
        try:
            self._backend.unsubscribe(group, self._timeout)
        except TopicNotFoundError:
            raise _no_topic(group.topic) from None


def grouped(subscriptions: Iterable[SubscriptionStats]) -> list[Group]:
    """Return what is told of partitions by group, all in order."""
    found: dict[str, list[SubscriptionStats]] = {}
    for one in subscriptions:
        found.setdefault(one.name, []).append(one)
    return [
        Group(name, tuple(sorted(found[name], key=lambda one: one.partition)))
        for name in sorted(found)
    ]


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
