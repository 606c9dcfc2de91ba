"""What Kafka's clients are answered where files are damaged, or cannot be read for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import StartPosition
from router.broker.kafka.failures import ErrorCode
from router.broker.storage import KAFKA_FORMAT, Ack, partition_reader
from router.broker.storage.segments import file_of
from router.broker.topics.groups import TopicSubscriptions
from router.broker.transactions import coordinator
from router.model import TopicName
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.kafka.test_fetch import fetched, records
from tests.unit.broker.kafka.test_produce import FULL, TOPIC, batch
from tests.unit.broker.kafka.transacting import TransactionalClient, group_offset
from tests.unit.broker.storage.rig import NOW_MS, SMALL, FailingDisk

COUNT = 40
NAME = TopicName.parse(FULL)


async def filled(server: KafkaServer) -> Any:
    """Return the one partition of a new topic, with COUNT entries of one message."""
    await server.topics.create(NAME, 0)
    partition: Any = server.topics.opened(FULL)
    for _ in range(COUNT):
        partition.ledger.append(bytes(batch(1)), KAFKA_FORMAT, 1, NOW_MS, lambda _: None)
        await server.synced()
    return partition


async def position(client: KafkaClient) -> tuple[int, int]:
    topic = client.struct(
        "OffsetFetchRequest", "OffsetFetchRequestTopic", name=TOPIC, partition_indexes=[0]
    )
    answer = await client.ask("OffsetFetch", 7, group_id="g", topics=[topic])
    (found,) = answer.topics[0].partitions
    return found.error_code, found.committed_offset


@pytest.mark.parametrize("failures", [6, 1_000])  # an index and its segment, three times
async def test_no_offset_is_made_up_while_a_disk_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))
    async with serving(tmp_path, options=SMALL) as server:
        partition = await filled(server)
        start = StartPosition(earliest=True)
        await TopicSubscriptions(server.topics).subscribe(NAME, "g", start)
        record = partition.subscriptions["g"].record
        server.store.acknowledge(record, Ack(1, cumulative=True))
        await server.synced()
    disk = FailingDisk()
    async with serving(tmp_path, options=SMALL, disk=disk) as server:
        client = server.client()
        disk.failures = failures
        assert await position(client) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        disk.failures = failures
        assert (await fetched(client, 3)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        disk.failures = 0
        assert await position(client) == (0, 2)
        assert records(await fetched(client, 3))[0][0] == 3


async def test_a_reader_passes_over_nothing_that_can_be_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))
    async with serving(tmp_path, options=SMALL) as server:
        await filled(server)
    disk = FailingDisk()
    async with serving(tmp_path, options=SMALL, disk=disk) as server:
        client, seen, refused = server.client(), list[int](), 0
        while len(seen) < COUNT:
            disk.failures = 0 if refused > len(seen) else 3
            part = await fetched(client, len(seen), partition_max_bytes=300)
            if part.error_code:
                assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                refused = len(seen) + 1
            seen += [offset for offset, _ in records(part)]
        assert seen == list(range(COUNT))
        assert refused


async def test_a_committed_position_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(coordinator, "RETRY_SECONDS", (0.0, 0.0))
    async with serving(tmp_path, options=SMALL) as server:
        await filled(server)
    disk = FailingDisk()
    async with serving(tmp_path, options=SMALL, disk=disk) as server:
        client = server.client()
        writer = TransactionalClient(client)
        await writer.init()
        await writer.write(b"copy of what was read up to 10")
        await writer.add_offsets("g")
        await writer.commit_offset("g", 10)
        disk.failures = 3
        assert await writer.end(commit=True) == ErrorCode.NONE
        assert not disk.failures
        assert await group_offset(client, "g") == (0, 10)


@pytest.mark.parametrize("damaged", range(5))
async def test_behind_damage_the_offset_asked_for_is_the_first(
    tmp_path: Path, damaged: int
) -> None:
    async with serving(tmp_path, options=SMALL) as server:
        ledger = (await filled(server)).ledger
    async with serving(tmp_path, options=SMALL) as server:
        segment = server.topics.opened(FULL).ledger.segments[1]  # type: ignore[union-attr]
    path = file_of(tmp_path / "data" / "ledgers", ledger.id, segment)
    data, hit = bytearray(path.read_bytes()), segment.first_entry + damaged
    entries = segment.next_entry - segment.first_entry
    assert damaged < entries
    data[len(data) * (2 * damaged + 1) // (2 * entries)] ^= 1
    path.write_bytes(data)
    async with serving(tmp_path, options=SMALL) as server:
        client = server.client()
        for offset in range(COUNT):
            found = records(await fetched(client, offset))
            assert found[0][0] == offset + (offset == hit), offset
