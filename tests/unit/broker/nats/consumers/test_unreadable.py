"""Durable consumers on a disk that cannot be read as they are restored, changed, or served."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from errno import EIO
from pathlib import Path

import pytest

from router.broker.consume.visible import Visible
from router.broker.nats.consumers import deliveries
from router.broker.nats.consumers.log import ConsumerLog
from router.broker.nats.streams.stream import Stream
from router.broker.storage import partition_reader
from router.model import TopicName
from tests.unit.broker.nats.serving import STREAM, Inbox, payloads, serving
from tests.unit.broker.storage.rig import FailingDisk


@pytest.mark.parametrize("failures", [3, 1_000])
@pytest.mark.parametrize("retention", ["workqueue", "limits"])
async def test_what_could_not_be_read_is_not_taken_for_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str, failures: int
) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))
    async with serving(tmp_path) as served:
        await served.stream(retention=retention)
        for number in range(10):
            await served.publish(b"%d" % number)
        await served.consumer("c", ack_wait=60_000_000_000)
        taken = await served.pull("c", 6)
        await served.acknowledge(taken[0])
    disk, restore = FailingDisk(), ConsumerLog.restore

    async def failing(log: ConsumerLog, visible: Visible) -> list[int]:
        disk.failures = failures
        try:
            return await restore(log, visible)
        finally:
            disk.failures = 0

    async with serving(tmp_path, disk=disk) as served:
        with monkeypatch.context() as patched:
            patched.setattr(ConsumerLog, "restore", failing)
            reply = await served.call("STREAM.INFO.S")
            assert "cannot be restored" in reply["error"]["description"]
        assert (await served.info("c"))["num_ack_pending"] == 5
        kept = (await served.call("STREAM.INFO.S"))["state"]["messages"]
        assert kept == (9 if retention == "workqueue" else 10)
        assert payloads(await served.pull("c", 4)) == [b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("retention", ["workqueue", "interest", "limits"])
async def test_what_could_not_be_read_is_delivered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(deliveries, "RETRY_SECONDS", 0.01)
    async with serving(tmp_path) as served:
        await served.stream(retention=retention)
        await served.consumer("c", ack_wait=60_000_000_000)
        for number in range(10):
            await served.publish(b"%d" % number)
    disk = FailingDisk()
    async with serving(tmp_path, disk=disk) as served:
        assert (await served.info("c"))["num_pending"] == 10
        disk.failures = 3
        assert payloads(await served.pull("c", 10)) == [b"%d" % number for number in range(10)]
        assert not disk.failures


@pytest.mark.parametrize("changed", ["a pull consumer", "a push consumer", "the stream"])
async def test_a_change_after_which_nothing_can_be_counted_is_in_force_and_deliveries_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setattr(deliveries, "RETRY_SECONDS", 0.01)
    async with serving(tmp_path) as served:
        await served.stream("s.>", "t.>")
        is_push = changed == "a push consumer"
        to = {"deliver_subject": "out"} if is_push else {}
        await served.consumer("c", filter_subjects=["s.>"], **to)
        for number in range(20):
            await served.publish(b"%d" % number, subject=f"{'st'[number % 2]}.{number % 3}")
        stream, inbox = served.server.streams.find("S"), Inbox()
        served.hub.subscribe("in", inbox)
        count, failures = stream.log.count_from, [1, 2]

        async def failing(sequence: int, filters: Sequence[str]) -> int:
            if failures:
                failures.pop()
                raise OSError(EIO, os.strerror(EIO))
            return await count(sequence, filters)

        monkeypatch.setattr(stream.log, "count_from", failing)
        if changed == "the stream":
            config = (await served.call("STREAM.INFO.S"))["config"]
            config["subjects"] = ["s.>", "u.>"]
            reply = await served.call("STREAM.UPDATE.S", **config)
        else:
            members = {"filter_subjects": ["t.>"]} | ({"deliver_subject": "in"} if is_push else {})
            config = (await served.info("c"))["config"] | members
            reply = await served.call("CONSUMER.CREATE.S.c", stream_name="S", config=config)
        assert "Input/output error" in reply["error"]["description"]
        if not is_push:
            waits = {"expires": 60_000_000_000} if changed == "the stream" else {"no_wait": True}
            served.ask("c", "in", batch=9, **waits)
        expected = 10 if is_push else 9
        numbers = payloads(await inbox.until(expected))
        first = int(changed != "the stream")
        assert numbers[:expected] == [b"%d" % (2 * place + first) for place in range(expected)]
        assert (await served.info("c"))["num_pending"] == 10 - expected
        assert not failures


async def test_consumers_go_on_with_a_configuration_after_which_nothing_could_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_stream: Stream) -> None:
        raise OSError(EIO, os.strerror(EIO))

    async with serving(tmp_path) as served:
        await served.stream("s.>")
        await served.consumer("c", filter_subjects=["s.>"])  # all that there is for now
        config = (await served.call("STREAM.INFO.S"))["config"]
        config["subjects"] = ["s.>", "t.>"]
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "settle", fail)
            reply = await served.call("STREAM.UPDATE.S", **config)
        assert "Input/output error" in reply["error"]["description"]
        for subject in ("t.a", "s.a"):
            await served.publish(subject.encode(), subject=subject)
        assert payloads(await served.pull("c")) == [b"s.a"]


async def test_a_source_that_takes_the_place_of_one_being_counted_is_counted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served:
        await served.stream("s.>", "t.>")
        await served.consumer("c", filter_subjects=["s.>"])
        await served.publish(*[b"x"] * 20)
        stream, inbox = served.server.streams.find("S"), Inbox()
        served.hub.subscribe("in", inbox)
        consumer = stream.consumers["c"]
        count, goes_on = stream.log.count_from, asyncio.Event()

        async def held(sequence: int, filters: Sequence[str]) -> int:
            await goes_on.wait()
            return await count(sequence, filters)

        monkeypatch.setattr(stream.log, "count_from", held)
        consumer.stream_changed()
        served.ask("c", "in", batch=5, expires=60_000_000_000)
        await asyncio.sleep(0)
        consumer.stream_changed()
        counting = asyncio.create_task(consumer.count())
        await asyncio.sleep(0.01)
        goes_on.set()
        replies = [one.reply for one in await inbox.until(5)]
        await counting
        assert [int(reply.rpartition(".")[2]) for reply in replies] == [19, 18, 17, 16, 15]
        assert consumer.num_pending == 15


async def test_a_stream_that_is_deleted_while_it_is_configured_keeps_no_group_from_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served:
        await served.stream("s.>", retention="workqueue")
        await served.consumer("c", filter_subjects=["s.a"])
        stream, settle = served.server.streams.find("S"), Stream.settle

        async def deleted(_stream: Stream) -> None:
            await served.topics.delete(TopicName.parse(STREAM))
            while not stream.closed or stream.consumers:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
            await settle(stream)

        config = (await served.call("STREAM.INFO.S"))["config"]
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "settle", deleted)
            reply = await served.call("STREAM.UPDATE.S", **config | {"max_msgs": 10})
        assert reply["error"]["err_code"] == 10059
        served.topics.live_members.check_free(STREAM, {})
