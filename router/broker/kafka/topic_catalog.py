"""The topics of the broker as consumer groups know them: ids, shapes, the matches of patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final

import re2

from router.broker.kafka.consumer_group_values import TopicShape
from router.broker.kafka.failures import ErrorCode, KafkaError
from router.broker.storage import TopicRecord
from router.broker.topics.topics import Topics
from router.model import TopicName

MAX_PATTERN_CHARACTERS: Final = 1_000
MAX_MEMORY: Final = 1 << 18
"""Of one pattern; it bounds the time to read it to a few milliseconds."""
MAX_CACHED_PATTERNS: Final = 100
"""Patterns whose topics are kept until topics change: members of a group mostly have the same."""
_TOPIC_ID: Final = Struct(">QQ")
_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = MAX_MEMORY


def topic_id(record: TopicRecord) -> bytes:
    """Return the id of a topic, which no other topic has, not even a later one of its name."""
    return _TOPIC_ID.pack(record.created_ms, record.id)


def read_topic_id(value: bytes) -> tuple[int, int]:
    """Return when a topic was created, in milliseconds since 1970, and the number of its record."""
    created_ms, number = _TOPIC_ID.unpack(value)
    return created_ms, number


def pattern_test(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a whole name matches a pattern of RE2's; raise KafkaError."""
    code = ErrorCode.INVALID_REGULAR_EXPRESSION
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise KafkaError(code, f"the pattern has more than {MAX_PATTERN_CHARACTERS} characters")
    compiled = re2.Set.FullMatchSet(_OPTIONS)
    try:
        compiled.Add(pattern)
        compiled.Compile()
    except re2.error as error:
        raise KafkaError(code, "the pattern is not understood") from error
    return lambda name: bool(compiled.Match(name.encode()))


class TopicCatalog:
    """All topics by their Kafka names; `version` counts changes."""

    def __init__(self, topics: Topics) -> None:
        self.version = 0
        self._topics = topics
        self._matches: dict[str, dict[str, TopicRecord]] = {}
        self._named: dict[str, TopicRecord] = {}
        topics.observers.add(self._changed)

    def shape(self, name: str) -> TopicShape | None:
        """Return the topic of a name, None: there is none."""
        record = self._topics.find_kafka(name)
        return None if record is None else TopicShape(topic_id(record), max(1, record.partitions))

    def matching(self, pattern: str) -> Mapping[str, TopicRecord]:
        """Return the topics whose whole names match a pattern of RE2's, by their Kafka names.

        Raises KafkaError for a pattern that is none.
        """
        found = self._matches.get(pattern)
        if found is None:
            found = self._match(pattern)
            if len(self._matches) >= MAX_CACHED_PATTERNS:
                self._matches.clear()
            self._matches[pattern] = found
        return found

    def _match(self, pattern: str) -> dict[str, TopicRecord]:
        matches = pattern_test(pattern)
        if not self._named:
            name_of = self._topics.kafka_names.of
            self._named = {
                name_of(TopicName.parse(one.name)): one for one in self._topics.records()
            }
        return {name: record for name, record in self._named.items() if matches(name)}

    def _changed(self, name: str, created: Sequence[str], deleted: Sequence[str]) -> None:
        self.version += 1
        self._matches.clear()
        self._named = {}
