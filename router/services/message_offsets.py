"""Offsets as Kafka's clients count messages, turned into positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from router.errors import NotSupportedError
from router.model import Position, TopicName


class OffsetAdministration(Protocol):
    """The calls of administration at the node's broker."""

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call."""
        ...


@dataclass(frozen=True, slots=True)
class MessageOffsets:
    """Answers where an offset is; `administration` None: messages do not live at the node.

    `kafka`: they live at Apache Kafka, whose offsets are the entries of positions.
    """

    administration: OffsetAdministration | None
    kafka: bool

    def position(self, topic: TopicName, partition: int, offset: int) -> Position:
        """Return the position of the message of an offset, within what the partition has.

        Raises NotSupportedError, TopicNotFoundError, and what the broker raises.
        """
        if self.kafka:
            return Position(0, offset, partition)
        if self.administration is None:
            raise NotSupportedError("offsets are known of the node's own log and of Kafka only")
        found = self.administration.call(
            "entry_at", topic=str(topic), partition=partition, number=offset
        )
        ledger, entry, index = found
        return Position(ledger, entry, partition, index)
