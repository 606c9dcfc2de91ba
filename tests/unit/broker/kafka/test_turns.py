"""A producer of much and the others: whose bytes a commit group has, and in which order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from router.broker.kafka.batch_appends import MAX_SHARE_BYTES
from router.broker.kafka.failures import ErrorCode
from router.model import TopicName
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.kafka.test_produce import batch, fields, produced
from tests.unit.broker.storage.disks import HeldDisk
from tests.unit.broker.storage.rig import until

LARGE = MAX_SHARE_BYTES
TOPICS = "small", "large"


async def stored(client: KafkaClient) -> int:
    """Return the offset of the batch that the next response is about."""
    part = (await client.receive()).responses[0].partition_responses[0]
    assert part.error_code == 0
    return int(part.base_offset)


async def made(server: KafkaServer) -> tuple[KafkaClient, KafkaClient]:
    for topic in TOPICS:
        await server.topics.create(TopicName.parse(topic))
    return server.client(), server.client()


async def test_a_batch_is_not_written_with_the_large_ones_of_another(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with serving(tmp_path, disk=disk) as server:
        large, small = await waiting(server, disk), server.client()
        journal = server.store._journal
        try:
            large.send("Produce", 9, **fields(large, batch(2, size=LARGE), topic="large"))
            small.send("Produce", 9, **fields(small, batch(1), topic="small"))
            # What waits for the disk is one small batch: the large ones are not appended.
            assert 0 < journal.pending.size < 1_000
            assert journal.unsynced > LARGE
        finally:
            disk.release()
        assert await stored(small) == 2
        assert [await stored(large) for _ in range(2)] == [0, 2]
        assert (journal._turns.size, journal.unsynced) == (0, 0)


async def test_a_connection_keeps_its_order_whatever_the_sizes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        _, client = await made(server)
        sizes = [LARGE, 5, LARGE, LARGE // 2, 5, LARGE]
        for size in sizes:
            client.send("Produce", 9, **fields(client, batch(1, size=size), topic="large"))
        assert [await stored(client) for _ in sizes] == list(range(len(sizes)))


async def waiting(server: KafkaServer, disk: HeldDisk) -> KafkaClient:
    """Return a client whose large batch waits for its turn behind a commit group, which is held."""
    small, large = await made(server)
    assert (await produced(small, batch(1), topic="small")).base_offset == 0
    disk.hold()
    small.send("Produce", 9, **fields(small, batch(1), topic="small"))
    async with asyncio.timeout(20):
        await asyncio.to_thread(disk.held.wait)
    large.send("Produce", 9, **fields(large, batch(2, size=LARGE), topic="large"))
    await until(lambda: server.store._journal._turns.size > LARGE)
    return large


async def test_a_stop_waits_for_what_waits_for_a_turn(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with serving(tmp_path, disk=disk) as server:
        large = await waiting(server, disk)
        settled = asyncio.create_task(large.connection.settled())
        await asyncio.sleep(0)
        assert not settled.done()
        disk.release()
        await settled
        await server.synced()
        assert await stored(large) == 0


async def test_the_end_of_the_store_comes_after_what_waits_for_a_turn(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with serving(tmp_path, disk=disk) as server:
        (await waiting(server, disk)).leave()
        disk.release()
    async with serving(tmp_path, disk=disk) as server:
        assert (await produced(server.client(), batch(1), topic="large")).base_offset == 2


async def test_no_turn_comes_once_the_disk_has_failed(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with serving(tmp_path, disk=disk) as server:
        large = await waiting(server, disk)
        server.store.fail(OSError("the disk is gone"))
        disk.release()
        part = (await large.receive()).responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert server.store._journal._turns.size == 0
