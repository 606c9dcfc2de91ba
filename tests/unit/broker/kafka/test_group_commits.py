"""Commits of groups: what they wait for, how long their notes are, and what they leave behind."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

from router.broker.consume import ClientConsumer, SubscriptionType
from router.broker.disk.files import Disk
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.consume.dispatch.bench import Notes
from tests.unit.broker.kafka.grouping import TOPIC, alone, commit, fetch, run
from tests.unit.broker.kafka.serving import DEADLINE, KafkaServer, with_server


class HeldDisk(Disk):
    """A disk whose syncs wait while `released` is not set; `asked` is set by a sync that waits."""

    def __init__(self) -> None:
        self.released, self.asked = threading.Event(), threading.Event()
        self.released.set()

    def sync_data(self, descriptor: int) -> None:
        if not self.released.is_set():
            self.asked.set()
            self.released.wait(DEADLINE)
        super().sync_data(descriptor)


def test_a_commit_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def test(server: KafkaServer) -> None:
        await server.topics.create(TOPIC, 2)
        client, reader, other = server.client(), server.client(), server.client()
        assert await commit(client, {0: 0}) == [0]
        disk.released.clear()
        waiting = asyncio.create_task(commit(client, {0: 0}, metadata="note"))
        try:
            assert await asyncio.to_thread(disk.asked.wait, DEADLINE)
            reading = asyncio.create_task(fetch(reader))
            for _ in range(3):
                await other.ask("ListGroups", 0)
            assert not waiting.done()
            # An offset that may still be lost is not answered.
            assert not reading.done()
        finally:
            disk.released.set()
        assert await waiting == [0]
        assert (await reading)[0] == (0, "note")
        assert (await fetch(client))[0] == (0, "note")

    with_server(tmp_path, test, disk=disk)


class FailingDisk(Disk):
    """A disk whose syncs fail once it `fails`."""

    def __init__(self) -> None:
        self.fails = False

    def sync_data(self, descriptor: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_data(descriptor)


def test_requests_about_offsets_are_refused_when_the_disk_fails(tmp_path: Path) -> None:
    disk = FailingDisk()

    async def test(server: KafkaServer) -> None:
        await server.topics.create(TOPIC, 2)
        client = server.client()
        assert await commit(client, {0: 0}) == [0]
        disk.fails = True
        assert await commit(client, {0: 0, 1: 0}) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
        topic = client.struct(
            "OffsetFetchRequest", "OffsetFetchRequestTopic", name="orders", partition_indexes=(0,)
        )
        answer = await client.ask("OffsetFetch", 7, group_id="g", topics=[topic])
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        topic = client.struct(
            "OffsetFetchRequest", "OffsetFetchRequestTopics", name="orders", partition_indexes=(0,)
        )
        group = client.struct(
            "OffsetFetchRequest", "OffsetFetchRequestGroup", group_id="g", topics=[topic]
        )
        answer = await client.ask("OffsetFetch", 8, groups=[group])
        assert answer.groups[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    with_server(tmp_path, test, disk=disk)


def test_the_longest_note_is_kept(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        note = "\u00fc" * 2_048
        assert await commit(client, {0: 3}, metadata=note) == [0]
        assert (await fetch(client))[0] == (3, note)
        longer = await commit(client, {0: 3}, metadata=note + "x")
        assert longer == [ErrorCode.OFFSET_METADATA_TOO_LARGE]

    run(tmp_path, test)


def test_offsets_that_a_consumer_goes_by_are_not_deleted(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        assert await commit(client, {0: 3}) == [0]
        found = server.topics.pieces(TOPIC)[0].subscriptions["g"]
        consumer: Any = ClientConsumer(Notes(), 1, "c")
        found.attach(consumer, SubscriptionType.EXCLUSIVE)
        refused = await client.ask("DeleteGroups", 2, groups_names=["g"])
        assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        assert await commit(client, {0: 4}) == [ErrorCode.UNKNOWN_MEMBER_ID]
        found.detach(consumer)
        deleted = await client.ask("DeleteGroups", 2, groups_names=["g"])
        assert deleted.results[0].error_code == 0
        assert (await fetch(client))[0] == (-1, "")

    run(tmp_path, test)


def test_requests_that_are_answered_leave_nothing_for_the_connection_s_end(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        await alone(client)
        session: Any = client.connection.session
        assert not session.on_close

    run(tmp_path, test)
