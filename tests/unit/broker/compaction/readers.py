"""What the readers of each dialect get of a partition: numbers of messages, and their values."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Final, cast

from router.broker.compaction import CompactionCalls
from router.broker.consume import ClientConsumer, StartPosition, SubscriptionType
from router.broker.consume.polls.poll import Poll
from router.broker.consume.polls.reader import PollReader
from router.broker.consume.polls.requests import GroupPollRequest, TakenMessages
from router.broker.consume.visible import Visible
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.entries.kafka import GONE
from router.broker.entries.slicing import EntryOpener
from router.broker.kafka.batch_reader import BatchReader
from router.broker.kafka.context import KafkaContext
from router.broker.nats.streams.log.messages import EntryCache, MessageReader
from router.broker.nats.streams.log.stream_log import StreamLog
from router.broker.storage import KAFKA_FORMAT, PULSAR_FORMAT, Entry, bits
from tests.unit.broker.compaction.log import TOPIC, Log
from tests.unit.broker.consume.dispatch.bench import Notes
from tests.unit.broker.storage.rig import until
from tests.wire.kafka.batches import split_batches

PERMITS: Final = 1_000_000
Read = list[tuple[int, bytes]]


class _Entries(Notes):
    """A connection of a Pulsar client that keeps what it is sent, by the numbers of messages."""

    def __init__(self, transcoder: Transcoder) -> None:
        super().__init__()
        self.read: Read = []
        self._transcoder = transcoder

    def deliver(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        payload = self._transcoder.payload(consumer.ledger_id, entry, PULSAR_FORMAT)
        self.read += left(payload, entry.index + 1 - entry.messages, ack_set)


def left(payload: bytes, first: int, ack_set: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a Pulsar entry that a client takes; `first`: the first one's number."""
    mask = bits(ack_set) if ack_set else -1
    for place, message in enumerate(ENTRY_FORMATS[PULSAR_FORMAT].to_messages(payload)):
        if mask >> place & 1 and message is not GONE:
            yield first + place, message.value


async def by_pulsar(log: Log, transcoder: Transcoder, visible: Visible | None = None) -> Read:
    link = _Entries(transcoder)
    subscription = log.partition.read_from("reader", log.partition.ledger.first_entry)
    consumer = ClientConsumer(link=link, consumer_id=1, name="c", visible=visible)
    subscription.attach(consumer, SubscriptionType.EXCLUSIVE)
    subscription.flow(consumer, PERMITS)
    settled = asyncio.Event()
    subscription.when_settled(settled.set)
    await settled.wait()
    subscription.detach(consumer)
    return link.read


async def by_compacted_reader(log: Log, transcoder: Transcoder) -> Read:
    return await by_pulsar(log, transcoder, await log.compactor.view(log.partition))


class _Poll:
    """A poll that is not waited for."""

    def ready(self) -> None:
        """Do nothing: the test takes again."""

    def closed(self, reader: PollReader) -> None:
        raise AssertionError(reader)


async def by_polls(log: Log, transcoder: Transcoder) -> Read:
    """What polls over HTTP get, and the fetches of PIP 64, which are polls."""
    partition = log.partition
    reader = PollReader(
        partition.read_from("polls", partition.ledger.first_entry), EntryOpener(transcoder)
    )
    request = GroupPollRequest(
        str(TOPIC), "polls", "c", PERMITS, 1 << 30, False, 1.0, StartPosition(), 1 << 20
    )
    taken: list[TakenMessages] = []
    reader.attach(cast("Poll", _Poll()), request)
    # Nothing was taken, and no read begun: it is at the end.
    while reader.take(request, PERMITS, 1 << 30, taken)[0] or not reader.is_settled:
        await until(lambda: reader.is_settled)
    reader.detach()
    found: Read = []
    for one in taken:
        (entry,) = await partition.ledger.read(one.entry, 1, 1)
        first = entry.index + 1 - entry.messages + one.first
        found += left(one.payload, first, one.ack_set)
    return found


async def by_kafka(log: Log, transcoder: Transcoder) -> Read:
    context = SimpleNamespace(transcoder=transcoder, topics=log.partition.context)
    reader, offset, found = BatchReader(cast(KafkaContext, context)), 0, Read()
    while offset < log.partition.visible.end_number:
        batches = await reader.read(log.partition.visible, offset, 1 << 20)
        for header, batch in split_batches(batches.records()):
            messages = ENTRY_FORMATS[KAFKA_FORMAT].to_messages(bytes(batch))
            found += [
                (header.base_offset + place, message.value)
                for place, message in enumerate(messages)
                if message is not GONE
            ]
        assert batches.offset > offset
        offset = batches.offset
    return found


async def by_jetstream(log: Log, transcoder: Transcoder) -> Read:
    reader = MessageReader(log.partition.visible, transcoder, EntryCache(), lambda _: "t")
    stream = StreamLog(log.store, reader, "t")
    return [
        (one.sequence - 1, one.payload) async for found in stream.scan(1, PERMITS) for one in found
    ]


READERS: Final[Sequence[Callable[[Log, Transcoder], Awaitable[Read]]]] = (
    by_pulsar,
    by_polls,
    by_kafka,
    by_jetstream,
)
"""Those that get all that the log has."""


async def by_table_view(log: Log) -> dict[bytes, bytes]:
    """The value of each key, page by page."""
    calls = CompactionCalls(log.topics, log.indexes, log.compactor, ENTRY_FORMATS)
    found: dict[bytes, bytes] = {}
    after: str | None = None
    while True:
        page = await calls.latest_values(str(TOPIC), after, 2)
        found |= {b64decode(one["key"]): b64decode(one["value"]) for one in page["values"]}
        if (after := page["next"]) is None:
            return found
