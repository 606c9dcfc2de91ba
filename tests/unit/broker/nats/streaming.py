"""Streams on a store in a folder, without a listener: a client that publishes, and what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from router.access.permissions import Right
from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS, Transcoder, keep_messages
from router.broker.nats.protocol.authorization import NatsCaller, RequestIdentity
from router.broker.nats.protocol.hub import Hub, Subscriber
from router.broker.nats.streams.log.messages import EntryCache, StoredMessage
from router.broker.nats.streams.log.subject_index import SubjectBudget, stored_size
from router.broker.nats.streams.publishing import PublishContext, StreamPublisher
from router.broker.nats.streams.stream import Stream, StreamContext
from router.broker.nats.streams.streams import Streams
from router.broker.node.registry import FileRegistry
from router.broker.storage import PULSAR_FORMAT, Store, StoreOptions
from router.broker.topics.topics import TopicOptions, Topics
from router.model import Message, Principal, TopicName
from router.wire.nats import headers
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.stream_rules import checked_stream
from router.wire.nats.message import NatsMessage

DEADLINE_SECONDS = 10.0
SMALL = StoreOptions(segment=4_000, journal=8_000, cache=20_000, reserve=0, index_step=500)


class Acknowledged(Subscriber):
    """Keeps what publishes were answered with, by their reply subjects."""

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self._answers = answers

    def deliver(self, message: NatsMessage) -> None:
        found = orjson.loads(message.payload)
        if "error" in found:
            found["error"] = found["error"]["err_code"]
        self._answers[message.subject] = found


class Anyone(NatsCaller):
    """A caller with all rights, but those on `hidden` topics."""

    def __init__(self, *hidden: str) -> None:
        super().__init__(RequestIdentity(Principal(), True, None))
        self.hidden = hidden

    def may(self, topic: TopicName, right: Right) -> bool:
        del right
        return topic.local not in self.hidden

    def authorize(self, topic: TopicName, right: Right) -> None:
        assert self.may(topic, right)


@dataclass
class Clock:
    """Seconds since 1970, which a test sets."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rig:
    """Streams, and a client of theirs; `reading`: it is read from."""

    store: Store
    topics: Topics
    streams: Streams
    clock: Clock
    publisher: StreamPublisher
    answers: dict[str, dict[str, Any]]
    reading: asyncio.Event
    replies: Any = field(default_factory=count)
    sent: set[str] = field(default_factory=set)

    async def create(self, name: str, *subjects: str, **members: Any) -> Stream:
        """Make a stream."""
        config = StreamConfig.from_json({"name": name, "subjects": list(subjects), **members})
        return await self.streams.create(checked_stream(config), Anyone())

    def send(
        self, subject: str, payload: bytes = b"", fields: Mapping[str, str] | None = None
    ) -> str:
        """Publish a message; `flush` stores it. Returns the reply subject."""
        reply = f"_INBOX.{next(self.replies)}"
        block = headers.build((fields or {}).items())
        stream = self.streams.for_subject(subject)
        assert stream is not None
        self.sent.add(reply)
        self.publisher.publish(stream, NatsMessage(subject, reply, block, payload))
        return reply

    async def answer(self, reply: str) -> dict[str, Any]:
        """Return what a publish was answered, its error as the code alone."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while reply not in self.answers:  # noqa: ASYNC110 - a sync is waited for
                await asyncio.sleep(0)
        return self.answers[reply]

    async def publish(
        self, subject: str, payload: bytes = b"", fields: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Publish a message and return the acknowledgement."""
        reply = self.send(subject, payload, fields)
        self.publisher.flush()
        return await self.answer(reply)

    async def answered(self) -> None:
        """Return when all that was sent is answered, also what had to wait for the index."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not self.sent <= self.answers.keys():  # noqa: ASYNC110 - a sync is waited for
                await asyncio.sleep(0)
        self.sent.clear()

    async def append_foreign(
        self, stream: Stream, *subjects: str, value: bytes = b"v", deliver: bool = True
    ) -> None:
        """Append an entry of the Pulsar dialect; "" is a message without a subject of its own."""
        messages = [
            Message(value=value, properties={"Nats-Subject": subject} if subject else {})
            for subject in subjects
        ]
        payload = ENTRY_FORMATS[PULSAR_FORMAT].from_messages(messages, 0)
        done = asyncio.Event()
        stream.ledger.append(
            payload, PULSAR_FORMAT, len(messages), int(self.clock() * 1000), lambda _: done.set()
        )
        if deliver:
            await done.wait()


@asynccontextmanager
async def streaming(
    folder: Path,
    clock: Clock | None = None,
    *,
    max_subjects: int = 1_000,
    killed: bool = False,
    options: StoreOptions = SMALL,
    disk: Disk | None = None,
) -> AsyncIterator[Rig]:
    """Serve a folder until the block ends; `killed`: nothing is written at its end."""
    clock = clock or Clock()
    data = folder / "data"
    data.mkdir(exist_ok=True)
    store = await Store.open(data, options, clock, disk, keep_messages=keep_messages)
    topics = Topics(store, TopicOptions(), clock, ENTRY_FORMATS)
    registry = await FileRegistry.open(data)
    transcoder = Transcoder(ENTRY_FORMATS)
    context = StreamContext(
        store, transcoder, EntryCache(), SubjectBudget(max_subjects), data, topics.now_ms
    )
    names = count()
    hub = Hub()
    publishing = PublishContext(
        store, hub, topics.clock, lambda _: None, lambda: f"nats-{next(names)}", topics.tally
    )
    streams = Streams(topics, registry, context, publishing)
    answers: dict[str, dict[str, Any]] = {}

    hub.subscribe(">", Acknowledged(answers))
    reading = asyncio.Event()
    reading.set()
    publisher = StreamPublisher(publishing, reading.clear, reading.set)
    rig = Rig(store, topics, streams, clock, publisher, answers, reading)
    await streams.load()
    try:
        yield rig
    finally:
        if killed:
            store.fail(PermissionError(13, "killed"))
        publisher.close()
        with suppress(OSError):
            await streams.close(save=not killed)
        transcoder.close()
        await registry.close()
        await store.close()


async def everything(stream: Stream) -> list[StoredMessage]:
    """Return all live messages, each read by itself."""
    found = [await stream.read(sequence) for sequence in range(1, stream.log.last_sequence + 1)]
    return [message for message in found if message is not None]


async def recount(stream: Stream) -> dict[str, tuple[int, int, int]]:
    """Return count, first and last sequence of each subject, by reading all messages."""
    counts: dict[str, tuple[int, int, int]] = {}
    for message in await everything(stream):
        number, first, _ = counts.get(message.subject, (0, message.sequence, 0))
        counts[message.subject] = number + 1, first, message.sequence
    return counts


async def check_index(stream: Stream) -> None:
    """Compare the index with a plain recount; bounds that are not exact must be bounds."""
    await stream.settle()
    index = stream.log.index
    assert index is not None
    counts = await recount(stream)
    messages = await everything(stream)
    assert {subject: state.count for subject, state in index.subjects.items()} == {
        subject: number for subject, (number, _, _) in counts.items()
    }
    assert (
        index.messages
        == len(messages)
        == stream.ledger.messages - (stream.log.indexer.unreadable if stream.log.indexer else 0)
    )
    assert index.bytes == sum(stored_size(m.subject, m.headers, m.payload) for m in messages)
    for subject, (_, first, last) in counts.items():
        state = index.subjects[subject]
        assert state.first == first if state.first_exact else state.first <= first
        assert state.last == last if state.last_exact else state.last >= last
        if state.places is not None:
            assert [place for place, _ in state.places] == [
                m.sequence for m in messages if m.subject == subject
            ]
    lasts = await stream.last_of_subjects(())
    assert lasts == sorted(last for _, _, last in counts.values())
