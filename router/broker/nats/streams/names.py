"""Which stream a topic's partition is: names, subjects, and the configuration of a plain topic.

A stream has the name under which Kafka clients know the topic, with `.` written `%2E` and `%`
written `%25`. A partition of a topic with several partitions is a stream of its own, under its own
name (`orders-partition-0`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from router.broker.storage import TopicRecord
from router.broker.topics.topics import Topics
from router.model import NOT_PARTITIONED, TopicName
from router.model.policies import Policies
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.subjects import ANY, REST, is_literal, matches

NS_PER_MS: Final = 1_000_000
NO_LIMIT: Final = -1
_NOT_IN_NAMES: Final = frozenset(" \t\r\n\f.*>\\/%")
_DUPLICATE_WINDOW_NS: Final = 120_000_000_000


def stream_name(kafka_name: str) -> str:
    """Return the name of the stream of a topic that Kafka knows by a name."""
    return "".join(f"%{ord(one):02X}" if one in _NOT_IN_NAMES else one for one in kafka_name)


def kafka_name(name: str) -> str | None:
    """Return the Kafka name of a stream's topic; None: no topic has such a stream."""
    parts = name.split("%")
    found = [parts[0]]
    for part in parts[1:]:
        try:
            found.append(chr(int(part[:2], 16)) + part[2:])
        except ValueError:
            return None
    decoded = "".join(found)
    return decoded if stream_name(decoded) == name else None


def own_subject(name: str) -> str:
    """Return the one subject of a topic that no client made a stream, by its Kafka name."""
    return name if is_literal(name) else stream_name(name)


def default_subject(known: str, subjects: Sequence[str]) -> str:
    """Return the subject of messages that name none, which a stream of these subjects takes.

    It is the own subject of the topic that Kafka knows by this name, if the stream takes that. Else
    it is the first of the stream's subjects, with the stream's name in place of each wildcard.
    """
    own = own_subject(known)
    if any(matches(one, own) for one in subjects):
        return own
    name = stream_name(known)
    return ".".join(name if token in {ANY, REST} else token for token in subjects[0].split("."))


def plain_config(name: str, subject: str, policies: Policies) -> StreamConfig:
    """Return the configuration of a topic that no client made a stream."""
    age_ms, size = policies.retention_ms, policies.retention_bytes
    return StreamConfig(
        name=name,
        subjects=(subject,),
        max_consumers=NO_LIMIT,
        max_msgs=NO_LIMIT,
        max_bytes=NO_LIMIT if size is None or size < 0 else size,
        max_age=0 if age_ms is None or age_ms < 0 else age_ms * NS_PER_MS,
        max_msgs_per_subject=NO_LIMIT,
        max_msg_size=NO_LIMIT,
        num_replicas=1,
        duplicate_window=_DUPLICATE_WINDOW_NS,
        allow_direct=True,
    )


class StreamTopics:
    """Which streams the topics of a broker have, and which topic a stream is."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def parts(self, topic: TopicRecord) -> Iterator[tuple[str, int, str]]:
        """Yield the streams of a topic: name, partition and own subject."""
        name = TopicName.parse(topic.name)
        known = self._topics.kafka_names.of(name)
        if topic.partitions <= 1:
            index = 0 if topic.partitions else NOT_PARTITIONED
            yield stream_name(known), index, own_subject(known)
            return
        for index in range(topic.partitions):
            part = self._topics.kafka_names.of(name.partition(index))
            yield stream_name(part), index, own_subject(part)

    def locate(self, name: str) -> tuple[TopicRecord, int] | None:
        """Return the topic of a stream, and which of its partitions it is."""
        known = kafka_name(name)
        return None if known is None else self.locate_kafka(known)

    def topic_name(self, name: str) -> TopicName | None:
        """Return the topic of a stream, None: there is no such stream."""
        found = self.locate(name)
        return None if found is None else TopicName.parse(found[0].name)

    def locate_kafka(self, kafka_name: str) -> tuple[TopicRecord, int] | None:
        """Return the topic, and which of its partitions Kafka clients know by a name."""
        topic = self._topics.find_kafka(kafka_name)
        if topic is not None:
            if topic.partitions > 1:
                return None
            return topic, 0 if topic.partitions else NOT_PARTITIONED
        base, infix, number = kafka_name.rpartition("-partition-")
        if not infix or not number.isdigit() or str(int(number)) != number:
            return None
        topic = self._topics.find_kafka(base)
        if topic is None or not 1 < topic.partitions > int(number):
            return None
        return topic, int(number)
