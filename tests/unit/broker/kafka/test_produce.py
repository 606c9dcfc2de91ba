"""Produce: what is stored, what is refused, and in which order it is answered."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import Producer, ProducerAccess
from router.broker.entries.proving import prove_batch
from router.broker.kafka import batch_appends as producing
from router.broker.kafka.failures import ErrorCode
from router.broker.storage import KAFKA_FORMAT
from router.broker.topics.changes import change_policies, change_properties
from router.model import TopicName
from router.settings import load
from router.wire.kafka.record_batches import HEADER_BYTES, build_batch, sign_batch
from router.wire.kafka.records import write_record
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.storage.disks import HeldDisk

TOPIC = "t"
FULL = "persistent://public/default/t"
VERSIONS = range(3, 13)
CODECS = range(5)


def batch(values: int = 3, *, size: int = 5, **fields: Any) -> bytes:
    records = [write_record(n, n, b"k", bytes([n % 256]) * size) for n in range(values)]
    return bytes(build_batch(records, 1_000, 1_000 + values - 1, **fields))


def changed(at: int, form: str, *values: int, signed: bool = True) -> bytes:
    """A batch with other values at an offset of its header."""
    made = bytearray(batch())
    struct.pack_into(form, made, at, *values)
    if signed:
        sign_batch(made)
    return bytes(made)


def fields(
    client: KafkaClient, *batches: bytes | None, acks: int = -1, topic: str = TOPIC, index: int = 0
) -> dict[str, Any]:
    parts = [
        client.struct("ProduceRequest", "PartitionProduceData", index=index, records=records)
        for records in batches
    ]
    data = client.struct("ProduceRequest", "TopicProduceData", name=topic, partition_data=parts)
    return {"acks": acks, "timeout_ms": 1_000, "topic_data": [data]}


async def produced(
    client: KafkaClient, *batches: bytes | None, version: int = 9, **how: Any
) -> Any:
    """Send batches for one partition and return its answer."""
    answer = await client.ask("Produce", version, **fields(client, *batches, **how))
    (topic,) = answer.responses
    assert topic.name == how.get("topic", TOPIC)
    return topic.partition_responses[0]


async def with_topic(server: KafkaServer) -> KafkaClient:
    await server.topics.create(TopicName.parse(FULL))
    return server.client()


@asynccontextmanager
async def on_topic(folder: Path, **how: Any) -> AsyncIterator[tuple[KafkaServer, KafkaClient]]:
    async with serving(folder, **how) as server:
        yield server, await with_topic(server)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_batch_is_stored_as_it_came(tmp_path: Path, version: int) -> None:
    async with on_topic(tmp_path) as (server, client):
        first = await produced(client, batch(3), version=version)
        second = await produced(client, batch(2), version=version)
        assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 3)
        assert second.log_start_offset == (0 if version >= 5 else -1)
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        entries = await ledger.read(0, 10, 1 << 20)
        assert [entry.payload for entry in entries] == [batch(3), batch(2)]
        assert {entry.format for entry in entries} == {KAFKA_FORMAT}
        assert [entry.messages for entry in entries] == [3, 2]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [5, 5_000])
async def test_every_compression_is_taken(tmp_path: Path, codec: int, size: int) -> None:
    async with on_topic(tmp_path) as (_, client):
        assert (await produced(client, batch(9, size=size, codec=codec))).error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", [0, 1])
async def test_a_compacted_topic_takes_records_with_keys_only(
    tmp_path: Path, version: int, codec: int
) -> None:
    keys = b"a", None, b"", None
    records = [write_record(n, n, key, b"v") for n, key in enumerate(keys)]
    sent = bytes(build_batch(records, 1_000, 1_003, codec=codec))
    async with on_topic(tmp_path) as (server, client):
        assert (await produced(client, sent, version=version)).error_code == 0
        name = TopicName.parse(FULL)
        await change_policies(server.topics, name, {"cleanup_policy": "compact"}, [])
        refused = await produced(client, sent, version=version)
        assert refused.error_code == ErrorCode.INVALID_RECORD
        if version >= 8:
            assert "key" in refused.error_message
            assert [found.batch_index for found in refused.record_errors] == [1, 3]
            assert "key" in refused.record_errors[0].batch_index_error_message
        found = await produced(client, batch(1, codec=codec), version=version)
        assert (found.error_code, found.base_offset, len(found.record_errors)) == (0, 4, 0)
        await change_policies(server.topics, name, {}, ["cleanup_policy"])
        assert (await produced(client, sent, version=version)).error_code == 0


@pytest.mark.parametrize("given", ["100", "anything"])
async def test_a_topic_may_take_smaller_batches_than_the_broker(tmp_path: Path, given: str) -> None:
    async with on_topic(tmp_path) as (server, client):
        properties = {"kafka.max.message.bytes": given}
        await change_properties(server.topics, TopicName.parse(FULL), properties, [])
        bounded = given == "100"
        assert len(batch(1)) <= 100 < len(batch(9))
        assert (await produced(client, batch(1))).error_code == 0
        code = (await produced(client, batch(9))).error_code
        assert code == (ErrorCode.MESSAGE_TOO_LARGE if bounded else 0)


OLD = struct.pack(">qiib", 0, 100, 0, 1) + bytes(100)
REFUSED = {
    "null": (None, ErrorCode.INVALID_RECORD),
    "empty": (b"", ErrorCode.CORRUPT_MESSAGE),
    "cut": (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
    "crc": (batch()[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
    "format-1": (OLD, ErrorCode.INVALID_RECORD),
    "format-3": (changed(16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
    "codec": (changed(21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "transactional": (changed(21, ">h", 0x10), ErrorCode.INVALID_RECORD),
    "control": (changed(21, ">h", 0x20), ErrorCode.INVALID_RECORD),
    "append-time": (changed(21, ">h", 0x08), ErrorCode.INVALID_RECORD),
    "no-records": (changed(57, ">i", 0), ErrorCode.INVALID_RECORD),
    "fewer": (changed(57, ">i", 2), ErrorCode.INVALID_RECORD),
    "last-offset": (changed(23, ">i", 5), ErrorCode.INVALID_RECORD),
    "counts-agree": (changed(23, ">i", 1)[:57] + struct.pack(">i", 2), ErrorCode.CORRUPT_MESSAGE),
    "two-batches": (batch() + batch(), ErrorCode.INVALID_RECORD),
    "not-gzip": (changed(21, ">h", 1), ErrorCode.CORRUPT_MESSAGE),
    "epoch": (changed(43, ">qhi", 7, -1, 0), ErrorCode.INVALID_RECORD),
    "sequence": (changed(43, ">qhi", 7, 0, -1), ErrorCode.INVALID_RECORD),
}


def lying() -> bytes:
    """A batch whose header is sound, and whose records are fewer than it says."""
    made = bytearray(batch())
    struct.pack_into(">i", made, 23, 1)
    struct.pack_into(">i", made, 57, 2)
    sign_batch(made)
    return bytes(made)


REFUSED["one-too-many"] = (lying(), ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_batch_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    async with on_topic(tmp_path) as (_, client):
        sent, code = REFUSED[name]
        answer = await produced(client, sent)
        assert (ErrorCode(answer.error_code), answer.base_offset) == (code, -1)
        assert answer.error_message
        # Others of the connection go on, and nothing was stored.
        assert (await produced(client, batch())).base_offset == 0


async def test_too_large_batches_are_refused(tmp_path: Path) -> None:

    settings = load(None, {"ROUTER_BROKER_KAFKA_MAX_BATCH": "1000"})
    async with on_topic(tmp_path, settings=settings) as (_, client):
        answer = await produced(client, batch(2, size=1_000))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        # A little that becomes much.
        bomb = await produced(client, batch(1, size=20 << 20, codec=1))
        assert bomb.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_a_bomb_is_refused(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        answer = await produced(client, batch(1, size=20 << 20, codec=4))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await produced(client, batch())).base_offset == 0


async def test_unknown_topics_and_partitions_are_refused(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await produced(client, batch(), topic="none")).error_code == unknown
        assert (await produced(client, batch(), topic="")).error_code == unknown
        for index in (1, -1):
            assert (await produced(client, batch(), index=index)).error_code == unknown
        await server.topics.create(TopicName.parse("parts"), 2)
        assert (await produced(client, batch(), topic="parts", index=1)).error_code == 0
        assert (await produced(client, batch(), topic="parts", index=2)).error_code == unknown


async def test_acks_are_minus_one_to_one(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        for acks, code in ((2, ErrorCode.INVALID_REQUIRED_ACKS), (1, 0)):
            assert (await produced(client, batch(), acks=acks)).error_code == code
        # Without acks there is no answer: the next one is that of the next request.
        client.send("Produce", 9, **fields(client, batch(), acks=0))
        client.unanswered()
        assert (await produced(client, batch())).base_offset == 6
        client.send("Produce", 9, **fields(client, batch(), acks=0, topic="none"))
        assert client.connection.closed


async def test_requests_overlap_and_keep_their_order(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        sizes = [5_000, 5, 9_000, 5]
        # Large ones are proved beside the loop, small ones at once.
        for size in sizes:
            client.send("Produce", 9, **fields(client, batch(9, size=size, codec=1)))
            client.send("Produce", 9, **fields(client, batch(1)))
        offsets = [
            (await client.receive()).responses[0].partition_responses[0].base_offset
            for _ in range(2 * len(sizes))
        ]
        assert offsets == [0, 9, 10, 19, 20, 29, 30, 39]


async def test_what_is_more_of_a_request_is_proved_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "MAX_INLINE_RECORDS", 7)
    prove, on_loop = prove_batch, []

    def proved(*given: Any, **how: Any) -> bytes:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return prove(*given, **how)

    monkeypatch.setattr(producing, "prove_batch", proved)

    async with on_topic(tmp_path) as (_, client):
        answer = await client.ask("Produce", 9, **fields(client, *[batch(3)] * 4))
        (topic,) = answer.responses
        assert [found.base_offset for found in topic.partition_responses] == [0, 3, 6, 9]
        assert on_loop == [True, True, False, False]
        assert (await produced(client, batch(3))).base_offset == 12
        assert on_loop[4:] == [True]


async def test_nothing_is_answered_before_its_sync(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with on_topic(tmp_path, disk=disk) as (_, client):
        disk.hold()
        try:
            client.send("Produce", 9, **fields(client, batch(), acks=1))
            async with asyncio.timeout(20):
                await asyncio.to_thread(disk.held.wait)
            assert client.take() == []
        finally:
            disk.release()
        assert (await client.receive()).responses[0].partition_responses[0].base_offset == 0


async def test_a_topic_that_takes_no_more_refuses(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        assert (await produced(client, batch())).error_code == 0
        partition = server.topics.opened(FULL)
        assert partition is not None
        await partition.terminate()
        assert (await produced(client, batch())).error_code == ErrorCode.POLICY_VIOLATION
        await server.topics.delete(TopicName.parse(FULL))
        gone = await produced(client, batch())
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_exclusive_producer_keeps_others_out(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        assert (await produced(client, batch())).error_code == 0
        partition = server.topics.opened(FULL)
        assert partition is not None
        (present,) = partition.producers
        assert present.name.startswith("kafka-")
        assert present.metadata == {"client.id": "test"}
        holder = Producer(
            link=present.link,
            producer_id=1,
            name="holder",
            epoch=0,
            generated=False,
            deduplicated=False,
            access=ProducerAccess.EXCLUSIVE_WITH_FENCING,
        )
        assert partition.producers.add(holder)
        answer = await produced(client, batch())
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert "exclusive" in answer.error_message
        partition.producers.remove(holder)
        assert (await produced(client, batch())).error_code == 0
        client.leave()
        assert len(partition.producers) == 0


async def test_a_connection_has_a_bound_of_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(producing, "MAX_PRODUCERS", 1)
    async with on_topic(tmp_path) as (server, client):
        await server.topics.create(TopicName.parse("parts"), 2)
        assert (await produced(client, batch(), topic="parts")).error_code == 0
        answer = await produced(client, batch(), topic="parts", index=1)
        assert answer.error_code == ErrorCode.POLICY_VIOLATION


def idempotent(sequence: int, *, epoch: int = 0, producer: int = 7, values: int = 2) -> bytes:
    return batch(values, producer=(producer, epoch, sequence))


async def test_duplicates_have_their_offset_and_gaps_are_refused(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):

        async def sent(sequence: int, **how: int) -> tuple[int, int]:
            answer = await produced(client, idempotent(sequence, **how))
            return answer.error_code, answer.base_offset

        for number in range(7):
            assert await sent(2 * number) == (0, 2 * number)
        # The last five are known, and those before them are not.
        for number in range(2, 7):
            assert await sent(2 * number) == (0, 2 * number)
        refused = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert await sent(2) == refused
        assert await sent(16) == refused
        # Of the same first record, but another batch.
        assert await sent(12, values=3) == refused
        # A later epoch begins with 0, and fences the one before it.
        assert await sent(14, epoch=1) == refused
        assert await sent(0, epoch=1) == (0, 14)
        assert await sent(14) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
        assert await sent(0, epoch=1) == (0, 14)
        # Another producer has its own numbers; one that is not known begins where it will.
        assert await sent(5, producer=8) == (0, 16)
        assert await sent(7, producer=8) == (0, 18)


async def test_sequences_begin_again_behind_the_last_one(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        last = (1 << 31) - 1
        assert (await produced(client, idempotent(last, values=2))).base_offset == 0
        assert (await produced(client, idempotent(1, values=2))).base_offset == 2


async def test_a_duplicate_in_flight_is_answered_with_its_offset(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        await produced(client, batch(4))
        for _ in range(3):
            client.send("Produce", 9, **fields(client, idempotent(0)))
        for _ in range(3):
            part = (await client.receive()).responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, 4)


async def test_batches_in_flight_share_a_sync_and_their_duplicates_wait_for_it(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    async with on_topic(tmp_path, disk=disk) as (server, client):
        other = server.client()
        assert (await produced(other, batch(1))).base_offset == 0
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        disk.hold()
        try:
            client.send("Produce", 9, **fields(client, idempotent(0)))
            async with asyncio.timeout(20):
                await asyncio.to_thread(disk.held.wait)
            for sequence in (2, 4, 6, 8):
                client.send("Produce", 9, **fields(client, idempotent(sequence)))
            # All were judged and appended while the disk had the first.
            assert ledger.next_index == 11
            for sequence in (0, 8):
                other.send("Produce", 9, **fields(other, idempotent(sequence)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert (client.take(), other.take()) == ([], [])
        finally:
            disk.release()
        for asked, expected in ((client, (1, 3, 5, 7, 9)), (other, (1, 9))):
            for offset in expected:
                part = (await asked.receive()).responses[0].partition_responses[0]
                assert (part.error_code, part.base_offset) == (0, offset)


async def test_a_duplicate_of_what_was_removed_has_no_offset(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        for number in range(2):
            assert (await produced(client, idempotent(2 * number))).error_code == 0
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        await server.store.delete_before(ledger, ledger.durable_number)
        answer = await produced(client, idempotent(2))
        found = (answer.error_code, answer.base_offset, answer.log_start_offset)
        assert found == (0, -1, 4)
        assert (await produced(client, idempotent(4))).base_offset == 4


def test_producers_are_remembered_over_a_restart(tmp_path: Path) -> None:
    async def first() -> int:
        async with serving(tmp_path) as server:
            client = await with_topic(server)
            for number in range(6):
                await produced(client, idempotent(2 * number))
            return int((await client.ask("InitProducerId", 4, transactional_id=None)).producer_id)

    async def second(known: int) -> None:
        async with serving(tmp_path) as server:
            client = server.client()
            for number in range(1, 6):
                answer = await produced(client, idempotent(2 * number))
                assert (answer.error_code, answer.base_offset) == (0, 2 * number)
            assert (await produced(client, idempotent(12))).base_offset == 12
            gap = await produced(client, idempotent(16))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            asked = await client.ask("InitProducerId", 4, transactional_id=None)
            assert (asked.producer_epoch, asked.producer_id > known) == (0, True)

    asyncio.run(second(asyncio.run(first())))


def test_a_header_has_its_size() -> None:
    assert HEADER_BYTES == 61
