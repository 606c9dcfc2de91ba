"""What was done with stored messages, as the node's broker remembers it since its start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from router.errors import RouterError
from router.model import Position, Stored, TopicName

REQUEUED: Final = "requeued"
DISCARDED: Final = "discarded"
REPLAYED: Final = "replayed"
SENT_AGAIN: Final = "sent again"

PositionRange = tuple[Position, Position]
"""Messages of one partition, from the first to the last, both included."""

_log = structlog.get_logger(__name__)


class EventAdministration(Protocol):
    """The calls of administration at the node's broker."""

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call."""
        ...


@dataclass(frozen=True, slots=True)
class MessageAction:
    """What was done: `topic` is the full name of where it went, or came from if it was requeued.

    `at` in ms since 1970.
    """

    action: str
    topic: str
    user: str
    at: int


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """Events of messages; `administration` None: the store is not the node's broker, none is kept.

    Calls block, and may be made from many threads or greenlets.
    """

    administration: EventAdministration | None = None

    def record(
        self,
        topic: TopicName,
        ranges: Iterable[PositionRange],
        action: str,
        other: TopicName,
        user: str,
        operation: str = "",
    ) -> None:
        """Have the broker remember what was done with messages, positions as the store has them.

        `operation` names what may be done, and recorded, twice, and counts once. A failure is
        logged only, since it is done already.
        """
        if self.administration is None:
            return
        places = defaultdict[tuple[int, int], list[list[int]]](list)
        for first, last in ranges:
            row = [first.entry, first.batch_index, last.entry, last.batch_index]
            places[first.partition, first.ledger].append(row)
        try:
            for (partition, ledger), rows in places.items():
                self.administration.call(
                    "add_message_events",
                    topic=str(topic),
                    partition=partition,
                    ledger=ledger,
                    ranges=rows,
                    action=action,
                    other=str(other),
                    user=user,
                    operation=operation,
                )
        except RouterError as error:
            _log.warning("message-event-lost", action=action, topic=str(topic), reason=str(error))

    def find(self, topic: TopicName, position: Position) -> tuple[list[MessageAction], int] | None:
        """Return what was done with a message, and the time in ms from which on all is known.

        None: nothing is kept here. Raises what the broker answers.
        """
        if self.administration is None:
            return None
        found = self.administration.call(
            "message_events",
            topic=str(topic),
            partition=position.partition,
            ledger=position.ledger,
            entry=position.entry,
            index=position.batch_index,
        )
        return [MessageAction(**one) for one in found["events"]], found["since"]


def ranges_of(read: Sequence[tuple[Stored, bool]]) -> list[PositionRange]:
    """Return the messages that are chosen of those that were read, as ranges without others."""
    found = list[list[Position]]()
    latest: dict[int, list[Position] | None] = {}
    for stored, is_chosen in read:
        place = stored.position
        current = latest.get(place.partition)
        if not is_chosen:
            latest[place.partition] = None
        elif current is not None and current[0].ledger == place.ledger:
            current[1] = place
        else:
            found.append([place, place])
            latest[place.partition] = found[-1]
    return [(first, last) for first, last in found]
