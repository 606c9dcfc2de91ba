"""Where a dead letter was and why it is one, as its properties say; and the message that it was."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from router.errors import BadNameError
from router.model import UNDECODED, Message, TopicName
from router.services.consume.oversized import ORIGIN_GROUP, ORIGIN_POSITION, ORIGIN_TOPIC

PIPELINE_ERROR: Final = "router-error"
PIPELINE_TOPIC: Final = "router-topic"
PIPELINE_PARTITION: Final = "router-partition"
PIPELINE_POSITION: Final = "router-position"
CLIENT_TOPIC: Final = "REAL_TOPIC"
CLIENT_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
CLIENT_ID: Final = "ORIGIN_MESSAGE_ID"
_NOTES: Final = frozenset(
    {
        ORIGIN_GROUP,
        ORIGIN_POSITION,
        ORIGIN_TOPIC,
        PIPELINE_ERROR,
        PIPELINE_TOPIC,
        PIPELINE_PARTITION,
        PIPELINE_POSITION,
        CLIENT_TOPIC,
        CLIENT_SUBSCRIPTION,
        CLIENT_ID,
        "ORIGIN_MESSAGE_IDY_TIME",
        "RECONSUMETIMES",
    }
)
_PARTITION: Final = re.compile(r"(.+)-partition-([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dead letter was: its properties' words; `topic` is None where they name none."""

    topic: TopicName | None
    partition: str = ""
    position: str = ""
    reason: str = ""


def origin(message: Message, dead: TopicName) -> Origin:
    """Return what the properties say of a letter in the topic `dead`."""
    notes = message.properties
    if (named := notes.get(ORIGIN_TOPIC)) is not None:
        group = notes.get(ORIGIN_GROUP, "")
        reason = f"Larger than any answer, in group {group}"
        return Origin(_topic(named, dead), "", notes.get(ORIGIN_POSITION, ""), reason)
    if (named := notes.get(PIPELINE_TOPIC)) is not None:
        return Origin(
            _topic(named, dead),
            notes.get(PIPELINE_PARTITION, ""),
            notes.get(PIPELINE_POSITION, ""),
            notes.get(PIPELINE_ERROR, ""),
        )
    if (named := notes.get(CLIENT_TOPIC)) is not None:
        subscription = notes.get(CLIENT_SUBSCRIPTION, "")
        reason = f"Given back too often by subscription {subscription}" if subscription else ""
        topic, partition = _whole(_topic(named, dead))
        return Origin(topic, partition, notes.get(CLIENT_ID, ""), reason)
    return Origin(None, reason=notes.get(PIPELINE_ERROR, ""))


def as_it_was(message: Message) -> Message:
    """Return the message without the properties that made it a dead letter."""
    kept = {key: value for key, value in message.properties.items() if key not in _NOTES}
    return Message(
        message.value, message.key, kept, event_time=message.event_time, null=message.null
    )


def is_undecoded(message: Message) -> bool:
    """Return whether the value is not what was sent, but its stored form."""
    return UNDECODED in message.properties


def _topic(name: str, dead: TopicName) -> TopicName | None:
    try:
        return TopicName.parse(name, dead.tenant, dead.namespace)
    except BadNameError:
        return None


def _whole(topic: TopicName | None) -> tuple[TopicName | None, str]:
    """Return the topic that a partition's name is of, and the partition; Pulsar's clients name it.

    A topic that is not partitioned and has such a name is taken for a partition, too.
    """
    found = _PARTITION.fullmatch(topic.local) if topic is not None else None
    if topic is None or found is None:
        return topic, ""
    return TopicName(topic.tenant, topic.namespace, found[1], topic.domain), found[2]
