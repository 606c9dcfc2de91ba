"""Sends plain NATS subscriptions what clients of other dialects publish to the topics of streams.

Theory of operation. What a NATS client publishes reaches subscribers in memory, at once. What other
dialects append is found in the log: while there is a subscription that may match a subject of a
stream, its ledger is followed from the entry on that is the next then. Entries of NATS clients are
passed over, all others are sent in their order when they are on disk. A ledger without such a
subscription has no listener, and a broker without NATS clients does nothing here.

A subscription to a literal subject concerns the stream that has it and the topic of that name, so
it is looked up. One with wildcards is compared with every topic, the first MAX_TOPICS_AT_ONCE of
them before the client's next operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import structlog

from router.broker.consume.visible import Visible
from router.broker.nats.protocol.hub import Hub
from router.broker.nats.protocol.pacing import Tasks
from router.broker.nats.streams.log.messages import MessageReader
from router.broker.nats.streams.streams import Streams
from router.broker.storage import NATS_FORMAT, DamagedError, Entry, Ledger, TopicRecord
from router.broker.topics.topics import Topics
from router.errors import RouterError
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import is_literal, overlaps

MAX_TOPICS_AT_ONCE: Final = 500
CHUNK_ENTRIES: Final = 64
CHUNK_BYTES: Final = 256 << 10
MAX_CHUNKS_AT_ONCE: Final = 4
_INBOX: Final = "_INBOX."

_log = structlog.get_logger(__name__)


class OtherDialects:
    """Which ledgers are followed, and for which subscriptions."""

    def __init__(self, hub: Hub, streams: Streams, topics: Topics) -> None:
        self.hub = hub
        self.streams = streams
        self.topics = topics
        self._patterns: dict[str, int] = {}
        self._wildcards: set[str] = set()
        self.followers: dict[int, _Follower] = {}
        self._by_pattern: dict[str, set[_Follower]] = {}
        self._by_topic: dict[str, set[int]] = {}
        self._changed_topics: set[str] = set()
        self._tasks = Tasks()
        hub.pattern_observer = self._pattern_changed
        streams.records.observer = self._topic_changed
        topics.observers.add(self._topics_changed)

    def close(self) -> None:
        """Follow nothing more."""
        self.hub.pattern_observer = self.streams.records.observer = None
        self.topics.observers.discard(self._topics_changed)
        self._tasks.cancel()
        for follower in self.followers.values():
            follower.close()
        self.followers.clear()

    # What has changed.

    def _pattern_changed(self, pattern: str, added: bool) -> None:
        if pattern.startswith(_INBOX):
            return
        count = self._patterns.get(pattern, 0) + (1 if added else -1)
        if count > 1 or (not added and count):
            self._patterns[pattern] = count
        elif added:
            self._patterns[pattern] = count
            self._begin(pattern)
        else:
            del self._patterns[pattern]
            self._wildcards.discard(pattern)
            for follower in self._by_pattern.pop(pattern, ()):
                follower.patterns.discard(pattern)
                if not follower.patterns:
                    self._drop(follower)

    def _topics_changed(self, name: str, _created: Sequence[str], _deleted: Sequence[str]) -> None:
        self._topic_changed(name)

    def _topic_changed(self, name: str) -> None:
        """Review a topic when the change is complete, and before anything is published to it."""
        if not self._patterns:
            return
        if not self._changed_topics:
            asyncio.get_running_loop().call_soon(self._review_changed)
        self._changed_topics.add(name)

    def _review_changed(self) -> None:
        names, self._changed_topics = self._changed_topics, set()
        for name in names:
            topic = self.topics.find(name)
            kept = set() if topic is None else self._review(topic)
            for ledger_id in self._by_topic.get(name, set()) - kept:
                self._drop(self.followers[ledger_id])

    # Which ledgers are followed.

    def _begin(self, pattern: str) -> None:
        """Follow the ledgers that a new pattern is about."""
        if is_literal(pattern):
            self._examine(pattern, self._topics_of(pattern))
            return
        self._wildcards.add(pattern)
        records = self.topics.records()
        self._examine(pattern, records[:MAX_TOPICS_AT_ONCE])
        if len(records) > MAX_TOPICS_AT_ONCE:
            rest = records[MAX_TOPICS_AT_ONCE:]
            self._tasks.start(self._examine_slowly(pattern, rest))

    async def _examine_slowly(self, pattern: str, records: Sequence[TopicRecord]) -> None:
        for start in range(0, len(records), MAX_TOPICS_AT_ONCE):
            await asyncio.sleep(0)
            if pattern not in self._patterns:
                return
            found = (self.topics.find(one.name) for one in records[start:][:MAX_TOPICS_AT_ONCE])
            self._examine(pattern, [topic for topic in found if topic is not None])

    def _examine(self, pattern: str, topics: Iterable[TopicRecord]) -> None:
        for topic in topics:
            for index, subjects in self._parts(topic):
                if any(overlaps(pattern, subject) for subject in subjects):
                    self._add(self._follow(topic, index), pattern)

    def _topics_of(self, subject: str) -> Iterator[TopicRecord]:
        """Yield the topics whose messages may have a literal subject."""
        taken = self.streams.records.taking(subject)
        if taken is not None and (topic := self.topics.find(taken[0])) is not None:
            yield topic
        topics = self.streams.stream_topics
        for found in (topics.locate_kafka(subject), topics.locate(subject)):
            if found is not None:
                yield found[0]

    def _review(self, topic: TopicRecord) -> set[int]:
        """Follow the ledgers of a topic for the patterns that concern them; return which."""
        kept = set()
        for index, subjects in self._parts(topic):
            patterns = self._patterns_about(subjects)
            if patterns:
                follower = self._follow(topic, index)
                for pattern in follower.patterns - patterns:
                    self._by_pattern[pattern].discard(follower)
                follower.patterns &= patterns
                for pattern in patterns:
                    self._add(follower, pattern)
                kept.add(follower.ledger.id)
        return kept

    def _patterns_about(self, subjects: Sequence[str]) -> set[str]:
        if all(map(is_literal, subjects)):
            found = self._patterns.keys() & set(subjects)
            candidates: Iterable[str] = self._wildcards
        else:
            found, candidates = set(), self._patterns
        return found | {one for one in candidates if any(overlaps(one, s) for s in subjects)}

    def _parts(self, topic: TopicRecord) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield the partitions of a topic, and the subjects that their messages may have."""
        record = self.streams.records.get(topic.name)
        for _, index, own in self.streams.stream_topics.parts(topic):
            yield index, (own,) if record is None else record.config.subjects

    def _follow(self, topic: TopicRecord, index: int) -> _Follower:
        ledger_id = topic.ledger_ids[max(0, index)]
        follower = self.followers.get(ledger_id)
        if follower is None:
            ledger = self.topics.store.ledger(ledger_id)
            follower = _Follower(self, ledger, topic.name)
            self.followers[ledger_id] = follower
            self._by_topic.setdefault(topic.name, set()).add(ledger_id)
        follower.index = index
        return follower

    def _add(self, follower: _Follower, pattern: str) -> None:
        follower.patterns.add(pattern)
        self._by_pattern.setdefault(pattern, set()).add(follower)

    def _drop(self, follower: _Follower) -> None:
        follower.close()
        for pattern in follower.patterns:
            self._by_pattern[pattern].discard(follower)
        del self.followers[follower.ledger.id]
        ledgers = self._by_topic[follower.topic]
        ledgers.discard(follower.ledger.id)
        if not ledgers:
            del self._by_topic[follower.topic]


class _Follower:
    """Sends what is appended to a ledger from now on; `patterns` are the reason."""

    __slots__ = ("_dialects", "_next", "_task", "_visible", "index", "ledger", "patterns", "topic")

    def __init__(self, dialects: OtherDialects, ledger: Ledger, topic: str) -> None:
        self.ledger = ledger
        self.topic = topic
        self.index = 0
        self.patterns: set[str] = set()
        self._dialects = dialects
        self._visible = Visible(ledger)
        self._next = self._visible.end_entry
        self._task: asyncio.Task[None] | None = None
        ledger.listeners[self._stored] = None

    def close(self) -> None:
        """Send nothing more."""
        self.ledger.listeners.pop(self._stored, None)
        if self._task is not None:
            self._task.cancel()

    def _stored(self) -> None:
        """Send what is in memory and quick to read; the rest in a task."""
        if self._task is not None:
            return
        visible = self._visible
        for _ in range(MAX_CHUNKS_AT_ONCE):
            entries = visible.read_cached(self._next, CHUNK_ENTRIES, CHUNK_BYTES)
            if not entries or not self._send(entries, at_once=True):
                break
        if self._next < visible.end_entry:
            self._task = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        visible = self._visible
        try:
            while self._next < visible.end_entry and not self.ledger.discarded:
                try:
                    entries = await visible.read(self._next, CHUNK_ENTRIES, CHUNK_BYTES)
                except DamagedError as damage:
                    self._next = damage.last + 1
                    continue
                if not entries:
                    self._next = visible.end_entry
                    return
                await self._prepare(entries)
                self._send(entries)
                await asyncio.sleep(0)
        except OSError as failure:
            _log.error("nats-subscribers-not-sent", topic=self.topic, reason=str(failure))
            self._next = visible.end_entry
        finally:
            self._task = None

    async def _prepare(self, entries: Sequence[Entry]) -> None:
        reader = self._reader()
        if reader is not None:
            await reader.prepared([one for one in entries if one.format != NATS_FORMAT])

    def _send(self, entries: Sequence[Entry], *, at_once: bool = False) -> bool:
        """Send the messages of entries; `at_once`: only if that is quick, False if it is not."""
        others = [entry for entry in entries if entry.format != NATS_FORMAT]
        reader = self._reader() if others else None
        if reader is not None:
            if at_once and not all(map(reader.is_quick, others)):
                return False
            for entry in others:
                left = self._visible.messages(entry)
                for message in reader.messages(entry):
                    if left is not None and not left >> message.index & 1:
                        continue
                    shown = NatsMessage(message.subject, "", message.headers, message.payload)
                    self._dialects.hub.publish(shown)
        self._next = entries[-1].entry_id + 1
        return True

    def _reader(self) -> MessageReader | None:
        """Return what reads the stream's messages; None: its topic is changing, or deleted."""
        topic = self._dialects.topics.find(self.topic)
        if topic is None or self.ledger.discarded:
            return None
        try:
            return self._dialects.streams.of_partition(topic, self.index).log.reader
        except (JetStreamError, RouterError):
            return None
