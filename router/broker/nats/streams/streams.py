"""All streams of a broker: which topic is which stream, which stream has a subject, and changes.

Theory of operation. Every partition of a topic is a stream. What clients configured is a record of
the registry (kind `nats-stream`), which names the topic that it was made for, so that a later topic
of the same name does not inherit it. A stream object is made when a stream is first used, and
opened when its content is. Those that clients configured are opened behind the start, one after
the other, for their age limits and for consumers that push.

A subject leads to the configured stream that takes it, else to the topic of that name. A stream
cannot be made with subjects that another stream takes, nor with the name of another topic. A topic
that is made later under the name of such a subject is left to the clients of its dialect: the
subject still leads to the stream, and the topic can be read as a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

import structlog

from router.access.authorizer import TOPIC_RECORDS, TopicRights
from router.access.permissions import Right
from router.broker.nats.protocol.authorization import NatsCaller, check_stream_subjects
from router.broker.nats.protocol.pacing import Tasks, tolerating
from router.broker.nats.streams.log.messages import NS_PER_MS
from router.broker.nats.streams.names import (
    StreamTopics,
    default_subject,
    kafka_name,
    own_subject,
    plain_config,
    stream_name,
)
from router.broker.nats.streams.publishing import PublishContext, StreamPublisher
from router.broker.nats.streams.records import StreamRecords
from router.broker.nats.streams.stream import ConsumersPart, Stream, StreamContext, StreamRecord
from router.broker.storage import TopicRecord
from router.broker.topics.topics import Topics
from router.errors import ConflictError, RouterError
from router.metrics import Sample
from router.model import NO_PROPERTIES, NOT_PARTITIONED, TopicName
from router.model.policies import Policies
from router.model.publish_source import NO_SOURCE
from router.sharing.registry import NEW, AsyncRegistry
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.stream_rules import checked_stream_update
from router.wire.nats.subjects import is_literal, matches, overlaps

MAX_ROUTES: Final = 50_000
"""Subjects of which it is cached where they lead."""
INBOX: Final = "_INBOX."
SERVICES: Final = ("$JS.API.", "$JS.ACK.", "$JS.FC.", "$JS.SNAPSHOT.", "$SYS.REQ.")
"""What no stream may take."""
MAINTENANCE_INTERVAL_SECONDS: Final = 15.0
TURNS_PER_SAVE: Final = 20
"""Of maintenance, between checkpoints of indexes."""
NO_BOUND: Final = Policies(retention_ms=-1, retention_bytes=-1)

_log = structlog.get_logger(__name__)


class Streams:
    """The streams of a broker; call `load` before anything else."""

    def __init__(
        self,
        topics: Topics,
        registry: AsyncRegistry,
        context: StreamContext,
        publishing: PublishContext,
        forget_leases: Callable[[str], object] = lambda _name: None,
    ) -> None:
        self.topics = topics
        self.consumers: ConsumersPart | None = None
        self._registry = registry
        self._context = context
        self._publishing = publishing
        self._forget_leases = forget_leases
        self.records = StreamRecords(topics, registry)
        self.stream_topics = StreamTopics(topics)
        self._streams: dict[str, Stream] = {}
        self._routes: dict[str, Stream | None] = {}
        self._named: dict[str, Stream] = {}
        self._changing = asyncio.Lock()
        self._tasks = Tasks()
        topics.observers.add(self._topic_changed)

    async def load(self) -> None:
        """Read what clients configured, and begin to open those streams."""
        await self.records.load()
        self._forget_routes()
        if topics := self.records.topics():
            self._tasks.start(self._open_configured(topics))
        self._tasks.start(self._maintain())

    async def close(self, *, save: bool = True) -> None:
        """Close all streams; `save`: their indexes are written down for the next start."""
        self.topics.observers.discard(self._topic_changed)
        self._tasks.cancel()
        self._publishing.tasks.cancel()
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            await self._close(stream, save=save)

    async def collect(self) -> list[Sample]:
        """Return the figures of the streams in use; none if there are none."""
        streams = self._streams.values()
        if not streams:
            return []
        pending = sum(one.num_pending for stream in streams for one in stream.consumers.values())
        named = {"router_nats_streams": len(streams), "router_nats_pending_messages": pending}
        return [(name, (), float(value)) for name, value in named.items()]

    # Finding.

    def names(self) -> list[str]:
        """Return the names of all streams, in order."""
        parts = self.stream_topics.parts
        return sorted(name for record in self.topics.records() for name, _, _ in parts(record))

    def find(self, name: str) -> Stream:
        """Return a stream, which may not be open; raise JetStreamError 10059."""
        stream = self._named.get(name)
        if stream is None or stream.closed:
            found = self.stream_topics.locate(name)
            if found is None:
                raise error(ErrorCode.STREAM_NOT_FOUND)
            stream = self._named[name] = self.of_partition(*found)
        return stream

    def get(self, name: str) -> Stream | None:
        """Return a stream, which may not be open; None: there is none."""
        if (stream := self._named.get(name)) is not None and not stream.closed:
            return stream
        try:
            return self.find(name)
        except (JetStreamError, RouterError):
            return None

    async def open(self, name: str) -> Stream:
        """Return an open stream; raise JetStreamError 10059, OSError, StoreError."""
        stream = self.find(name)
        await self._open(stream)
        return stream

    def for_subject(self, subject: str) -> Stream | None:
        """Return the stream that stores what is published to a literal subject."""
        if subject.startswith(SERVICES):
            return None
        if subject in self._routes:
            return self._routes[subject]
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        stream = self._route(subject)
        if not subject.startswith(INBOX):  # hardly one comes again
            self._routes[subject] = stream
        return stream

    def topic_of(self, subject: str) -> TopicName | None:
        """Return the topic whose rights a subject needs, None: no topic can have that name."""
        stream = self.for_subject(subject)
        if stream is not None:
            return stream.topic_name
        full = self.topics.kafka_names.full(subject)
        return TopicName.parse(full) if full else self.topics.parse(subject)

    def overlapping(self, subjects: Sequence[str], name: str = "") -> list[str]:
        """Return the streams, other than one, that take any of these subjects."""
        found = self.records.overlapping(subjects)
        for topic in self.topics.records():
            for other, _, subject in self.stream_topics.parts(topic):
                plain = self.records.get(topic.name) is None
                if plain and any(matches(one, subject) for one in subjects):
                    found.add(other)
        return sorted(found - {name})

    def having_subject(self, pattern: str) -> list[str]:
        """Return the streams whose subjects overlap with one."""
        found = []
        for topic in self.topics.records():
            record = self.records.get(topic.name)
            for name, _, subject in self.stream_topics.parts(topic):
                subjects = (subject,) if record is None else record.config.subjects
                if any(overlaps(pattern, one) for one in subjects):
                    found.append(name)
        return sorted(found)

    def publisher(
        self, hold: Callable[[], None], release: Callable[[], None], source: bytes = NO_SOURCE
    ) -> StreamPublisher:
        """Return what stores the messages of a client; see StreamPublisher."""
        return StreamPublisher(self._publishing, hold, release, source)

    # Changes; each is complete on disk on return.

    async def create(self, config: StreamConfig, caller: NatsCaller) -> Stream:
        """Return the stream of a checked configuration, made if there is none like it.

        Raises JetStreamError 10058 if it has another configuration, 10065; RouterError, StoreError.
        """
        check_stream_subjects(caller, config.subjects)
        async with self._changing:
            located = self.stream_topics.locate(config.name)
            if located is None:
                caller.authorize(self._new_topic(config.name), Right.CREATE)
                self._check_overlap(config)
                topic = await self._create_topic(config, caller)
                return await self._configure(topic, config, created_ns=0)
            topic, index = located
            name = TopicName.parse(topic.name)
            present = self.records.get(topic.name)
            if present is not None and present.config == config:
                caller.authorize(name, Right.VIEW)
                stream = self.of_partition(topic, index)
                await self._open(stream)
                return stream
            caller.authorize(name, Right.MANAGE)
            if present is not None or topic.partitions > 1:
                raise error(ErrorCode.STREAM_NAME_EXIST)
            if config.first_seq > 1:
                raise error(
                    ErrorCode.STREAM_INVALID_CONFIG, err="first_seq: the topic is there already"
                )
            self._check_overlap(config)
            return await self._configure(topic, config, created_ns=0)

    async def update(self, config: StreamConfig, caller: NatsCaller, *, pedantic: bool) -> Stream:
        """Change a stream. Raises JetStreamError 10059, 10052, 10065, RouterError, StoreError."""
        async with self._changing:
            stream = self.find(config.name)
            caller.authorize(stream.topic_name, Right.MANAGE)
            if stream.topic.partitions > 1:
                raise error(ErrorCode.STREAM_INVALID_CONFIG, err="the topic has several partitions")
            new = checked_stream_update(stream.config, config, pedantic=pedantic)
            check_stream_subjects(caller, set(new.subjects) - set(stream.config.subjects))
            self._check_overlap(new)
            await self._open(stream)
            async with stream.limits.suspended():
                return await self._configure(stream.topic, new, stream.created_ns)

    def check_restored(self, config: StreamConfig, caller: NatsCaller) -> None:
        """Check that a stream can be restored; raise JetStreamError 10130, 10065, RouterError."""
        check_stream_subjects(caller, config.subjects)
        if self.stream_topics.locate(config.name) is not None:
            raise error(ErrorCode.STREAM_NAME_EXIST_RESTORE)
        caller.authorize(self._new_topic(config.name), Right.CREATE)
        self._check_overlap(config)

    async def finish(self, topic: TopicRecord, config: StreamConfig, caller: NatsCaller) -> Stream:
        """Show a stream that was restored into a topic which was begun at the store.

        Raises as `check_restored` does, and StoreError.
        """
        async with self._changing:
            self.check_restored(config, caller)
            name = self._new_topic(config.name)
            finished = replace(topic, name=str(name))
            # Before the topic is there: a kill never leaves it without its configuration.
            await self.records.write(finished, self._record(finished, config, 0))
            try:
                topic = await self._owned(name, caller, lambda: self.topics.finish(topic, name))
            except RouterError:
                await self.records.erase(str(name))
                raise
            return await self._configure(topic, config, created_ns=0)

    async def delete(self, name: str, caller: NatsCaller) -> None:
        """Delete a stream with its topic. Raises JetStreamError 10059, 10050, RouterError."""
        async with self._changing:
            stream = self.find(name)
            topic = stream.topic_name
            caller.authorize(topic, Right.DELETE)
            if stream.topic.partitions > 1:
                raise error(
                    ErrorCode.STREAM_DELETE, err="a partition is deleted with its whole topic"
                )
            full = str(topic)
            await self.topics.delete(topic)
            self._forget_leases(full)
            self.records.drop(full)
            await self.records.erase(full)
            await self._registry.delete(TOPIC_RECORDS, full)
            _log.info("nats-stream-deleted", stream=name, user=caller.name)

    # How it is done.

    def _route(self, subject: str) -> Stream | None:
        taken = self.records.taking(subject)
        if taken is not None:
            return self._stream(*taken)
        found = self.stream_topics.locate_kafka(subject)
        if found is None or self.records.get(found[0].name) or not is_literal(subject):
            return None
        return self.of_partition(*found)

    def of_partition(self, topic: TopicRecord, index: int) -> Stream:
        """Return the stream of a partition, which may not be open; raise JetStreamError 10059."""
        record = self.records.get(topic.name)
        if record is not None:
            return self._stream(topic.name, record)
        full = str(TopicName.parse(topic.name).partition(index))
        stream = self._streams.get(full)
        if stream is None:
            known = self.topics.kafka_names.of(TopicName.parse(full))
            if index == 0 and topic.partitions == 1:
                known = self.topics.kafka_names.of(TopicName.parse(topic.name))
            name, subject = stream_name(known), own_subject(known)
            config = plain_config(name, subject, self.topics.policies(topic))
            record = StreamRecord(name, config, topic.created_ms * NS_PER_MS, False, subject)
            stream = self._make(full, record)
        return stream

    def _stream(self, topic: str, record: StreamRecord) -> Stream:
        """Return the stream of a configured topic."""
        found = self.topics.known(TopicName.parse(topic))
        full = str(TopicName.parse(topic).partition(0 if found.partitions else NOT_PARTITIONED))
        return self._streams.get(full) or self._make(full, record)

    def _make(self, full: str, record: StreamRecord) -> Stream:
        partition = self.topics.opened(full)
        if partition is None:
            raise error(ErrorCode.STREAM_NOT_FOUND)
        stream = self._streams[full] = Stream(self._context, record, partition)
        stream.loader = self._load_consumers
        return stream

    async def _load_consumers(self, stream: Stream) -> None:
        if self.consumers is not None:
            await self.consumers.load(stream)

    async def _open(self, stream: Stream) -> None:
        await stream.open()
        if stream.closed:
            raise error(ErrorCode.STREAM_NOT_FOUND)

    async def _open_configured(self, topics: Sequence[str]) -> None:
        for topic in topics:
            with tolerating("nats-stream-not-open", topic=topic):
                if (record := self.records.get(topic)) is not None:
                    await self._stream(topic, record).open()

    async def _maintain(self) -> None:
        for turn in count(1):
            await asyncio.sleep(MAINTENANCE_INTERVAL_SECONDS)
            for stream in list(self._streams.values()):
                with tolerating("nats-stream-not-maintained", stream=stream.name):
                    if stream.opened:
                        await stream.interest.maintain()
                    elif stream.record.configured:
                        await stream.open()  # it could not be read before
                    if turn % TURNS_PER_SAVE == 0:
                        await stream.save()

    def _check_overlap(self, config: StreamConfig) -> None:
        if self.overlapping(config.subjects, config.name):
            raise error(ErrorCode.STREAM_SUBJECT_OVERLAP)

    def _new_topic(self, name: str) -> TopicName:
        known = kafka_name(name)
        if known is None:
            raise error(ErrorCode.STREAM_INVALID_CONFIG, err="a % in a name is written %25")
        return self.topics.parse(known)

    async def _create_topic(self, config: StreamConfig, caller: NatsCaller) -> TopicRecord:
        """Create the topic of a stream with its owner."""
        topic, first_number = self._new_topic(config.name), max(0, config.first_seq - 1)
        make = partial(self.topics.create, topic, 0, NO_BOUND, NO_PROPERTIES, first_number)
        return await self._owned(topic, caller, make)

    async def _owned(
        self, topic: TopicName, caller: NatsCaller, make: Callable[[], Awaitable[TopicRecord]]
    ) -> TopicRecord:
        """Make a topic whose owner is on record before it is there."""
        present = await self._registry.get(TOPIC_RECORDS, str(topic))
        if caller.name:
            version = NEW if present is None else present.version
            rights = TopicRights(caller.name).dump()
            try:
                await self._registry.put(TOPIC_RECORDS, str(topic), rights, version)
            except ConflictError:
                raise error(ErrorCode.STREAM_NAME_EXIST) from None
        elif present is not None:
            await self._registry.delete(TOPIC_RECORDS, str(topic))
        try:
            return await make()
        except RouterError:
            if caller.name and self.topics.find(str(topic)) is None:
                await self._registry.delete(TOPIC_RECORDS, str(topic))
            raise

    async def _configure(self, topic: TopicRecord, config: StreamConfig, created_ns: int) -> Stream:
        """Store a configuration, and have the stream go on with it."""
        record = self._record(topic, config, created_ns)
        await self.records.put(topic, record)
        self._forget_routes()
        stream = self._stream(topic.name, record)
        try:
            if stream.record is not record:
                await stream.configure(record)
            await self._open(stream)
        finally:  # it is in force, whatever could not be read
            if self.consumers is not None:
                await self.consumers.configured(stream)
        _log.info("nats-stream-configured", stream=config.name)
        return stream

    def _record(self, topic: TopicRecord, config: StreamConfig, created_ns: int) -> StreamRecord:
        """Return what makes a topic a stream, from now on if it was none."""
        made_ns = created_ns or self._context.now_ms() * NS_PER_MS
        known = self.topics.kafka_names.of(TopicName.parse(topic.name))
        subject = default_subject(known, config.subjects)
        return StreamRecord(config.name, config, made_ns, True, subject)

    def _topic_changed(self, name: str, _created: Sequence[str], deleted: Sequence[str]) -> None:
        self._forget_routes()
        topic = self.topics.find(name)
        if topic is not None and topic.partitions > 1 and not deleted:
            # It has grown: its first partition has another name as a stream.
            deleted = (str(TopicName.parse(name).partition(0)),)
        for full in deleted:
            if (stream := self._streams.pop(full, None)) is not None:
                self._tasks.start(self._close_deleted(stream))
        if deleted and self.records.drop(name):
            self._tasks.start(self.records.erase(name))

    async def _close_deleted(self, stream: Stream) -> None:
        await self._close(stream, save=False)
        await stream.erase()

    async def _close(self, stream: Stream, *, save: bool) -> None:
        if self.consumers is not None:
            ended = self.consumers.close(stream)
            if ended is not None:
                await ended
        await stream.close(save=save)

    def _forget_routes(self) -> None:
        """Find streams again: others may have the names and subjects."""
        self._routes.clear()
        self._named.clear()
