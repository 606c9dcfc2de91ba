"""Acknowledging for polls: an earlier answer that a poll names, and what is overtaken of it."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from router.broker.consume.polls.reader import PollReader
from router.errors import ConflictError, FencedError
from router.model import Position

_log = structlog.get_logger(__name__)


class NamedAnswer:
    """The ends of an earlier answer, one a partition, that are not acknowledged yet."""

    __slots__ = ("_left",)

    def __init__(self, ends: Iterable[Position]) -> None:
        self._left = {position.partition: position for position in ends}

    def __bool__(self) -> bool:
        return bool(self._left)

    def acknowledge(self, reader: PollReader) -> None:
        """Acknowledge what the answer had of a partition, unless that is overtaken."""
        position = self._left.get(reader.partition)
        if position is not None and acknowledge(reader, position):
            del self._left[reader.partition]

    def check(self) -> None:
        """Raise ConflictError if something is overtaken: its partition was had, or will not be."""
        if self._left:
            raise ConflictError.overtaken(self._left)


def acknowledge(reader: PollReader, position: Position) -> bool:
    """Acknowledge everything up to a message; return False if the group was reset since."""
    try:
        reader.acknowledge(position)
    except FencedError:
        subscription = reader.subscription
        names = {"topic": subscription.topic_name, "group": subscription.name}
        _log.info("acknowledgement came too late", **names)
        return False
    return True
