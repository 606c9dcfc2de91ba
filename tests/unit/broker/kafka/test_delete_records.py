"""DeleteRecords: readers find the messages until their deletion is on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from router.model import TopicName
from tests.unit.broker.kafka.serving import serving
from tests.unit.broker.kafka.test_fetch import listed
from tests.unit.broker.storage.disks import HeldDisk
from tests.unit.broker.storage.rig import fill, payload

EARLIEST = -2


async def test_deleted_records_are_found_until_that_is_on_disk(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with serving(tmp_path, disk=disk) as server:
        name = TopicName.parse("persistent://public/default/t")
        await server.topics.create(name)
        client, reader = server.client(), server.client()
        (ledger_id,) = server.topics.whole(str(name)).ledger_ids
        await fill(server.store, server.store.ledger(ledger_id), [payload(n) for n in range(4)])
        request = "DeleteRecordsRequest"
        partition = client.struct(request, "DeleteRecordsPartition", partition_index=0, offset=3)
        topic = client.struct(request, "DeleteRecordsTopic", name="t", partitions=[partition])
        disk.hold()
        try:
            answer = asyncio.create_task(
                client.ask("DeleteRecords", 2, topics=[topic], timeout_ms=9_000)
            )
            assert await asyncio.to_thread(disk.held.wait, 10)
            assert (await listed(reader, EARLIEST)).offset == 0
            assert not answer.done()
        finally:
            disk.release()
        ((result,),) = [topic.partitions for topic in (await answer).topics]
        assert (result.error_code, result.low_watermark) == (0, 3)
        assert (await listed(reader, EARLIEST)).offset == 3
