"""Dead letters: where each was and why it is one, the message that it was, and its position."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from router.errors import BadNameError, BadReadOptionError
from router.model import UNDECODED, Message, Position, Stored, TopicName
from router.services.consume.oversized import ORIGIN_GROUP, ORIGIN_POSITION, ORIGIN_TOPIC
from router.services.position_texts import parse_position, write_position
from router.wire import ndjson

PIPELINE_ERROR: Final = "router-error"
PIPELINE_TOPIC: Final = "router-topic"
PIPELINE_PARTITION: Final = "router-partition"
PIPELINE_POSITION: Final = "router-position"
PIPELINE_NAME: Final = "router-pipeline"
PIPELINE_TIME: Final = "router-publish-time"
CLIENT_TOPIC: Final = "REAL_TOPIC"
CLIENT_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
CLIENT_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGINAL_TIME: Final = "Original publish time"
NOTES: Final[Mapping[str, str]] = {
    ORIGIN_TOPIC: "Original topic",
    PIPELINE_TOPIC: "Original topic",
    CLIENT_TOPIC: "Original topic",
    PIPELINE_PARTITION: "Original partition",
    ORIGIN_POSITION: "Original position",
    PIPELINE_POSITION: "Original position",
    CLIENT_ID: "Original position",
    "ORIGIN_MESSAGE_IDY_TIME": "Original position",
    PIPELINE_TIME: ORIGINAL_TIME,
    ORIGIN_GROUP: "Group",
    CLIENT_SUBSCRIPTION: "Subscription",
    PIPELINE_NAME: "Pipeline",
    PIPELINE_ERROR: "Error",
    "RECONSUMETIMES": "Redeliveries",
}
"""The properties that make a message a dead letter, and what they are for people."""

_NUMBER: Final = re.compile("[0-9]{1,18}")
_CLIENT_POSITION: Final = re.compile(
    r"\(?([0-9]{1,18})[:,]([0-9]{1,18})[:,](-1|[0-9]{1,9})(?:[:,](-1|[0-9]{1,9}))?\)?"
)
MAX_MARKS: Final = 1_000
"""Partitions of one place."""
MAX_BATCH: Final = 100
"""Dead letters of one call."""

Marks = Mapping[int, Position]
"""The last message of each partition that was looked at."""


@dataclass(frozen=True, slots=True)
class DeadLetterOrigin:
    """Where a dead letter was: its properties' words; `topic` is None where they name none.

    `at` is the position that the words say, partitions counted from 0; None: they say none. `group`
    or `pipeline` could not process it.
    """

    topic: TopicName | None
    partition: str = ""
    position: str = ""
    reason: str = ""
    at: Position | None = None
    group: str = ""
    pipeline: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter that waits; `obstacle` says why it cannot be requeued, "" if it can."""

    stored: Stored
    origin: DeadLetterOrigin
    obstacle: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the dead letter for programs."""
        came = self.origin
        return {
            "id": write_dead_letter_id(self.stored.position),
            "from": None if came.topic is None else came.topic.local,
            "from_partition": came.partition,
            "from_position": came.position,
            "reason": came.reason,
            "obstacle": self.obstacle,
            "message": ndjson.line(self.stored),
        }


def origin(message: Message, dead: TopicName) -> DeadLetterOrigin:
    """Return what the properties say of a dead letter in the topic `dead`."""
    notes = message.properties
    if (named := notes.get(ORIGIN_TOPIC)) is not None:
        group = notes.get(ORIGIN_GROUP, "")
        reason = f"Larger than any answer, in group {group}"
        position = notes.get(ORIGIN_POSITION, "")
        at = _client_position(position, "")
        return DeadLetterOrigin(_topic(named, dead), "", position, reason, at, group)
    if (named := notes.get(PIPELINE_TOPIC)) is not None:
        partition, position = notes.get(PIPELINE_PARTITION, ""), notes.get(PIPELINE_POSITION, "")
        return DeadLetterOrigin(
            _topic(named, dead),
            partition,
            position,
            notes.get(PIPELINE_ERROR, ""),
            _pipeline_position(position, partition),
            pipeline=notes.get(PIPELINE_NAME, ""),
        )
    if (named := notes.get(CLIENT_TOPIC)) is not None:
        subscription = notes.get(CLIENT_SUBSCRIPTION, "")
        reason = f"Given back too often by subscription {subscription}" if subscription else ""
        topic, partition = _whole(_topic(named, dead))
        position = notes.get(CLIENT_ID, "")
        at = _client_position(position, partition)
        return DeadLetterOrigin(topic, partition, position, reason, at, subscription)
    return DeadLetterOrigin(None, reason=notes.get(PIPELINE_ERROR, ""))


def as_it_was(message: Message) -> Message:
    """Return the message without the properties that made it a dead letter."""
    kept = {key: value for key, value in message.properties.items() if key not in NOTES}
    return Message(
        message.value, message.key, kept, event_time=message.event_time, null=message.null
    )


def is_undecoded(message: Message) -> bool:
    """Return whether the value is not what was sent, but its stored form."""
    return UNDECODED in message.properties


def _pipeline_position(position: str, partition: str) -> Position | None:
    """Return what a pipeline wrote: `ledger:entry`, with `:index` in a batch, or Kafka's offset."""
    parts = [partition, *position.split(":")]
    if len(parts) not in {2, 3, 4} or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    at, *numbers = map(int, parts)
    ledger, entry, index = (*((0,) if len(numbers) == 1 else ()), *numbers, -1)[:3]
    return Position(ledger, entry, at, index)


def _client_position(position: str, partition: str) -> Position | None:
    """Return what a client of Pulsar wrote: `ledger:entry:partition:index`, or so in C++.

    A topic without partitions has -1.
    """
    found = _CLIENT_POSITION.fullmatch(position)
    if found is None:
        return None
    at = int(partition) if partition else max(0, int(found[3]))
    return Position(int(found[1]), int(found[2]), at, int(found[4] or -1))


def _topic(name: str, dead: TopicName) -> TopicName | None:
    try:
        return TopicName.parse(name, dead.tenant, dead.namespace)
    except BadNameError:
        return None


def _whole(topic: TopicName | None) -> tuple[TopicName | None, str]:
    """Return the topic that a partition's name is of, and the partition; Pulsar's clients name it.

    A topic that is not partitioned and has such a name is taken for a partition, too.
    """
    part = topic.parent() if topic is not None else None
    return (topic, "") if part is None else (part[0], str(part[1]))


def write_dead_letter_id(position: Position) -> str:
    """Return a dead letter's position: LEDGER:ENTRY:PARTITION, and the index of one in a batch."""
    return write_position(position, with_index=True)


def read_dead_letter_ids(option: str, text: str, limit: int = MAX_BATCH) -> tuple[Position, ...]:
    """Return positions of dead letters with commas between them, partitions counted from 0.

    Raises BadReadOptionError for other texts, and for more than `limit`.
    """
    parts = text.split(",", limit)
    if len(parts) > limit:
        raise BadReadOptionError(f"{option}: expected at most {limit} positions.")
    found = tuple(place for part in parts if (place := parse_position(part)) is not None)
    if len(found) < len(parts):
        raise BadReadOptionError(f"{option}: expected positions of letters such as 5:17:0.")
    return found


def write_marks(marks: Marks) -> str:
    """Return where a look ended, as a text."""
    return ",".join(write_dead_letter_id(marks[partition]) for partition in sorted(marks))


def read_marks(option: str, text: str) -> dict[int, Position]:
    """Return where a look ended, by partition from 0; raise BadReadOptionError."""
    found = read_dead_letter_ids(option, text, MAX_MARKS) if text else ()
    return {position.partition: position for position in found}
