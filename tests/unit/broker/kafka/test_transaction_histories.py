"""Random histories of transactions with fencing, kills and power cuts, and what readers may see.

A committed reader gets each committed transaction whole, once and in order, nothing of one that was
aborted, and never less than it got before. Of a transaction whose end was not answered because the
broker died it gets all or nothing, and the group stands where such a transaction left it, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from router.model import TopicName
from router.wire.kafka.record_batches import next_offset
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.kafka.test_fetch import fetched, records
from tests.unit.broker.kafka.test_produce import FULL, batch, produced
from tests.unit.broker.kafka.transacting import TransactionalClient, group_offset
from tests.unit.broker.storage.disks import Faults, MemoryDisk

SEEDS = range(int(os.environ.get("ROUTER_TRANSACTION_SEEDS", "8")))
"""Each takes a fifth of a second; a soak sets more."""
MARK = "READ-ONLY"
"""What an error of the disk leaves in the folder; here it stands for a kill."""
LIVES = 3
STEPS = 14
PARTITIONS = 2
NAMES = 2


@dataclass(eq=False)
class Attempt:
    """One transaction: its values by partition, its position, and how it ended; None: open."""

    values: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    offset: int = -1
    committed: bool | None = None
    unknown: bool = False


class DiedError(Exception):
    """The broker died before it answered."""


class History:
    """Producers that write to one topic over several lives of the broker."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = Random(seed)
        self.disk = MemoryDisk()
        self.second = bool(seed % 2)
        self.attempts: list[Attempt] = []
        self.producers: list[TransactionalClient | None] = [None] * NAMES
        self.current: list[Attempt | None] = [None] * NAMES
        self.plain: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.before: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.offsets = {-1}
        self.number = 0

    async def run(self) -> None:
        for life in range(LIVES):
            async with serving(self.folder, disk=self.disk) as server:
                if life == 0:
                    await server.topics.create(TopicName.parse(FULL), PARTITIONS)
                with suppress(DiedError):
                    await self.live(server, last=life == LIVES - 1)
            (self.folder / "data" / MARK).unlink(missing_ok=True)
            self.disk = self.disk.crash(self.chance) if life % 2 else self.disk.reread()
        async with serving(self.folder, disk=self.disk) as server:
            for name in range(NAMES):
                await self.begin(server, name)
            await self.check(server)
            found = await self.read(server.client())
            for attempt in self.attempts:
                expected = {True: (True,), False: (False,), None: (True, False)}[attempt.committed]
                seen = {
                    value in found[part]
                    for part in range(PARTITIONS)
                    for value in attempt.values[part]
                }
                assert len(seen) <= 1
                assert seen <= set(expected), attempt

    async def live(self, server: KafkaServer, *, last: bool) -> None:
        dies_at = None if last else self.chance.randrange(STEPS)
        for producer in self.producers:
            if producer is not None:
                producer.client = server.client()
        for step in range(STEPS):
            if step == dies_at:
                at = self.disk.faults.count + self.chance.randint(1, 8)
                count = self.disk.faults.count
                self.disk.faults = Faults(at, dead=True)
                self.disk.faults.count = count
            await self.step(server)
        if not last:
            raise DiedError

    async def step(self, server: KafkaServer) -> None:
        name = self.chance.randrange(NAMES)
        producer, attempt = self.producers[name], self.current[name]
        kind = self.chance.random()
        if producer is None or kind < 0.08 or (attempt is not None and attempt.unknown):
            await self.begin(server, name)
        elif kind < 0.2:
            await self.write_plain(server)
        elif kind < 0.55 or attempt is None:
            await self.write(server, name, producer)
        elif kind < 0.65:
            await self.place(server, name, producer, attempt)
        elif kind < 0.9:
            await self.end(server, name, producer, attempt)
        else:
            await self.check(server)

    async def answer(self, server: KafkaServer, call: Coroutine[Any, Any, Any]) -> Any:
        """Return the answer of a call; raise DiedError if the broker died before."""
        task = asyncio.ensure_future(call)
        await asyncio.wait({task, server.store.failed}, return_when=asyncio.FIRST_COMPLETED)
        if server.store.failed.done():
            task.cancel()
            with suppress(asyncio.CancelledError, AssertionError, IndexError):
                await task
            raise DiedError
        return task.result()

    async def begin(self, server: KafkaServer, name: int) -> None:
        """Begin a producer: what the one before had open is aborted."""
        made = TransactionalClient(server.client(), f"p{name}", second=self.second)
        self.producers[name] = None
        attempt = self.current[name]
        assert await self.answer(server, made.init()) == 0
        if attempt is not None and attempt.committed is None and not attempt.unknown:
            attempt.committed = False
        self.current[name] = None
        self.producers[name] = made

    async def write(self, server: KafkaServer, name: int, producer: TransactionalClient) -> None:
        attempt = self.current[name]
        if attempt is None:
            attempt = self.current[name] = Attempt()
            self.attempts.append(attempt)
        part = self.chance.randrange(PARTITIONS)
        values = [self.value() for _ in range(self.chance.randint(1, 3))]
        attempt.values[part] += values
        try:
            assert await self.answer(server, producer.write(*values, index=part)) == 0
        except DiedError:
            # A client that is not answered aborts: the next producer of the name does.
            attempt.committed, self.producers[name] = False, None
            raise

    async def place(
        self, server: KafkaServer, name: int, producer: TransactionalClient, attempt: Attempt
    ) -> None:
        self.number += 1
        offset = self.number
        try:
            if not self.second:
                assert await self.answer(server, producer.add_offsets("g")) == 0
            code = await self.answer(server, producer.commit_offset("g", offset, index=0))
        except DiedError:
            attempt.committed, self.producers[name] = False, None
            raise
        assert code == 0
        attempt.offset = offset

    async def end(
        self, server: KafkaServer, name: int, producer: TransactionalClient, attempt: Attempt
    ) -> None:
        commit = self.chance.random() < 0.6
        attempt.unknown = commit
        try:
            assert await self.answer(server, producer.end(commit=commit)) == 0
        except DiedError:
            if commit:
                self.offsets |= {attempt.offset} - {-1}
            else:
                attempt.committed = False
            self.producers[name] = None
            raise
        attempt.unknown, attempt.committed = False, commit
        if commit and attempt.offset >= 0:
            self.offsets = {attempt.offset}
        self.current[name] = None

    async def write_plain(self, server: KafkaServer) -> None:
        part = self.chance.randrange(PARTITIONS)
        answer = await self.answer(server, produced(server.client(), batch(1), index=part))
        assert answer.error_code == 0

    async def check(self, server: KafkaServer) -> None:
        """Compare what a committed reader gets with what it may get."""
        client = server.client()
        found = await self.answer(server, self.read(client))
        for part in range(PARTITIONS):
            assert found[part][: len(self.before[part])] == self.before[part]
            own = [value for value in found[part] if value.startswith(b"v")]
            assert own == sorted(own, key=lambda value: int(value[1:]))
            assert len(set(own)) == len(own)
            aborted = {
                value
                for attempt in self.attempts
                if attempt.committed is False
                for value in attempt.values[part]
            }
            assert not aborted & set(own)
        self.before = found
        _, offset = await self.answer(server, group_offset(client, "g"))
        assert offset in self.offsets

    async def read(self, client: KafkaClient) -> list[list[bytes]]:
        found = []
        for part in range(PARTITIONS):
            values, offset = [], 0
            while True:
                answer = await fetched(client, offset, index=part, isolation_level=1)
                assert not answer.error_code
                if not answer.records:
                    break
                values += [one.value or b"" for at, one in records(answer) if at >= offset]
                offset = next_offset(bytes(answer.records), offset)
            found.append(values)
        return found

    def value(self) -> bytes:
        self.number += 1
        return b"v%d" % self.number


@pytest.mark.parametrize("seed", SEEDS)
def test_a_committed_reader_sees_whole_transactions_once_and_in_order(
    tmp_path: Path, seed: int
) -> None:
    asyncio.run(History(tmp_path, seed).run())
