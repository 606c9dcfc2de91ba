"""A broker's memory when very many use it, and badly: it holds them back and does not grow."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from router.wire.pulsar import Frame
from tests.broker.flood import Talker, entry
from tests.ports import free_port
from tests.processes import BrokerProcess

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

CONNECTIONS = int(os.environ.get("SOAK_CONNECTIONS", "60"))
TOPICS = int(os.environ.get("SOAK_TOPICS", "1000"))
# A topic has at most 1,000 subscriptions.
SLOW = min(CONNECTIONS, 900)
SECONDS = float(os.environ.get("SOAK_FLOOD_SECONDS", "3"))
MIB = 1 << 20
# A read of the event loop, and what a connection takes besides.
OF_A_CONNECTION = 320 << 10
OF_A_TOPIC = 16 << 10
CACHE = 8 * MIB
# What the broker holds at most, however many there are: frames on their way in, entries that are
# not on disk yet, the round that is being written, slack, and its cache of the newest entries.
OF_THE_BROKER = (64 + 2 * 32 + 64) * MIB + CACHE
LARGE = 5_000_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", free_port())
    process.start()
    yield process
    process.stop()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that keeps little of what it stores."""
    process = BrokerProcess(tmp_path / "data", free_port(), storage_cache=str(CACHE))
    process.start()
    yield process
    process.stop()


def name(number: int) -> str:
    return f"persistent://public/default/t{number}"


def memory(broker: BrokerProcess) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such process")


class Heard:
    """Counts what comes."""

    def __init__(self) -> None:
        self.frames = 0

    def __call__(self, _frame: Frame) -> None:
        self.frames += 1

    async def reach(self, count: int) -> None:
        """Wait until so many came."""
        async with asyncio.timeout(300):
            while self.frames < count:  # noqa: ASYNC110 - what is waited for comes over a socket
                await asyncio.sleep(0.05)


@asynccontextmanager
async def connected(broker: BrokerProcess, count: int, heard: Heard) -> AsyncIterator[list[Talker]]:
    talkers: list[Talker] = []
    try:
        while len(talkers) < count:
            talkers.append(await Talker.connect(broker.url, heard))
        yield talkers
    finally:
        for talker in talkers:
            talker.close()


async def peak(broker: BrokerProcess, ended: Callable[[], bool]) -> int:
    """Return the most memory that the broker had until then."""
    most = memory(broker)
    while not ended():
        await asyncio.sleep(0.1)
        most = max(most, memory(broker))
    return most


async def quiet(broker: BrokerProcess) -> int:
    """Return the broker's memory when it has not grown for three seconds."""
    found, since = memory(broker), time.monotonic()
    while time.monotonic() < since + 3:
        await asyncio.sleep(0.1)
        if (now := memory(broker)) > found + MIB:
            found, since = now, time.monotonic()
    return found


def test_topics_with_a_producer_each_take_little(broker: BrokerProcess) -> None:
    async def test() -> None:
        heard, before = Heard(), memory(broker)
        async with connected(broker, 10, heard) as talkers:

            async def fill(place: int) -> None:
                for number in range(place, TOPICS, len(talkers)):
                    await talkers[place].produce(name(number), number)
                    await talkers[place].push([entry([b"x" * 100], number)])

            await asyncio.gather(*map(fill, range(len(talkers))))
            await heard.reach(TOPICS)
            grown = memory(broker) - before
        assert grown < 32 * MIB + TOPICS * OF_A_TOPIC, f"{grown / TOPICS:.0f} bytes a topic"

    uvloop.run(test())


def test_producers_wait_in_the_middle_of_large_frames(broker: BrokerProcess) -> None:
    """All but the last byte of a large frame each: none of them can be stored."""
    frame = entry([os.urandom(LARGE)])

    async def test() -> None:
        heard, before = Heard(), memory(broker)
        async with connected(broker, CONNECTIONS, heard) as talkers:
            await all_of(talker.produce(name(number)) for number, talker in enumerate(talkers))
            await all_of(talker.push([frame[:-1]]) for talker in talkers)
            grown = await quiet(broker) - before
            assert grown < 64 * MIB + 16 * MIB + CONNECTIONS * OF_A_CONNECTION
            assert sum(talker.waits for talker in talkers) >= CONNECTIONS - 64 * MIB // LARGE - 1
            # Whoever leaves makes room for others.
            for talker in talkers[20:]:
                talker.close()
            await all_of(talker.push([frame[-1:]]) for talker in talkers[:20])
            await heard.reach(20)

    uvloop.run(test())


def test_producers_are_held_back_when_the_disk_cannot_keep_up(small: BrokerProcess) -> None:
    frame = entry([os.urandom(200_000)])
    allowed = OF_THE_BROKER + CONNECTIONS * OF_A_CONNECTION

    async def test() -> None:
        heard, before, sent = Heard(), memory(small), 0

        def frames() -> Iterator[bytes]:
            nonlocal sent
            until = time.monotonic() + SECONDS
            # Twice what the broker may hold: it could not take all of it without storing any.
            while sent * len(frame) < 2 * allowed or time.monotonic() < until:
                sent += 1
                yield frame

        async with connected(small, CONNECTIONS, heard) as talkers:
            await all_of(talker.produce(name(number)) for number, talker in enumerate(talkers))
            flood = asyncio.ensure_future(all_of(talker.push(frames()) for talker in talkers))
            grown = await peak(small, flood.done) - before
            assert grown < allowed
            await heard.reach(sent)

    uvloop.run(test())


def test_slow_consumers_hold_little_and_nobody_up(broker: BrokerProcess) -> None:
    frame, count = entry([os.urandom(60_000)]), 400

    async def test() -> None:
        heard = Heard()
        async with connected(broker, SLOW + 1, heard) as (quick, *slow):
            await quick.produce(name(0))
            await quick.push([frame] * count)
            await heard.reach(count)
            before = memory(broker)
            for number, talker in enumerate(slow):
                await talker.subscribe(name(0), subscription=f"slow-{number}")
                talker.deafen()
                talker.send("FLOW", consumer_id=0, messagePermits=count)
            grown = await quiet(broker) - before
            # Twice what may wait: once gathered, once with the event loop.
            assert grown < 64 * MIB + SLOW * 2 * min(MIB, 512 * MIB // SLOW)
            await quick.subscribe(name(0), 1)
            quick.send("FLOW", consumer_id=1, messagePermits=count)
            await heard.reach(2 * count)

    uvloop.run(test())


async def all_of(work: Iterator[Awaitable[None]]) -> None:
    await asyncio.gather(*work)
