"""An engine over a real store, and workers, a clock and timers in the hands of the test."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from router.broker.consume import Partition, StartPosition
from router.broker.consume.cursor.in_flight import InFlightTerms
from router.broker.consume.membership.leases import Leases
from router.broker.consume.polls.engine import PollEngine
from router.broker.consume.polls.requests import GroupPollRequest, TakenMessages
from router.broker.entries import ENTRY_FORMATS, Transcoder, keep_messages
from router.broker.entries.slicing import EntryOpener
from router.broker.node.counters import NodeCounters
from router.broker.storage import PULSAR_FORMAT, Ack, Store, StoreOptions, words
from router.broker.topics.groups import TopicSubscriptions
from router.broker.topics.topics import TopicOptions, Topics
from router.coordination.opening import SingleNode
from router.errors import RouterError
from router.model import Message, PollOutcome, Position, TopicName
from router.sharing.registry import RecordVersion
from router.wire.pulsar import pack, unpack
from router.wire.pulsar.pulsar_pb2 import NONE, CompressionType

TOPIC = "persistent://public/default/t"
GROUP = "g"
FOREVER = 1e6
LATER = 20_000
"""Turns of the event loop after which nothing more is expected."""


@dataclass(eq=False)
class Timer:
    """A call that is due later."""

    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """A time that the test advances, and the timers that it has."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._order = count()
        self._timers: list[tuple[float, int, Timer]] = []

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        if seconds <= 0:
            asyncio.get_running_loop().call_soon(self._fire, timer)
        else:
            heapq.heappush(self._timers, (self.now + seconds, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._timers)
            self._fire(timer)
        self.now = until

    def _fire(self, timer: Timer) -> None:
        if not timer.cancelled:
            timer.call()


@dataclass(frozen=True)
class Got:
    """A message of an answer: its partition, its value, and where it is."""

    partition: int
    value: bytes
    entry: int
    index: int


@dataclass(eq=False)
class Worker:
    """A worker's connection, which notes what its polls are answered."""

    name: str = "worker pid 1"
    writable: bool = True
    answers: dict[int, list[Got] | RouterError] = field(default_factory=dict)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    now_ms: Callable[[], int] = int
    answered_ms: dict[int, int] = field(default_factory=dict)

    def when_writable(self, resume: Callable[[], None]) -> None:
        self.waiting.append(resume)

    def drain(self) -> None:
        self.writable = True
        waiting, self.waiting = self.waiting, []
        for resume in waiting:
            resume()

    def polled(self, poll_id: int, taken: Sequence[TakenMessages]) -> None:
        assert poll_id not in self.answers, "answered twice"
        self.answers[poll_id] = [got for one in taken for got in messages_of(one)]
        self.answered_ms[poll_id] = self.now_ms()

    def refused(self, poll_id: int, failure: RouterError) -> None:
        assert poll_id not in self.answers, "answered twice"
        self.answers[poll_id] = failure


def messages_of(taken: TakenMessages) -> list[Got]:
    """Return what a worker makes of a part of an answer."""
    found = unpack(taken.payload, 1 << 26, taken.ack_set)
    assert not (taken.batch_size and taken.ack_set)
    return [
        Got(taken.partition, one.message.value, taken.entry, taken.first + max(0, one.batch_index))
        for one in found
    ]


class House:
    """A store with one topic, the engine over it, and one worker."""

    def __init__(self, store: Store, topics: Topics, clock: Clock, topic: str = TOPIC) -> None:
        self.store, self.topics, self.clock, self.topic = store, topics, clock, topic
        self.leases = Leases(store.boot, 5.0, SingleNode(), NodeCounters(clock), clock, clock.later)
        self.groups = TopicSubscriptions(topics)
        self.transcoder = Transcoder(ENTRY_FORMATS)
        opener = EntryOpener(self.transcoder)
        self.versions: dict[tuple[str, str], int] = {}
        self.engine = PollEngine(
            self.leases,
            self.groups,
            opener,
            clock.later,
            clock,
            lambda kind, name: self.versions.get((kind, name)),
        )
        self.worker = Worker(now_ms=topics.now_ms)
        self._ids = count(1)

    @classmethod
    async def open(cls, folder: Path, partitions: int = 0, **options: Any) -> House:
        clock = Clock()
        store = await Store.open(
            folder, StoreOptions(**options), clock, keep_messages=keep_messages
        )
        topics = Topics(store, TopicOptions(), clock, ENTRY_FORMATS)
        await topics.create(TopicName.parse(TOPIC), partitions)
        return cls(store, topics, clock)

    async def close(self) -> None:
        self.engine.gone(self.worker)
        self.transcoder.close()
        await self.store.close()

    def partition(self, index: int) -> Partition:
        return self.topics.pieces(TopicName.parse(self.topic))[max(0, index)]

    async def publish(
        self,
        messages: Sequence[Message],
        partition: int = -1,
        tag: int = PULSAR_FORMAT,
        compression: CompressionType = NONE,
    ) -> None:
        """Store messages as one entry, durably."""
        if tag == PULSAR_FORMAT:
            payload = pack(messages, "p", 0, 1, compression)
        else:
            payload = ENTRY_FORMATS[tag].from_messages(messages, 1)
        ledger = self.partition(partition).ledger
        ledger.append(payload, tag, len(messages), 1, lambda _: None)
        await self.stored()

    async def stored(self) -> None:
        """Return when all is on disk, and delivered."""
        done = asyncio.Event()
        self.store.after_sync(done.set)
        await done.wait()
        await self.settle()

    async def settle(self) -> None:
        """Return when nothing happens any more: tasks and reads from disk have ended."""
        for _ in range(LATER):
            await asyncio.sleep(0)
            tasks = self.engine._tasks or self.engine._unprepared or self.engine._due
            readers = [r for g in self.engine._groups.values() for r in g._readers.values()]
            if not tasks and all(reader.is_settled for reader in readers):
                break
            await asyncio.to_thread(time.sleep, 0.0005)  # by no clock that a test may have stopped
        for _ in range(3):
            await asyncio.sleep(0)

    def begin(
        self,
        consumer: str = "c",
        limit: int = 100,
        *,
        max_bytes: int = 1 << 20,
        strict: bool = False,
        timeout: float = 0.0,
        group: str = GROUP,
        worker: Worker | None = None,
        fetch: InFlightTerms | None = None,
        record: RecordVersion | None = None,
        explicit_partitions: int = 0,
        acknowledged: Sequence[Position] = (),
    ) -> int:
        """Begin a poll of a group that starts at the earliest message; return its number."""
        poll_id = next(self._ids)
        start = StartPosition(earliest=True)
        request = GroupPollRequest(
            self.topic, group, consumer, limit, max_bytes, strict, timeout, start, 1 << 24,
            fetch=fetch, record=record, explicit_partitions=explicit_partitions,
            acknowledged=acknowledged,
        )  # fmt: skip
        self.engine.begin(worker or self.worker, poll_id, request)
        return poll_id

    async def poll(self, consumer: str = "c", limit: int = 100, **more: object) -> list[bytes]:
        """Poll, and acknowledge what is answered; return the values."""
        poll_id = self.begin(consumer, limit, **more)  # type: ignore[arg-type]
        await self.settle()
        found = self.answer(poll_id)
        self.done(poll_id)
        return [got.value for got in found]

    def terms(
        self, *live: str, ack_timeout_ms: int = 10_000, max_unacknowledged: int = 1 << 30
    ) -> InFlightTerms:
        """Return the terms of a fetch now, of a group with these consumers."""
        return InFlightTerms(ack_timeout_ms, max_unacknowledged, frozenset(live), self.now_ms)

    @property
    def now_ms(self) -> int:
        return self.topics.now_ms()

    async def fetch(self, consumer: str = "c", limit: int = 100, **terms: int) -> list[bytes]:
        """Fetch, and have what is answered be in flight; return the values."""
        return await self.poll(consumer, limit, fetch=self.terms(consumer, **terms))

    async def acknowledge(
        self, entry: int, index: int = 0, size: int = 1, partition: int = -1
    ) -> None:
        """Acknowledge one message of an entry of so many, durably."""
        left = words((1 << size) - 1 & ~(1 << index))
        subscription = self.partition(partition).subscriptions[GROUP]
        assert subscription.record is not None
        self.store.acknowledge(subscription.record, Ack(entry, ack_set=tuple(left)))
        await self.stored()

    def ends(self, poll_id: int) -> list[Position]:
        """Return where the answer of a poll ends, in each partition."""
        held = self.engine._polls.get(self.worker, {})[poll_id]._held.values()
        return [reader.last for reader in held if reader.last is not None]

    def answer(self, poll_id: int) -> list[Got]:
        """Return what a poll was answered; raise its failure."""
        found = self.worker.answers[poll_id]
        if isinstance(found, RouterError):
            raise found
        return found

    def done(self, poll_id: int, *, delivered: bool = True, keep: bool = False) -> None:
        """End a poll."""
        outcome = PollOutcome.DELIVERED if delivered else PollOutcome.REFUSED
        self.engine.done(self.worker, poll_id, outcome, keep=keep, upto=())
