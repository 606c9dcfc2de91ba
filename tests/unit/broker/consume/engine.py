"""One partition served to all dialects at once, on a time that only the test moves.

HTTP polls and fetches go through the poll engine, Pulsar's consumers through their subscriptions,
JetStream's through the NATS server with its API and acknowledgements, as their clients do.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import (
    ClientConsumer,
    Partition,
    PartitionSubscription,
    SubscriptionType,
)
from router.broker.consume.cursor.backlog import BacklogCounter
from router.broker.entries import ENTRY_FORMATS
from router.broker.nats.consumers import consumers
from router.broker.nats.opening import join_streams
from router.broker.nats.protocol.hub import Subscriber
from router.broker.nats.server import NatsServer
from router.broker.node.registry import FileRegistry
from router.broker.storage import PULSAR_FORMAT, Ack, Entry, Store, StoreOptions, bits, words
from router.broker.topics.topics import TopicOptions, Topics
from router.broker.transport.context import TransportContext
from router.model import Message
from router.wire.nats.headers import status_code
from router.wire.nats.message import NatsMessage
from tests.unit.broker.consume.polls.polling import Clock, House
from tests.unit.broker.nats.serving import STREAM, Serving
from tests.unit.broker.pulsar.serving import NO_SETTINGS, context_of

SMALL = StoreOptions(segment=4_000, journal=64_000, cache=1 << 20, reserve=0)
TURNS = 20
"""Of the event loop, in which nothing more may come."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers go by a clock that stands still while no test moves it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def time(self) -> float:
        return self._clock.now


@dataclass(frozen=True)
class Delivery:
    """What a client was sent: an entry or a message, and how often before.

    `left`: which messages of an entry are, as bits.
    """

    number: int
    before: int
    left: int = 0
    reply: str = ""


class PulsarClient:
    """The connection of one consumer of a subscription, which notes what it is sent."""

    entry_format = PULSAR_FORMAT
    writable = True

    def __init__(self, subscription: PartitionSubscription, kind: SubscriptionType) -> None:
        self.subscription = subscription
        self.got: list[Delivery] = []
        self.consumer = ClientConsumer(self, 1, subscription.name)
        subscription.attach(self.consumer, kind)

    def deliver(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        assert consumer is self.consumer
        left = bits(ack_set) or (1 << entry.messages) - 1
        self.got.append(Delivery(entry.entry_id, redeliveries, left))

    def acknowledge(self, entry: int, left: int = 0, *, cumulative: bool = False) -> None:
        """Acknowledge an entry, but for the messages of it that are `left`, as bits."""
        ack = Ack(entry, cumulative, tuple(words(left)) if left else ())
        self.subscription.acknowledge(self.consumer, [ack], None)

    def flow(self, permits: int) -> None:
        self.subscription.flow(self.consumer, permits)

    def give_back(self, *entries: int) -> None:
        self.subscription.redeliver(self.consumer, entries)

    def leave(self) -> None:
        self.subscription.detach(self.consumer)

    def prepare(self, ledger_id: int, entries: Sequence[Entry]) -> asyncio.Future[Any] | None:
        return None

    def when_writable(self, resume: Callable[[], None]) -> None:
        raise AssertionError(resume)

    def consumer_closed(self, consumer: ClientConsumer) -> None:
        raise AssertionError(consumer)

    def activity_changed(self, consumer: ClientConsumer, active: bool) -> None:
        """Take no note of it: there is one consumer."""

    def reached_end(self, consumer: ClientConsumer) -> None:
        raise AssertionError(consumer)

    def probe(self, *, soon: bool = False) -> None:
        """Respond."""


class JetStreamClient(Subscriber):
    """A client that pulls from a consumer of JetStream, and notes what it is sent."""

    def __init__(self, served: Serving, name: str) -> None:
        self.got: list[Delivery] = []
        self._served, self._name = served, name
        self._inbox = f"inbox.{name}"
        served.hub.subscribe(self._inbox, self)

    def deliver(self, message: NatsMessage) -> None:
        if status_code(message.headers):
            return
        _, _, _, _, attempt, sequence, *_ = message.reply.split(".")
        self.got.append(Delivery(int(sequence) - 1, int(attempt) - 1, reply=message.reply))

    def pull(self, batch: int) -> None:
        self._served.ask(self._name, self._inbox, batch=batch)

    def say(self, reply: str, payload: bytes = b"") -> None:
        """Acknowledge in any way."""
        self._served.say(NatsMessage("", reply), payload)


class Engine:
    """The broker's parts that deliver, opened on a folder."""

    def __init__(self, house: House, served: Serving) -> None:
        self.house, self.served = house, served
        self.store, self.clock = house.store, house.clock
        self.partition: Partition = house.partition(-1)

    @classmethod
    async def open(cls, folder: Path, clock: Clock) -> Engine:
        store = await Store.open(folder, SMALL, clock)
        topics = Topics(store, TopicOptions(), clock, ENTRY_FORMATS)
        registry = await FileRegistry.open(folder)
        broker = context_of(topics, registry, clock.later, TransportContext()).broker
        server = NatsServer(NO_SETTINGS, topics, broker.counters, registry, broker.transcoder, None)
        join_streams(server, broker.schemas, broker.leases, folder)
        await server.streams.load()
        served = Serving(server, topics, broker)
        if STREAM not in {record.name for record in store.topics()}:
            await served.stream()
        else:
            await server.streams.open("S")
        house = House(store, topics, clock, STREAM)
        engine = cls(house, served)
        await engine.settle()
        return engine

    async def close(self) -> None:
        self.house.engine.gone(self.house.worker)
        server = self.served.server
        await server.restores.close()
        await server.snapshots.close()
        await server.api.close()
        await server.streams.close()
        await server.consumers.close_all()
        await server.registry.close()  # type: ignore[attr-defined]  # opened above
        self.house.transcoder.close()
        server.transcoder.close()
        await self.store.close()

    async def publish(self, values: Sequence[bytes], tag: int) -> None:
        """Store messages as one entry of a format."""
        await self.house.publish([Message(value) for value in values], tag=tag)
        await self.settle()

    async def delete(self, number: int) -> None:
        """Delete one message, by JetStream's API."""
        reply = await self.served.call("STREAM.MSG.DELETE.S", seq=number + 1)
        assert reply.get("success"), reply
        await self.settle()

    async def advance(self, seconds: int) -> None:
        """Let time pass, and do what is due."""
        self.clock.advance(seconds)
        await self.settle()

    async def settle(self) -> None:
        """Return when what was begun has ended, as far as is known, and is on disk."""
        await self.house.stored()
        for subscription in list(self.partition.subscriptions.values()):
            read = asyncio.Event()
            subscription.when_settled(read.set)
            await read.wait()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Return when a condition holds, or after so many real seconds."""
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            await asyncio.to_thread(time.sleep, 0.0005)

    async def backlog(self, group: str) -> int:
        """Return how many messages a group has left."""
        cursor = self.partition.subscriptions[group].cursor
        return await BacklogCounter().backlog(self.partition.visible, cursor)

    async def pulsar(self, name: str, kind: SubscriptionType) -> PulsarClient:
        """Open a consumer on a subscription, which begins at the first message."""
        client = PulsarClient(await self.partition.subscribe(name, 0), kind)
        await self.settle()
        return client

    async def jetstream(self, name: str, **config: Any) -> JetStreamClient:
        """Open a client of a consumer, which is made with a configuration if there is none."""
        if config:
            await self.served.consumer(name, **config)
        return JetStreamClient(self.served, name)

    async def acknowledge(self, group: str, entry: int, left: int) -> None:
        """Acknowledge an entry but for the messages that are left, as administration does."""
        record = self.partition.subscriptions[group].record
        assert record is not None
        self.store.acknowledge(record, Ack(entry, ack_set=tuple(words(left)) if left else ()))
        await self.settle()


def use_virtual_time(patch: pytest.MonkeyPatch, clock: Clock) -> Callable[[], AbstractEventLoop]:
    """Have the deadlines of JetStream go by a clock; return what makes loops that do."""
    patch.setattr(consumers, "steady_clock", lambda: lambda: round(clock.now * 1_000_000_000))
    return lambda: VirtualLoop(clock)
