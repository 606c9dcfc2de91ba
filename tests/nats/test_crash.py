"""Kill -9 of the broker under publishers: nothing acknowledged is lost, no id is stored twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from tests.nats.conftest import NatsStack
from tests.nats.users import raised, until

pytestmark = [pytest.mark.system, pytest.mark.slow]

KILLS: Final = int(os.environ.get("SOAK_NATS_KILLS", "3"))
BETWEEN_KILLS: Final = 100
"""Acknowledgements of each publisher that come between two kills."""
UNDER_WAY: Final = 16
PATIENCE: Final = 120.0
CALL_SECONDS: Final = 3.0
STREAM: Final = "crash"


class Publisher:
    """Publishes the numbers from 0 on to a subject, each until it is acknowledged."""

    def __init__(self, js: JetStreamContext, name: str, under_way: int, *, ids: bool) -> None:
        self.name = name
        self.ids = ids
        self.acknowledged: list[int] = []
        """The number of each acknowledgement."""
        self.sequences: dict[int, int] = {}
        """The sequence in the stream that each number was given."""
        self._js = js
        self._next = 0
        self._under_way = under_way

    async def run(self, ending: asyncio.Event) -> None:
        """Publish until the end; what is under way then is still acknowledged."""
        await asyncio.gather(*(self._run_one(ending) for _ in range(self._under_way)))

    async def reached(self, count: int) -> None:
        """Wait until so many were acknowledged."""

        async def there() -> bool:
            return len(self.acknowledged) >= count

        await until(there, PATIENCE)

    async def _run_one(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            number = self._next
            self._next += 1
            headers = {"Nats-Msg-Id": f"{self.name}-{number}"} if self.ids else None
            body = b"%d" % number
            while True:
                # refused, without a connection, or without an answer: it is sent again
                with contextlib.suppress(Exception):
                    subject = f"{STREAM}.{self.name}"
                    ack = await self._js.publish(subject, body, CALL_SECONDS, headers=headers)
                    self.acknowledged.append(number)
                    self.sequences[number] = ack.seq
                    break
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[JetStreamContext]:
    """Connect a client that reconnects for ever, and says nothing of it."""

    async def ignore(_: Exception) -> None:
        """What ends a connection is what this test does."""

    nc = Client()
    await nc.connect(
        url, max_reconnect_attempts=-1, reconnect_time_wait=0, error_cb=ignore, connect_timeout=30
    )
    try:
        yield nc.jetstream(timeout=CALL_SECONDS)
    finally:
        await nc.close()


async def everything(js: JetStreamContext) -> dict[str, list[tuple[int, int]]]:
    """Return number and sequence of each message of the stream, by publishers."""
    found: dict[str, list[tuple[int, int]]] = {}

    async def answers() -> bool:
        """Whether the client has noticed the last kill, and found the broker again."""
        return bool(await raised(js.account_info()) == "ok")

    await until(answers, PATIENCE)
    js = JetStreamContext(js._nc, timeout=PATIENCE)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    pull = await js.pull_subscribe("", "reader", STREAM, config)
    left = (await js.stream_info(STREAM)).state.messages
    while left > 0:
        batch = await pull.fetch(min(left, 500), timeout=PATIENCE)
        left -= len(batch)
        for one in batch:
            sequence = one.metadata.sequence.stream
            name = one.subject.rpartition(".")[2]
            found.setdefault(name, []).append((int(one.data), sequence))
    return found


@pytest.mark.timeout(300 + 120 * KILLS)
def test_acknowledged_publishes_survive_kills_of_the_broker(folder: Path) -> None:
    stack = NatsStack(folder)
    stack.start()
    asyncio.run(_kill_under_load(stack))
    assert stack.stop() == 0
    lines = (folder / "serve.log").read_text("utf-8").splitlines()
    assert [line for line in lines if '"level": "error"' in line] == []


async def _kill_under_load(stack: NatsStack) -> None:
    async with contextlib.AsyncExitStack() as owned:
        first, second = [await owned.enter_async_context(connected(stack.nats_url)) for _ in "ab"]
        await first.add_stream(name=STREAM, subjects=[f"{STREAM}.>"])
        publishers = [
            Publisher(first, "sync", 1, ids=True),
            Publisher(second, "async", UNDER_WAY, ids=True),
            Publisher(second, "plain", UNDER_WAY // 4, ids=False),
        ]
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as running:
            for publisher in publishers:
                running.create_task(publisher.run(ending))
            for _ in range(KILLS):
                counts = [len(one.acknowledged) + BETWEEN_KILLS for one in publishers]
                pairs = zip(publishers, counts, strict=True)
                await asyncio.gather(*(one.reached(count) for one, count in pairs))
                os.kill(stack.broker(), signal.SIGKILL)
            ending.set()
        found = await everything(first)
    for publisher in publishers:
        judge(publisher, found[publisher.name])


def judge(publisher: Publisher, stored: list[tuple[int, int]]) -> None:
    """Compare what was acknowledged to a publisher with what is stored."""
    counts = Counter(number for number, _ in stored)
    lost = [number for number in publisher.acknowledged if not counts[number]]
    assert not lost, f"{publisher.name}: {len(lost)} acknowledged messages are lost: {lost[:10]}"
    by_sequence = {sequence: number for number, sequence in stored}
    wrong = [n for n, sequence in publisher.sequences.items() if by_sequence.get(sequence) != n]
    assert not wrong, f"{publisher.name}: other messages have the sequences of {wrong[:10]}"
    if publisher.ids:
        twice = [number for number, count in counts.items() if count > 1]
        assert not twice, f"{publisher.name}: stored more than once: {twice[:10]}"
        assert sorted(counts) == sorted(publisher.acknowledged)
    assert publisher.name != "sync" or [number for number, _ in stored] == sorted(counts)
