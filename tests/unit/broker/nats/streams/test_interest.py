"""Retention by interest and of work queues: what consumers and groups of all dialects hold back."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from errno import EIO
from pathlib import Path

import pytest

from router.broker.nats.streams import streams
from router.broker.nats.streams.log.interest import MAX_SKIPPED
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.stream import Stream
from router.broker.storage import Ack, partition_reader
from tests.unit.broker.nats.streaming import check_index, everything, streaming
from tests.unit.broker.storage.rig import FailingDisk


@dataclass
class Needing:
    """A consumer of one subject that has acknowledged some messages."""

    subject: str
    acknowledged: set[int] = field(default_factory=set)

    def needs(self, sequence: int, subject: str) -> bool:
        return subject == self.subject and sequence not in self.acknowledged

    def stored(self) -> None:
        """Deliver nothing."""

    def deleted(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Wait for nothing."""


async def left(stream: Stream) -> list[int]:
    await stream.settle()
    return [message.sequence for message in await everything(stream)]


@pytest.mark.parametrize("killed", [False, True])
def test_an_interest_stream_keeps_what_a_consumer_needs(tmp_path: Path, killed: bool) -> None:
    async def run() -> None:
        async with streaming(tmp_path, killed=killed) as rig:
            stream = await rig.create("S", "s.*", retention="interest")
            one, two = Needing("s.a"), Needing("s.a")
            stream.consumers.update(one=one, two=two)
            for subject in ("s.a", "s.b", "s.a"):
                await rig.publish(subject)
            assert await left(stream) == [1, 3]
            one.acknowledged.add(1)
            stream.acknowledged(1)
            assert await left(stream) == [1, 3]
            two.acknowledged.add(1)
            stream.acknowledged(1)
            assert await left(stream) == [3]
            del stream.consumers["two"]
            one.acknowledged.add(3)
            await stream.review_interest()
            assert await left(stream) == []
            await check_index(stream)
            await rig.store.synced()
        async with streaming(tmp_path) as rig:
            stream = await rig.streams.open("S")
            assert await left(stream) == []
            assert (await rig.publish("s.b"))["seq"] == 4

    asyncio.run(run())


def test_a_group_of_another_dialect_counts_as_interest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAINTENANCE_INTERVAL_SECONDS", 0.01)

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("S", "s", retention="interest")
            group = await stream.partition.subscribe("group", 0)
            await rig.publish("s")
            assert await left(stream) == [1]
            assert group.record is not None
            rig.store.acknowledge(group.record, Ack(0))
            async with asyncio.timeout(10):
                while await left(stream):  # noqa: ASYNC110 - a timer is waited for
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_work_queue_deletes_what_its_consumer_acknowledged(tmp_path: Path) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("S", "s.*", retention="workqueue")
            one = Needing("s.a")
            stream.consumers["one"] = one
            for subject in ("s.a", "s.b", "s.a"):
                await rig.publish(subject)
            assert await left(stream) == [1, 2, 3]
            one.acknowledged.update((1, 3))
            stream.acknowledged(1)
            stream.acknowledged(3)
            assert await left(stream) == [2]
            await check_index(stream)

    asyncio.run(run())


def test_a_work_queue_deletes_later_what_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAINTENANCE_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))
    disk = FailingDisk()

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("S", "s.*", retention="workqueue")
            for _ in range(40):
                await rig.publish("s.a", bytes(100))
        async with streaming(tmp_path, disk=disk) as rig:
            stream = await rig.streams.open("S")
            one = stream.consumers["one"] = Needing("s.a")
            disk.failures = 3
            for sequence in (1, 2, 3):
                one.acknowledged.add(sequence)
                stream.acknowledged(sequence)
            with pytest.raises(OSError, match="Input/output error"):
                await stream.settle()
            async with asyncio.timeout(10):
                while 1 in await left(stream):  # noqa: ASYNC110 - a timer is waited for
                    await asyncio.sleep(0.01)
            assert await left(stream) == list(range(4, 41))

    asyncio.run(run())


async def test_one_message_that_cannot_be_read_keeps_no_other_in_a_work_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with streaming(tmp_path) as rig:
        stream = await rig.create("S", "s.*", retention="workqueue")
        for _ in range(400):
            rig.send("s.a")
        rig.publisher.flush()
        await rig.answered()
        one = stream.consumers["one"] = Needing("s.a")
        read, bad, tried = stream.log.read, {2, *range(10, 210)}, list[int]()

        async def failing(sequence: int) -> StoredMessage | None:
            tried.append(sequence)
            if sequence in bad:
                raise OSError(EIO, os.strerror(EIO))
            return await read(sequence)

        monkeypatch.setattr(stream.log, "read", failing)
        for sequence in range(1, 401):
            one.acknowledged.add(sequence)
            stream.acknowledged(sequence)
        with pytest.raises(OSError, match="Input/output error"):
            await stream.interest.settle()
        kept = {sequence for sequence in range(1, 401) if stream.contains(sequence)}
        assert bad <= kept
        assert max(kept) < 210 + MAX_SKIPPED
        assert not kept & {1, *range(3, 10)}
        assert len(bad & {*tried}) < 12
        bad.clear()
        await stream.interest.maintain()
        await stream.interest.settle()
        assert not stream.messages


def test_what_other_dialects_publish_without_interest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAINTENANCE_INTERVAL_SECONDS", 0.01)

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("S", "s.*", retention="interest")
            stream.consumers["one"] = Needing("s.a")
            for expected in ([1], [1, 3]):
                await rig.append_foreign(stream, "s.a", "s.b")
                async with asyncio.timeout(10):
                    while await left(stream) != expected:  # noqa: ASYNC110 - a timer is waited for
                        await asyncio.sleep(0.01)

    asyncio.run(run())


async def closed_meanwhile() -> None:
    """Wait for work of a stream that is closed."""
    work = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(work.cancel)
    await asyncio.shield(work)


def test_streams_are_maintained_though_one_is_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAINTENANCE_INTERVAL_SECONDS", 0.01)

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream, maintained = await rig.create("S", "s"), asyncio.Event()

            calls = itertools.count(1)

            async def maintain() -> None:
                if next(calls) == 2:
                    maintained.set()
                await closed_meanwhile()

            monkeypatch.setattr(stream.interest, "maintain", maintain)
            await asyncio.wait_for(maintained.wait(), 10)

    asyncio.run(run())


def test_streams_are_opened_though_one_is_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            first, second = await rig.create("A", "a"), await rig.create("B", "b")
            opened = asyncio.Event()

            async def open_second() -> None:
                opened.set()

            monkeypatch.setattr(first, "open", closed_meanwhile)
            monkeypatch.setattr(second, "open", open_second)
            await rig.streams._open_configured([first.topic.name, second.topic.name])
            assert opened.is_set()

    asyncio.run(run())


def test_nothing_is_deleted_before_all_consumers_are_restored(tmp_path: Path) -> None:
    class Consumers:
        """A consumer that needs nothing is restored a while before one that needs a message."""

        async def load(self, stream: Stream) -> None:
            stream.acknowledged(1)
            for _ in range(10):
                await asyncio.sleep(0)
            stream.consumers["two"] = Needing("s")

        async def configured(self, stream: Stream) -> None: ...

        def close(self, stream: Stream) -> None: ...

    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("S", "s", retention="interest")
            stream.consumers["two"] = Needing("s")
            await rig.publish("s")
        async with streaming(tmp_path) as rig:
            rig.streams.consumers = Consumers()
            assert await left(await rig.streams.open("S")) == [1]

    asyncio.run(run())
