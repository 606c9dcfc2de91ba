"""A real store with one partition, and connections that only take notes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from router.broker.consume import (
    ClientConsumer,
    Partition,
    PartitionSubscription,
    SubscriptionType,
)
from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import PULSAR_FORMAT, Ack, Entry, Store, StoreOptions
from router.broker.topics.topics import TopicOptions, Topics
from router.model import Message
from router.wire.pulsar import pack


class Notes:
    """A connection that notes what it is given, and is writable as long as it is told to be."""

    entry_format = PULSAR_FORMAT

    def __init__(self) -> None:
        self.room = 10**9
        self.prepared: dict[int, asyncio.Future[Any]] = {}
        self.got: list[tuple[str, int, int]] = []
        self.ack_sets: dict[int, list[int]] = {}
        self.closed: list[str] = []
        self.active: list[tuple[str, bool]] = []
        self.ended: list[str] = []
        self.something = asyncio.Event()
        self.probes = 0
        self.unreadable: set[int] = set()
        self.waiting: list[Callable[[], None]] = []

    @property
    def writable(self) -> bool:
        return self.room > 0

    def when_writable(self, resume: Callable[[], None]) -> None:
        if resume not in self.waiting:
            self.waiting.append(resume)

    def drain(self, room: int) -> None:
        self.room = room
        waiting, self.waiting = self.waiting, []
        for resume in waiting:
            resume()

    def deliver(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        if entry.entry_id in self.unreadable:
            raise UnreadableEntryError("no form for it")
        self.room -= 1
        self.something.set()
        self.got.append((consumer.name, entry.entry_id, redeliveries))
        if ack_set:
            self.ack_sets[entry.entry_id] = list(ack_set)

    def prepare(self, ledger_id: int, entries: Sequence[Entry]) -> asyncio.Future[Any] | None:
        waiting = [self.prepared[one.entry_id] for one in entries if one.entry_id in self.prepared]
        return asyncio.gather(*waiting) if waiting else None

    def consumer_closed(self, consumer: ClientConsumer) -> None:
        self.closed.append(consumer.name)

    def activity_changed(self, consumer: ClientConsumer, active: bool) -> None:
        self.active.append((consumer.name, active))

    def reached_end(self, consumer: ClientConsumer) -> None:
        self.ended.append(consumer.name)

    def probe(self, *, soon: bool = False) -> None:
        self.probes += 1

    def entries(self, name: str | None = None) -> list[int]:
        return [entry for who, entry, _ in self.got if name in {None, who}]


class Bench:
    """One partition with helpers to fill it and to attach consumers."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.notes = Notes()

    async def publish(
        self,
        count: int,
        batch: int = 1,
        messages: Sequence[Message] = (),
        payload: bytes = b"",
    ) -> None:
        done = asyncio.Event()
        for _ in range(count):
            stored = payload or pack(messages or [Message(b"v")] * batch, "p", 0, 1)
            self.partition.ledger.append(stored, PULSAR_FORMAT, batch, 1, lambda _: None)
        self.partition.store.after_sync(done.set)
        await done.wait()
        await asyncio.sleep(0)

    async def subscription(self, name: str = "s", start: int = 0) -> PartitionSubscription:
        return await self.partition.subscribe(name, start)

    def consumer(
        self,
        subscription: PartitionSubscription,
        name: str,
        kind: SubscriptionType,
        permits: int = 0,
        **fields: Any,
    ) -> ClientConsumer:
        consumer = ClientConsumer(link=self.notes, consumer_id=1, name=name, **fields)
        subscription.attach(consumer, kind)
        subscription.flow(consumer, permits)
        return consumer


def skip(bench: Bench, subscription: PartitionSubscription, upto: int) -> None:
    """Acknowledge all up to an entry for nobody in particular, as administration does."""
    record, dispatcher = subscription.record, subscription.dispatcher
    assert record is not None
    assert dispatcher is not None
    bench.partition.store.acknowledge(record, Ack(upto, cumulative=True))
    dispatcher.release_acknowledged()


@asynccontextmanager
async def on_a_partition(
    folder: Path, clock: Callable[[], float] = lambda: 1_000.0, **options: Any
) -> AsyncIterator[Bench]:
    store = await Store.open(folder, StoreOptions(**options), clock)
    try:
        topics = Topics(store, TopicOptions(max_groups=3), clock, ENTRY_FORMATS)
        yield Bench(await topics.open("t", create=True))
    finally:
        await store.close()
