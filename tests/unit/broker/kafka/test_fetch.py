"""Fetch: which batches are answered, when, and how many; offsets by their name and by time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from router.broker.kafka.failures import ErrorCode
from router.broker.storage import PULSAR_FORMAT, StoreOptions
from router.broker.topics.changes import change_policies
from router.model import Message, TopicName
from router.wire.kafka.record_batches import build_batch, next_offset, open_batch
from router.wire.kafka.records import KafkaRecord, read_records, write_record
from router.wire.pulsar import pack
from tests.unit.broker.kafka import serving as harness
from tests.unit.broker.kafka.serving import KafkaClient, serving
from tests.unit.broker.kafka.test_produce import FULL, TOPIC, batch, on_topic, produced
from tests.wire.kafka.batches import split_batches

LONG_MS = 20_000
EARLIEST, LATEST = -2, -1
LIMIT = 64 << 20


def asked(client: KafkaClient, offset: int, **how: Any) -> Any:
    return client.struct(
        "FetchRequest",
        "FetchPartition",
        partition=how.get("index", 0),
        fetch_offset=offset,
        partition_max_bytes=how.get("partition_max_bytes", 1 << 20),
        current_leader_epoch=how.get("epoch", -1),
    )


def fields(client: KafkaClient, *partitions: Any, topic: str = TOPIC, **how: Any) -> dict[str, Any]:
    named = client.struct("FetchRequest", "FetchTopic", topic=topic, partitions=partitions)
    return {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [named], **how}


async def fetched(client: KafkaClient, offset: int, version: int = 11, **how: Any) -> Any:
    """Fetch from one partition and return its answer."""
    parts = {"index", "partition_max_bytes", "epoch"}
    partition = asked(client, offset, **{name: how.pop(name) for name in parts & how.keys()})
    answer = await client.ask("Fetch", version, **fields(client, partition, **how))
    assert (answer.error_code, answer.session_id) == (0, 0)
    return answer.responses[0].partitions[0]


def records(part: Any) -> list[tuple[int, KafkaRecord]]:
    """The records of an answer with their offsets; every batch is whole and has its epoch."""
    found = []
    for header, data in split_batches(bytes(part.records)):
        assert header.leader_epoch == 0
        opened = open_batch(header, data, LIMIT)
        found += [(header.base_offset + r.offset, r) for r in read_records(opened, header.records)]
    return found


@pytest.mark.parametrize("version", range(4, 13))
async def test_batches_are_answered_with_their_offsets(tmp_path: Path, version: int) -> None:
    async with on_topic(tmp_path) as (_, client):
        for values in (3, 2, 4):
            await produced(client, batch(values, codec=values))
        part = await fetched(client, 0, version)
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 9, 9)
        assert [offset for offset, _ in records(part)] == list(range(9))
        # Behind the offset 16 nothing of a batch is changed.
        assert bytes(part.records)[16 : len(batch(3, codec=3))] == batch(3, codec=3)[16:]
        # From the middle of a batch on the whole batch is answered.
        assert records(await fetched(client, 4, version))[0][0] == 3
        assert records(await fetched(client, 5, version))[0][0] == 5
        end = await fetched(client, 9, version)
        assert (end.error_code, bytes(end.records)) == (0, b"")


async def test_what_other_protocols_stored_is_answered_as_batches(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        sent = [Message(b"a", b"k", {"h": "1"}), Message(b"", null=True)]
        ledger.append(bytes(pack(sent, "p", 0, 1)), PULSAR_FORMAT, 2, 1_000, lambda _: None)
        ledger.append(b"no entry at all", PULSAR_FORMAT, 3, 1_000, lambda _: None)
        await server.synced()
        await produced(client, batch(1))
        for _ in range(2):  # transcoded, and from the cache
            found = records(await fetched(client, 0))
            assert [offset for offset, _ in found] == [0, 1, 5]
            first, second = found[0][1], found[1][1]
            assert (first.key, first.value, list(first.headers)) == (b"k", b"a", [(b"h", b"1")])
            assert second.value is None


async def test_what_compaction_removed_at_the_beginning_is_a_gap(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        await produced(client, batch(3))
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        await server.store.delete_before(ledger, 3)
        assert ledger.first_number == 3
        await produced(client, batch(1))
        name = TopicName.parse(FULL)
        await change_policies(server.topics, name, {"cleanup_policy": "compact"}, [])
        for offset in (0, 2, 3):
            part = await fetched(client, offset)
            assert [at for at, _ in records(part)] == [3]
        for offset in (-1, 5):
            part = await fetched(client, offset, max_wait_ms=LONG_MS)
            assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        await change_policies(server.topics, name, {"cleanup_policy": "delete"}, [])
        part = await fetched(client, 2, max_wait_ms=LONG_MS)
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_what_aborted_transactions_left_out_at_the_beginning_is_a_gap(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        await produced(client, batch(3))
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        await server.store.delete_before(ledger, 3)
        await produced(client, batch(2))
        server.store.delete_messages(ledger, [(3, 4)])  # as an abort does
        await server.store.delete_before(ledger, 0)  # removes the segment, which has no others
        assert ledger.first_number == 5
        await produced(client, batch(1))
        for offset in (3, 4, 5):
            part = await fetched(client, offset)
            assert [at for at, _ in records(part)] == [5]
        part = await fetched(client, 2, max_wait_ms=LONG_MS)
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_offsets_out_of_range_are_refused(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        await produced(client, batch(3))
        for offset in (-1, 4):
            part = await fetched(client, offset, max_wait_ms=LONG_MS)
            assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert (part.high_watermark, part.log_start_offset) == (3, 0)
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        await server.store.delete_before(ledger, 3)
        part = await fetched(client, 2, max_wait_ms=LONG_MS)
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (part.high_watermark, part.log_start_offset) == (3, 3)


async def consumed(client: KafkaClient, first_live: int, end: int) -> dict[int, KafkaRecord]:
    """Fetch from the beginning to the end, as a consumer does."""
    offset, found = 0, dict[int, KafkaRecord]()
    while offset < end:
        part = await fetched(client, offset, partition_max_bytes=300)
        assert part.log_start_offset == first_live
        found.update(records(part))
        following = next_offset(bytes(part.records), offset)
        assert following > offset
        offset = following
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_deleted_records_are_left_out_and_readers_get_to_the_end(
    tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    async with on_topic(tmp_path) as (server, client):
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        sent = [Message(b"v%d" % n, b"k") for n in range(3)]
        for number in range(20):
            if number % 4 == 3:
                ledger.append(bytes(pack(sent, "p", 0, 1)), PULSAR_FORMAT, 3, 1_000, lambda _: None)
            else:
                await produced(client, batch(1 + number % 3, codec=chance.choice((0, 1, 3))))
        await server.synced()
        end = ledger.durable_number
        whole = await consumed(client, 0, end)
        assert list(whole) == list(range(end))
        for round_number in range(8):
            first = chance.randrange(end)
            last = first + chance.choice((0, 1, 9))
            if round_number == 5:
                last = end
            server.store.delete_messages(ledger, [(first, last)])
            live = [n for n in range(end) if not ledger.deleted_numbers.contains(n)]
            found = await consumed(client, live[0] if live else end, end)
            assert list(found) == live
            assert found == {n: whole[n] for n in live}
            waiting = await fetched(client, end)
            assert (waiting.error_code, bytes(waiting.records)) == (0, b"")


@pytest.mark.parametrize("seed", range(3))
async def test_records_that_are_left_are_fetched_when_the_others_were_reclaimed(
    tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    async with on_topic(
        tmp_path, options=StoreOptions(segment=1_500, cache=0, reserve=0, reclaim_bytes=1)
    ) as (server, client):
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        sent = [Message(b"v%d" % n * 9, b"k") for n in range(3)]
        for number in range(40):
            if number % 4 == 3:
                payload = bytes(pack(sent, "p", number, 1))
                ledger.append(payload, PULSAR_FORMAT, 3, 1_000, lambda _: None)
            else:
                await produced(client, batch(2 + number % 3, codec=chance.choice((0, 1, 3))))
        await server.synced()
        await server.store.retain(1_000)
        end = ledger.durable_number
        whole = await consumed(client, 0, end)
        for _ in range(4):
            numbers = [n for n in range(end) if chance.random() < 0.4]
            server.store.delete_messages(ledger, [(n, n) for n in numbers])
            times = [await offset_at(client, time) for time in (EARLIEST, LATEST, 1, 2, 1_000)]
            await server.store._checkpointer.checkpoint()
            assert await server.store.reclaim(ledger) > 0
            again = [await offset_at(client, time) for time in (EARLIEST, LATEST, 1, 2, 1_000)]
            assert again == times
            live = [n for n in range(end) if not ledger.deleted_numbers.contains(n)]
            assert await consumed(client, live[0], end) == {n: whole[n] for n in live}
            for offset in range(0, end, 7):
                first = next((n for n, _ in records(await fetched(client, offset))), end)
                assert first <= next((n for n in live if n >= offset), end)


async def test_unknown_partitions_and_epochs_are_refused(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        for how, code in (
            ({"topic": "none"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"index": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"epoch": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            part = await fetched(client, 0, max_wait_ms=LONG_MS, **how)
            assert part.error_code == code


async def test_sizes_are_bounded_and_the_first_batch_is_always_sent(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        await server.topics.create(TopicName.parse("parts"), 3)
        size = len(batch(1, size=1_000))
        for index in range(3):
            for _ in range(4):
                await produced(client, batch(1, size=1_000), topic="parts", index=index)

        async def sizes(**how: int) -> list[int]:
            most = how.get("partition_max_bytes", 1 << 20)
            wanted = [asked(client, 0, index=n, partition_max_bytes=most) for n in range(3)]
            max_bytes = how.get("max_bytes", 1 << 20)
            request = fields(client, *wanted, topic="parts", max_bytes=max_bytes)
            answer = await client.ask("Fetch", 11, **request)
            return [len(part.records) // size for part in answer.responses[0].partitions]

        assert await sizes() == [4, 4, 4]
        assert await sizes(partition_max_bytes=2 * size) == [2, 2, 2]
        assert await sizes(partition_max_bytes=0) == [1, 1, 1]
        assert await sizes(max_bytes=5 * size + 9) == [4, 1, 0]
        assert await sizes(max_bytes=1) == [1, 0, 0]


async def test_a_fetch_waits_for_messages(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        listeners = len(ledger.listeners)
        client.send("Fetch", 11, **fields(client, asked(client, 0), max_wait_ms=LONG_MS))
        tasks = len(asyncio.all_tasks())
        assert len(ledger.listeners) == listeners + 1
        other = server.client()
        assert (await produced(other, batch(2))).error_code == 0
        assert len(records((await client.receive()).responses[0].partitions[0])) == 2
        assert len(ledger.listeners) == listeners
        assert len(asyncio.all_tasks()) <= tasks


async def test_a_fetch_waits_for_so_many_bytes(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        wanted = fields(client, asked(client, 0), max_wait_ms=LONG_MS, min_bytes=3 * len(batch(2)))
        client.send("Fetch", 11, **wanted)
        other = server.client()
        for _ in range(2):
            await produced(other, batch(2))
        assert client.take() == []
        await produced(other, batch(2))
        assert len(records((await client.receive()).responses[0].partitions[0])) == 6


@pytest.mark.parametrize(
    "how",
    [
        {"min_bytes": 60_000, "partition_max_bytes": 60_000, "max_bytes": 1 << 30},
        {"min_bytes": 60_000, "partition_max_bytes": 1 << 20, "max_bytes": 60_000},
        {"min_bytes": 1 << 30, "partition_max_bytes": 1 << 20, "max_bytes": 60_000},
        {"min_bytes": 1 << 30, "partition_max_bytes": 1 << 30, "max_bytes": 1 << 30},
    ],
)
async def test_a_fetch_that_holds_no_more_does_not_wait(
    tmp_path: Path, how: dict[str, int]
) -> None:
    async with on_topic(tmp_path) as (_, client):
        for _ in range(10):
            await produced(
                client, batch(1, size=900_000 if how["max_bytes"] == 1 << 30 else 50_000)
            )
        async with asyncio.timeout(LONG_MS / 2_000):
            part = await fetched(client, 0, max_wait_ms=LONG_MS, **how)
        assert records(part)


async def test_a_fetch_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        part = await fetched(client, 0, max_wait_ms=30)
        assert (part.error_code, bytes(part.records)) == (0, b"")
        await produced(client, batch(1))
        # What is there is answered then, if it is not enough.
        assert len(records(await fetched(client, 0, max_wait_ms=30, min_bytes=1 << 20))) == 1


async def test_a_fetch_ends_when_its_timer_fires_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timers of uvloop do, because its clock counts milliseconds."""
    async with on_topic(tmp_path) as (_, client):
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def early(when: float, *call: Any, **how: Any) -> asyncio.TimerHandle:
            return call_at(when - 0.02, *call, **how)

        monkeypatch.setattr(loop, "call_at", early)
        part = await fetched(client, 0, max_wait_ms=40)
        assert (part.error_code, bytes(part.records)) == (0, b"")


async def test_a_client_that_left_waits_for_nothing(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        listeners = len(ledger.listeners)
        client.send("Fetch", 11, **fields(client, asked(client, 0), max_wait_ms=LONG_MS))
        client.leave()
        assert len(ledger.listeners) == listeners


async def test_sessions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        for session, epoch, code in (
            (7, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (0, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (7, -1, 0),
            (0, -1, 0),
        ):
            request = fields(client, asked(client, 0), session_id=session, session_epoch=epoch)
            answer = await client.ask("Fetch", 11, **request)
            assert (answer.error_code, answer.session_id) == (code, 0)


async def test_a_reader_far_behind_is_served_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        harness, "SMALL_CACHE", StoreOptions(segment=20_000, cache=0, journal=9_000)
    )
    async with on_topic(tmp_path) as (server, client):
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        for _ in range(40):
            await produced(client, batch(3, size=1_000))
        async with asyncio.timeout(20):
            while ledger.cached(0) is not None:
                await produced(client, batch(3, size=1_000))
        offset, found = 0, 0
        while offset < ledger.durable_number:
            got = records(await fetched(client, offset, partition_max_bytes=10_000))
            assert got[0][0] == offset
            offset, found = got[-1][0] + 1, found + len(got)
        assert found == ledger.durable_number


async def offset_at(client: KafkaClient, timestamp: int) -> tuple[int, int]:
    found = await listed(client, timestamp)
    return found.offset, found.timestamp


async def listed(client: KafkaClient, timestamp: int, version: int = 7, **how: Any) -> Any:
    partition = client.struct(
        "ListOffsetsRequest",
        "ListOffsetsPartition",
        partition_index=how.get("index", 0),
        timestamp=timestamp,
        current_leader_epoch=how.get("epoch", -1),
    )
    topic = client.struct(
        "ListOffsetsRequest",
        "ListOffsetsTopic",
        name=how.get("topic", TOPIC),
        partitions=[partition],
    )
    answer = await client.ask("ListOffsets", version, replica_id=-1, topics=[topic])
    return answer.topics[0].partitions[0]


MAX_TIMESTAMP_VERSION = 7


@pytest.mark.parametrize("version", range(1, 12))
async def test_offsets_are_found_by_name_and_by_time(tmp_path: Path, version: int) -> None:
    async with on_topic(tmp_path) as (_, client):
        for timestamp in (-1, -2, -3):
            expected = -1 if timestamp == -3 else 0
            assert (await listed(client, timestamp, version)).offset == expected
        # Each batch has the times 1000, 1001 and so on.
        await produced(client, batch(3))
        await produced(client, batch(9, codec=1))
        for timestamp, answer in (
            (-1, (-1, 12)),
            (-2, (-1, 0)),
            (-3, (1_008, 11)) if version >= MAX_TIMESTAMP_VERSION else (-1, (-1, 12)),
            (0, (1_000, 0)),
            (1_002, (1_002, 2)),
            (1_003, (1_003, 6)),
            (1_008, (1_008, 11)),
            (1_009, (-1, -1)),
        ):
            found = await listed(client, timestamp, version)
            assert (found.error_code, found.timestamp, found.offset) == (0, *answer)
            assert found.leader_epoch == (0 if version >= 4 else -1)


async def test_a_time_that_no_answer_can_hold_is_the_last_one(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        last = (1 << 63) - 1
        sent = build_batch([write_record(0, 1 << 62, None, b"v")], last, last)
        assert (await produced(client, bytes(sent))).error_code == 0
        found = await listed(client, 5)
        assert (found.error_code, found.timestamp, found.offset) == (0, last, 0)


async def test_times_of_other_protocols_are_those_of_storing(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        ledger = server.topics.opened(FULL).ledger  # type: ignore[union-attr]
        payload = bytes(pack([Message(b"a")], "p", 0, 1))
        for time in (1_000, 2_000, 3_000):
            ledger.append(payload, PULSAR_FORMAT, 1, time, lambda _: None)
        await server.synced()
        found = await listed(client, 1_500)
        assert (found.timestamp, found.offset) == (2_000, 1)


async def test_offsets_of_what_does_not_exist_are_refused(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (_, client):
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await listed(client, -1, topic="none")).error_code == unknown
        assert (await listed(client, -1, index=3)).error_code == unknown
        refused = await listed(client, -1, epoch=3)
        assert refused.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_the_only_epoch_ends_with_the_log(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.topics.create(TopicName.parse(FULL))
        client = server.client()
        await produced(client, batch(3))

        async def end(epoch: int, topic: str = TOPIC, index: int = 0) -> tuple[int, int, int]:
            name = "OffsetForLeaderEpochRequest"
            partition = client.struct(
                name, "OffsetForLeaderPartition", partition=index, leader_epoch=epoch
            )
            partition.current_leader_epoch = -1
            wanted = client.struct(
                name, "OffsetForLeaderTopic", topic=topic, partitions=[partition]
            )
            answer = await client.ask("OffsetForLeaderEpoch", 3, topics=[wanted])
            found = answer.topics[0].partitions[0]
            return found.error_code, found.leader_epoch, found.end_offset

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await end(0) == (0, 0, 3)
        assert await end(1) == (0, -1, -1)
        assert await end(0, topic="none") == (unknown, -1, -1)
        assert await end(0, index=1) == (unknown, -1, -1)
