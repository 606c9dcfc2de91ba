"""Where groups stand with one message, by their cursors: acknowledged, passed over, or to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router.backends import Backend
from router.errors import NotAllowedError, NotSupportedError, SubscriptionNotFoundError
from router.model import CursorState, Position, Subscription, TopicName, TopicStats
from router.services.groups import grouped
from router.services.read import LAST_OF_BATCH

MAX_GROUPS: Final = 50
"""Groups whose cursors are asked for, for one message."""
ACKNOWLEDGED: Final = "acknowledged"
PENDING: Final = "pending"
NOT_YET: Final = "not yet"


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is with a message: ACKNOWLEDGED, PENDING or NOT_YET.

    PENDING: messages behind it are acknowledged, and it is not.
    """

    group: str
    state: str


class MessageGroups:
    """Looks at cursors; calls block, and may be made from many threads or greenlets."""

    def __init__(self, backend: Backend, timeout: float) -> None:
        self._backend = backend
        self._timeout = timeout

    def progress(self, stats: TopicStats, position: Position) -> list[GroupProgress]:
        """Return where durable groups stand, at most MAX_GROUPS; none if the store tells nothing.

        Raises TopicNotFoundError.
        """
        found = []
        for group in [one for one in grouped(stats.subscriptions) if one.durable][:MAX_GROUPS]:
            state = self._state(stats.info.topic, group.name, position)
            if state:
                found.append(GroupProgress(group.name, state))
        return found

    def _state(self, topic: TopicName, group: str, position: Position) -> str:
        try:
            cursors = self._backend.cursors(Subscription(topic, group), self._timeout)
        except (NotSupportedError, NotAllowedError, SubscriptionNotFoundError):
            return ""
        return next(
            (state_of(one, position) for one in cursors if one.partition == position.partition), ""
        )


def state_of(cursor: CursorState, position: Position) -> str:
    """Return how far a cursor is with a message."""
    at = _first(position)
    if cursor.mark_delete is not None and at <= _last(cursor.mark_delete):
        return ACKNOWLEDGED
    if any(_first(first) <= at <= _last(last) for first, last in cursor.acknowledged):
        return ACKNOWLEDGED
    return PENDING if any(_first(first) > at for first, _ in cursor.acknowledged) else NOT_YET


def _first(position: Position) -> tuple[int, int, int]:
    return position.ledger, position.entry, position.batch_index


def _last(position: Position) -> tuple[int, int, int]:
    """Return where what a position covers ends; without an index that is its whole batch."""
    index = LAST_OF_BATCH if position.batch_index < 0 else position.batch_index
    return position.ledger, position.entry, index
