"""What clients delete, and what no consumer needs, is there until its deletion is on disk.

What a limit takes is gone at once, and deleted again when the stream is opened after a kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.broker.nats.streams.log import limits, stream_log
from router.broker.nats.streams.log.indexing import MAX_INLINE_ENTRIES
from router.broker.nats.streams.log.subject_index import MAX_PLACES
from router.broker.nats.streams.stream import Stream
from router.broker.storage import journal
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.serving import Inbox, Serving, serving
from tests.unit.broker.nats.streaming import Anyone, Clock, Rig
from tests.unit.broker.nats.streams.test_publishing import with_streams
from tests.unit.broker.storage.disks import HeldDisk

ALL = [1, 2, 3, 4]
CALLS: list[tuple[str, dict[str, Any], list[int]]] = [
    ("STREAM.MSG.DELETE.S", {"seq": 2}, [1, 3, 4]),
    ("STREAM.PURGE.S", {}, []),
    ("STREAM.PURGE.S", {"seq": 3}, [3, 4]),
    ("STREAM.PURGE.S", {"keep": 1}, [4]),
    ("STREAM.PURGE.S", {"filter": "s.a"}, [3]),
]


def left(served: Serving) -> list[int]:
    """Return the sequences that readers of all dialects find."""
    stream = served.server.streams.find("S")
    return [one for one in range(1, stream.log.last_sequence + 1) if stream.contains(one)]


@asynccontextmanager
async def filled(folder: Path, disk: HeldDisk, **config: Any) -> AsyncIterator[Serving]:
    """Serve a stream of the subjects a, a, b, a; the third is of b."""
    async with serving(folder, disk) as served:
        await served.stream(**config)
        await served.consumer("c")
        for subject in ("s.a", "s.a", "s.b", "s.a"):
            await served.publish(b"", subject=subject)
        await served.stored()
        yield served


async def held(disk: HeldDisk) -> None:
    """Return when a sync waits."""
    assert await asyncio.to_thread(disk.held.wait, 10)


@pytest.mark.parametrize(("call", "body", "rest"), CALLS)
def test_deleted_message_is_found_until_its_deletion_is_on_disk(
    tmp_path: Path, call: str, body: dict[str, Any], rest: list[int]
) -> None:
    async def test() -> None:
        disk = HeldDisk()
        async with filled(tmp_path, disk) as served:
            disk.hold()
            try:
                answer = asyncio.create_task(served.call(call, **body))
                await held(disk)
                assert left(served) == ALL
                assert not answer.done()
            finally:
                disk.release()
            assert (await answer)["success"]
            assert left(served) == rest
            info = await served.call("STREAM.INFO.S")
            assert info["state"]["messages"] == len(rest)

    asyncio.run(test())


def test_what_is_published_during_a_purge_stays(tmp_path: Path) -> None:
    async def test() -> None:
        disk = HeldDisk()
        async with filled(tmp_path, disk) as served:
            disk.hold()
            try:
                answer = asyncio.create_task(served.call("STREAM.PURGE.S"))
                await held(disk)
                publish = asyncio.create_task(served.publish(b"later"))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                stream: Stream = served.server.streams.find("S")
                assert stream.ledger.next_index == len(ALL) + 1
            finally:
                disk.release()
            assert (await answer)["purged"] == len(ALL)
            await publish
            await served.stored()
            assert left(served) == [5]
            info = await served.call("STREAM.INFO.S", subjects_filter=">")
            assert (info["state"]["messages"], info["state"]["subjects"]) == (1, {"s.a": 1})

    asyncio.run(test())


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_acknowledged_message_is_found_until_its_deletion_is_on_disk(
    tmp_path: Path, retention: str
) -> None:
    async def test() -> None:
        disk = HeldDisk()
        async with filled(tmp_path, disk, retention=retention) as served:
            [message] = await served.pull("c", 1)
            disk.hold()
            try:
                acknowledgement = asyncio.create_task(served.acknowledge(message))
                await held(disk)
                await served.call("CONSUMER.NAMES.S")
                assert left(served) == ALL
            finally:
                disk.release()
            await acknowledgement
            await served.call("STREAM.INFO.S")
            assert left(served) == ALL[1:]

    asyncio.run(test())


async def turns() -> None:
    """Let calls that wait for nothing but the event loop go as far as they can."""
    for _ in range(100):
        await asyncio.sleep(0)


async def through(disk: HeldDisk) -> None:
    """Let the sync that waits end, and return when the next one waits."""
    disk.release()
    disk.hold()
    await held(disk)


def test_two_purges_at_once_keep_what_each_is_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_log, "SCAN_MESSAGES", 4)

    async def test() -> None:
        disk = HeldDisk()
        async with filled(tmp_path, disk) as served:
            await served.publish(*[b""] * MAX_PLACES)  # s.a has more than the index has places of
            disk.hold()
            try:
                calls = [
                    asyncio.create_task(served.call("STREAM.PURGE.S", filter="s.a", keep=1))
                    for _ in range(2)
                ]
                await turns()
            finally:
                disk.release()
            answers = [await call for call in calls]
            assert sum(answer["purged"] for answer in answers) == MAX_PLACES + 2
            assert left(served) == [3, len(ALL) + MAX_PLACES]

    asyncio.run(test())


def test_purge_of_a_subject_leaves_the_counts_right_if_the_index_is_built_again_meanwhile(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        disk = HeldDisk()
        async with filled(tmp_path, disk) as served:
            for _ in range(MAX_INLINE_ENTRIES):
                await served.publish(b"", subject="s.b")
            await served.publish(b"", b"", subject="s.c")
            stream: Stream = served.server.streams.find("S")
            disk.hold()
            try:
                answer = asyncio.create_task(served.call("STREAM.PURGE.S", filter="s.c"))
                await held(disk)
                served.store.delete_messages(stream.ledger, [(0, 0)])  # as another dialect does
                assert not stream.is_ready()  # the first entries are read, and no others
            finally:
                disk.release()
            assert (await answer)["purged"] == 2
            info = await served.call("STREAM.INFO.S", subjects_filter=">")
            rest = {"s.a": 2, "s.b": 1 + MAX_INLINE_ENTRIES}
            assert (info["state"]["messages"], info["state"]["subjects"]) == (
                sum(rest.values()),
                rest,
            )

    asyncio.run(test())


def test_conditions_know_what_was_published_during_a_purge(tmp_path: Path) -> None:
    """A key that is created while a bucket is purged is not created again."""
    block = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n"

    async def test() -> None:
        disk = HeldDisk()
        async with filled(tmp_path, disk) as served:
            inbox = Inbox()
            served.hub.subscribe("acks", inbox)
            stream: Stream = served.server.streams.find("S")
            publisher = served.server.streams.publisher(lambda: None, lambda: None)
            disk.hold()
            try:
                answer = asyncio.create_task(served.call("STREAM.PURGE.S"))
                await held(disk)
                publisher.publish(stream, NatsMessage("s.k", "acks", block, b"1"))
                publisher.flush()
                await through(disk)
                assert (await answer)["purged"] == len(ALL)
                publisher.publish(stream, NatsMessage("s.k", "acks", block, b"2"))
                publisher.flush()
            finally:
                disk.release()
            created, refused = sorted(one.payload for one in await inbox.until(2))
            assert b'"seq":5' in created + refused
            assert b"10071" in created + refused
            assert left(served) == [5]
            publisher.close()

    asyncio.run(test())


TAKING: list[dict[str, Any]] = [
    {"max_msgs": 2},
    {"max_bytes": 5_000},
    {"max_msgs_per_subject": 2},
    {"max_age": 100_000_000},
]


async def filled_to_the_limit(rig: Rig, limit: dict[str, Any]) -> Stream:
    """Fill a stream, of whose 20 messages a limit is to take all but two."""
    stream = await rig.create("S", "s.>", **limit)
    for sequence in range(1, 21):
        if sequence == 19:
            rig.clock.now += 60
        await rig.publish("s.a", bytes(2_000))
    return stream


async def taken(rig: Rig, limit: dict[str, Any]) -> Stream:
    """Return such a stream when the limit has taken them."""
    stream = await filled_to_the_limit(rig, limit)
    async with asyncio.timeout(10):
        while there(stream) != [19, 20]:  # noqa: ASYNC110 - for age, a timer is waited for
            await asyncio.sleep(0.01)
    return stream


def there(stream: Stream) -> list[int]:
    return [one for one in range(1, stream.log.last_sequence + 1) if stream.contains(one)]


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what no client waits for journalled no sooner than a client waits for something."""
    monkeypatch.setattr(journal, "LINGER_SECONDS", 3_600.0)


@pytest.mark.parametrize("limit", TAKING)
def test_what_a_limit_took_right_before_a_kill_is_not_in_an_open_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    """What it took in memory only is on disk as if it had taken nothing yet."""
    monkeypatch.setattr(limits, "MAX_DELETED_AT_ONCE", 5)  # so that one look is not enough
    clock = Clock()

    async def before(rig: Rig) -> None:
        assert there(await filled_to_the_limit(rig, limit)) == list(range(1, 21))

    async def after(rig: Rig) -> None:
        stream = rig.streams.find("S")
        assert len(there(stream)) > 2
        await stream.open()
        assert there(stream) == [19, 20]

    with monkeypatch.context() as late:
        late.setattr(limits.StreamLimits, "enforce", lambda _: True)
        with_streams(tmp_path, before, clock=clock, killed=True)
    with_streams(tmp_path, after, clock=clock)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("limit", TAKING)
def test_what_a_limit_took_stays_deleted_when_the_limit_is_lifted_right_before_a_kill(
    tmp_path: Path, limit: dict[str, Any]
) -> None:
    clock = Clock()

    async def before(rig: Rig) -> None:
        stream = await taken(rig, limit)
        config = StreamConfig.from_json(stream.config.to_json() | dict.fromkeys(limit, 0))
        await rig.streams.update(config, Anyone(), pedantic=False)

    async def after(rig: Rig) -> None:
        stream = await rig.streams.open("S")
        await stream.settle()
        assert there(stream) == [19, 20]

    with_streams(tmp_path, before, clock=clock, killed=True)
    with_streams(tmp_path, after, clock=clock)


@pytest.mark.parametrize(("limit", "left_of_b"), [(-1, MAX_PLACES + 1), (3, 3)])
def test_a_limit_of_subjects_takes_nothing_once_another_one_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, left_of_b: int
) -> None:
    """Of many messages it takes some after the call that set it."""
    delete_matching = stream_log.StreamLog.delete_matching
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def held(*arguments: Any) -> int:
        began.set()
        await goes_on.wait()
        return await delete_matching(*arguments)

    async def test(rig: Rig) -> None:
        stream = await rig.create("S", "s.>")
        for subject in ("s.a", "s.b"):
            for _ in range(MAX_PLACES + 1):
                await rig.publish(subject)
        monkeypatch.setattr(stream_log.StreamLog, "delete_matching", held)
        few = replace(stream.config, max_msgs_per_subject=5)
        first = asyncio.create_task(rig.streams.update(few, Anyone(), pedantic=False))
        await began.wait()
        await first
        other = replace(stream.config, max_msgs_per_subject=limit)
        second = asyncio.create_task(rig.streams.update(other, Anyone(), pedantic=False))
        while stream.config.max_msgs_per_subject != limit:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        goes_on.set()
        await second
        while stream.limits._task is not None:  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0)
        await stream.settle()
        index = stream.log.index
        assert index is not None
        assert index.subjects["s.b"].count == left_of_b
        assert index.subjects["s.a"].count <= 5

    with_streams(tmp_path, test)
