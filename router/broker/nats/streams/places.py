"""Which streams a topic has, and which topic a stream is: names, partitions and own subjects."""

from __future__ import annotations

from collections.abc import Iterator

from router.broker.nats.streams.names import kafka_name, own_subject, stream_name
from router.broker.storage import TopicRecord
from router.broker.topics.topics import Topics
from router.model import NOT_PARTITIONED, TopicName


class StreamPlaces:
    """Where streams are among the topics of a broker."""

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

    def locate_kafka(self, known: str) -> tuple[TopicRecord, int] | None:
        """Return the topic, and which of its partitions Kafka clients know by a name."""
        topic = self._topics.find_kafka(known)
        if topic is not None:
            if topic.partitions > 1:
                return None
            return topic, 0 if topic.partitions else NOT_PARTITIONED
        base, infix, number = known.rpartition("-partition-")
        if not infix or not number.isdigit() or str(int(number)) != number:
            return None
        topic = self._topics.find_kafka(base)
        if topic is None or not 1 < topic.partitions > int(number):
            return None
        return topic, int(number)
