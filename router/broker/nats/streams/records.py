"""What clients configured as streams: records of the registry, and their subjects in a trie.

A record (kind `nats-stream`, by the topic's name) names the topic that it was made for, so that a
later topic of the same name does not inherit it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
import structlog

from router.broker.nats.streams.names import default_subject
from router.broker.nats.streams.stream import StreamRecord
from router.broker.storage import TopicRecord
from router.broker.topics.topics import Topics
from router.errors import RouterError
from router.model import TopicName
from router.sharing.registry import ANY, AsyncRegistry
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.subjects import SubjectTrie, overlaps

RECORDS: Final = "nats-stream"

_log = structlog.get_logger(__name__)


class StreamRecords:
    """The configured streams, by the full names of their topics.

    `observer` is called with the topic of a configuration that has come, changed or gone.
    """

    def __init__(self, topics: Topics, registry: AsyncRegistry) -> None:
        self._topics = topics
        self._registry = registry
        self._records: dict[str, StreamRecord] = {}
        self._trie: SubjectTrie[str] = SubjectTrie(max_cached=0)
        self.observer: Callable[[str], None] | None = None

    async def load(self) -> None:
        """Read all records; one of a topic that is gone is passed over."""
        after = ""
        while page := await self._registry.list(RECORDS, after):
            for record in page:
                self._load(record.name, record.value)
            after = page[-1].name

    def topics(self) -> list[str]:
        """Return the topics of all configured streams."""
        return list(self._records)

    def get(self, topic: str) -> StreamRecord | None:
        """Return what makes a topic a stream, None: no client did."""
        return self._records.get(topic)

    def taking(self, subject: str) -> tuple[str, StreamRecord] | None:
        """Return the topic and record of the stream that takes a literal subject."""
        names = self._trie.match(subject)
        return (names[0], self._records[names[0]]) if names else None

    def overlapping(self, subjects: Sequence[str]) -> set[str]:
        """Return the names of the streams that take any of these subjects."""
        return {
            record.name
            for record in self._records.values()
            if any(overlaps(one, other) for one in subjects for other in record.config.subjects)
        }

    async def put(self, topic: TopicRecord, record: StreamRecord) -> None:
        """Store a record durably, and have it hold. Raises RouterError."""
        await self.write(topic, record)
        self._take_in(topic.name, record)

    async def write(self, topic: TopicRecord, record: StreamRecord) -> None:
        """Store a record durably; it holds once the topic is there. Raises RouterError."""
        value = {
            "topic": [topic.id, topic.created_ms],
            "created": record.created_ns,
            "config": record.config.to_json(),
        }
        await self._registry.put(RECORDS, topic.name, orjson.dumps(value), ANY)

    def drop(self, topic: str) -> bool:
        """Forget the record of a topic that is gone; return whether there was one."""
        known = topic in self._records
        self._take_out(topic)
        return known

    async def erase(self, topic: str) -> None:
        """Delete the stored record of a topic that is gone."""
        try:
            await self._registry.delete(RECORDS, topic)
        except RouterError as failure:
            # It names the topic that is gone, so that it is passed over when it is read.
            _log.warning("nats-stream-not-forgotten", topic=topic, reason=str(failure))

    def _load(self, full: str, value: bytes) -> None:
        topic = self._topics.find(full)
        stored: dict[str, Any] = orjson.loads(value)
        if topic is None or [topic.id, topic.created_ms] != stored["topic"]:
            return
        try:
            config = StreamConfig.from_json(stored["config"])
        except JetStreamError as failure:
            _log.error("nats-stream-not-loaded", topic=full, reason=failure.description)
            return
        known = self._topics.kafka_names.of(TopicName.parse(full))
        subject = default_subject(known, config.subjects)
        self._take_in(full, StreamRecord(config.name, config, stored["created"], True, subject))

    def _take_in(self, full: str, record: StreamRecord) -> None:
        self._take_out(full)
        self._records[full] = record
        for subject in record.config.subjects:
            self._trie.insert(subject, full)
        if self.observer is not None:
            self.observer(full)

    def _take_out(self, full: str) -> None:
        record = self._records.pop(full, None)
        for subject in () if record is None else record.config.subjects:
            self._trie.remove(subject, full)
        if record is not None and self.observer is not None:
            self.observer(full)
