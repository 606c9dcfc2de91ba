"""A Pulsar client that costs next to nothing, so that the server is what is measured.

The frames of a measurement are made beforehand and sent again and again; of what comes back only
the commands are read. Every connection keeps a number of frames under way and sends the next one
for each receipt.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.flood import Talker, entry

PATIENCE = 120.0
PERMITS = 5_000


@dataclass(frozen=True)
class Load:
    """Entries of so many messages of so many bytes, so many under way on each connection."""

    messages: int
    size: int
    under_way: int = 1
    connections: int = 1

    def frame(self) -> bytes:
        """Return the frame of one entry."""
        return entry([b"x" * self.size] * self.messages)


@dataclass
class Sent:
    """What was stored in how many seconds, and the milliseconds until each receipt."""

    messages: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class Sending:
    """One connection that keeps entries under way until `until`, on the clock of perf_counter."""

    def __init__(self, load: Load, sent: Sent) -> None:
        self.until = 0.0
        self.done = asyncio.Event()
        self._load = load
        self._frame = load.frame()
        self._sent = sent
        self._began: deque[float] = deque()

    def begin(self, talker: Talker, until: float) -> None:
        """Send the first entries."""
        self._talker, self.until = talker, until
        for _ in range(self._load.under_way):
            self._send()

    def heard(self, frame: Frame) -> None:
        """Count a receipt and send the next entry."""
        assert frame.command.type == pb.BaseCommand.SEND_RECEIPT, frame.command
        now = time.perf_counter()
        self._sent.latencies.append((now - self._began.popleft()) * 1000)
        self._sent.messages += self._load.messages
        if now < self.until:
            self._send()
        elif not self._began:
            self.done.set()

    def _send(self) -> None:
        self._began.append(time.perf_counter())
        self._talker.write(self._frame)


def new_topic() -> str:
    """Return the name of a topic that nobody used."""
    return f"persistent://public/default/bench-{uuid.uuid4().hex}"


@asynccontextmanager
async def talking(url: str, topic: str, heard: Callable[[Frame], None]) -> AsyncIterator[Talker]:
    """Connect to the server of a topic."""
    talker = await Talker.connect(url, heard)
    try:
        await talker.look_up(topic)
        yield talker
    finally:
        talker.close()


async def publish(url: str, load: Load, seconds: float) -> Sent:
    """Publish for so long, each connection to a topic of its own."""
    sent = Sent()
    async with asyncio.timeout(seconds + PATIENCE), AsyncExitStack() as owned:
        pairs = []
        for _ in range(load.connections):
            topic, sending = new_topic(), Sending(load, sent)
            talker = await owned.enter_async_context(talking(url, topic, sending.heard))
            await talker.produce(topic)
            pairs.append((sending, talker))
        began = time.perf_counter()
        for sending, talker in pairs:
            sending.begin(talker, began + seconds)
        for sending, _ in pairs:
            await sending.done.wait()
        sent.seconds = time.perf_counter() - began
    return sent


async def end_to_end(url: str, size: int, seconds: float) -> list[float]:
    """Return the milliseconds from each SEND to its MESSAGE, one at a time and some a second."""
    latencies: list[float] = []
    arrived = asyncio.Event()

    def heard(frame: Frame) -> None:
        if frame.command.type == pb.BaseCommand.MESSAGE:
            where = frame.command.message.message_id
            latencies.append((time.perf_counter() - began) * 1000)
            consumer.send("ACK", consumer_id=1, ack_type=0, message_id=[where])
            arrived.set()

    topic, frame = new_topic(), entry([b"x" * size])
    async with (
        asyncio.timeout(seconds + PATIENCE),
        talking(url, topic, heard) as producer,
        talking(url, topic, heard) as consumer,
    ):
        await producer.produce(topic)
        await consumer.subscribe(topic, 1)
        consumer.send("FLOW", consumer_id=1, messagePermits=1 << 30)
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            arrived.clear()
            producer.write(frame)
            await arrived.wait()
            await asyncio.sleep(0.002)
    return latencies


async def drain(url: str, load: Load, entries: int) -> Sent:
    """Publish so many entries, then receive and acknowledge them all in a new subscription."""
    drained, stored, finished = Sent(), asyncio.Semaphore(0), asyncio.Event()
    count = 0

    def heard(frame: Frame) -> None:
        nonlocal count
        if frame.command.type == pb.BaseCommand.SEND_RECEIPT:
            stored.release()
            return
        count += 1
        if count % 10 == 0 or count == entries:
            where = frame.command.message.message_id
            talker.send("ACK", consumer_id=1, ack_type=1, message_id=[where])
            talker.send("FLOW", consumer_id=1, messagePermits=10 * load.messages)
        if count == entries:
            finished.set()

    topic, frame = new_topic(), load.frame()
    async with asyncio.timeout(PATIENCE), talking(url, topic, heard) as talker:
        await talker.produce(topic)
        await _store(talker, frame, entries, load.under_way, stored)
        await talker.subscribe(topic, 1, subType=0)
        began = time.perf_counter()
        talker.send("FLOW", consumer_id=1, messagePermits=PERMITS)
        await finished.wait()
        drained.seconds = time.perf_counter() - began
    drained.messages = entries * load.messages
    return drained


async def fill(url: str, topic: str, load: Load, entries: int, seconds: float) -> None:
    """Publish so many entries to a topic; raise TimeoutError if it takes longer."""
    stored = asyncio.Semaphore(0)

    def heard(frame: Frame) -> None:
        assert frame.command.type == pb.BaseCommand.SEND_RECEIPT, frame.command
        stored.release()

    async with asyncio.timeout(seconds), talking(url, topic, heard) as talker:
        await talker.produce(topic)
        await _store(talker, load.frame(), entries, load.under_way, stored)


async def _store(
    talker: Talker, frame: bytes, entries: int, under_way: int, stored: asyncio.Semaphore
) -> None:
    """Send so many frames and wait for the receipts, each of which releases `stored` once."""
    for number in range(entries):
        talker.write(frame)
        if number >= under_way:
            await stored.acquire()
    for _ in range(min(entries, under_way)):
        await stored.acquire()
