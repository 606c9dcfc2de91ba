"""ListOffsets by time: the first record whose timestamp, as clients read it, is not before it."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS, latest_time
from router.broker.storage import (
    KAFKA_FORMAT,
    NATS_FORMAT,
    PULSAR_FORMAT,
    UNKNOWN_TIME,
    Entry,
    LatestTime,
)
from router.model import Message
from router.wire.kafka.error_codes import ErrorCode
from router.wire.kafka.record_batches import build_batch, check_batch, open_batch
from router.wire.kafka.records import read_records, write_record
from router.wire.pulsar import pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.kafka.serving import KafkaClient, serving
from tests.unit.broker.kafka.test_fetch import fetched, listed
from tests.unit.broker.kafka.test_produce import FULL, batch, on_topic, produced
from tests.unit.broker.storage.rig import SMALL, ignore
from tests.wire.kafka.batches import split_batches

OPTIONS = replace(SMALL, segment=900, index_step=150, cache=400)
NOTHING = (-1, -1)
BASE = 1_000_000_000_000
"""Times of entries lie in the 40 ms behind it; in 1970 an event time may pass for another field."""
FORMATS = (PULSAR_FORMAT, KAFKA_FORMAT, NATS_FORMAT)
moments = st.integers(BASE, BASE + 40)


@dataclass(frozen=True)
class Sent:
    """An entry that is appended: its format, time of storing, and its messages' event times."""

    tag: int
    stored_ms: int
    times: list[int | None]
    compressed: bool

    def payload(self) -> bytes:
        messages = [Message(b"%d" % n, event_time=time) for n, time in enumerate(self.times)]
        if self.tag == PULSAR_FORMAT and self.compressed:
            return bytes(pack(messages, "p", 0, 1, pb.ZLIB))
        return ENTRY_FORMATS[self.tag].from_messages(messages, self.stored_ms)


entries = st.builds(
    Sent,
    tag=st.sampled_from(FORMATS),
    stored_ms=moments,
    times=st.lists(st.none() | moments, min_size=1, max_size=3),
    compressed=st.booleans(),
)


@dataclass
class PlainList:
    """What a partition holds: the timestamp of each record, None if the record is deleted."""

    times: list[int | None]

    async def check(self, client: KafkaClient) -> None:
        for wanted in range(BASE - 1, BASE + 44, 6):
            found = await listed(client, wanted)
            assert (found.error_code, found.timestamp, found.offset) == (0, *self._first(wanted))

    async def check_read(self, client: KafkaClient) -> None:
        """Check that clients read these timestamps."""
        offset, found = 0, {}
        while offset < len(self.times):
            part = await fetched(client, offset, partition_max_bytes=1 << 20)
            for header, data in split_batches(bytes(part.records)):
                opened = open_batch(header, data, 1 << 20)
                for record in read_records(opened, header.records):
                    place = header.base_offset + record.offset
                    found[place] = header.base_timestamp + record.timestamp
                offset = header.last_offset + 1
        assert found == {n: time for n, time in enumerate(self.times) if time is not None}

    def _first(self, wanted: int) -> tuple[int, int]:
        for offset, time in enumerate(self.times):
            if time is not None and time >= wanted:
                return time, offset
        return NOTHING


@pytest.mark.slow
@pytest.mark.no_cover
@settings(max_examples=10, deadline=None, phases=(Phase.generate,))
@given(
    runs=st.lists(st.lists(entries, max_size=12), min_size=1, max_size=3),
    deleted=st.lists(st.integers(0, 60), max_size=12),
    indexed=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_a_time_is_the_first_record_that_a_plain_list_has(
    runs: list[list[Sent]], deleted: list[int], indexed: list[bool]
) -> None:
    """Segments that were not indexed, as a repair leaves them, lie between those that were."""
    expected = PlainList([])

    async def run(folder: Path, sent: list[Sent], latest: LatestTime) -> None:
        async with serving(folder, options=OPTIONS, latest=latest) as server:
            client = server.client()
            ledger = (await server.topics.open(FULL, create=True)).ledger
            for entry in sent:
                count = len(entry.times)
                ledger.append(entry.payload(), entry.tag, count, entry.stored_ms, ignore)
                expected.times += [time or entry.stored_ms for time in entry.times]
            await server.synced()
            await expected.check(client)
            stored = sorted({number for number in deleted if number < len(expected.times)})
            if stored:
                server.store.delete_messages(ledger, [(number, number) for number in stored])
            for number in stored:
                expected.times[number] = None
            await server.store._checkpointer.checkpoint()
            server.store._context.tails.evict(0)
            await expected.check(client)
            await expected.check_read(client)

    async def work(folder: Path) -> None:
        for sent, known in zip(runs, indexed, strict=False):
            await run(folder, sent, latest_time if known else lambda _: UNKNOWN_TIME)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(work(Path(folder)))


class CountingDisk(Disk):
    """Counts the bytes that are read of segments."""

    def __init__(self) -> None:
        self.count = 0

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        self.count += size
        return super().pread(descriptor, size, start)


async def test_a_lookup_reads_little_however_far_the_time_is_behind(tmp_path: Path) -> None:
    """The times of 200 records are a year old, all are stored at the same moment."""
    disk, year_ms = CountingDisk(), 31_536_000_000
    options = replace(SMALL, segment=8 << 20, journal=4 << 20, index_step=16 << 10, cache=0)
    async with on_topic(tmp_path, disk=disk, options=options) as (server, client):
        start = 1_700_000_000_000 - year_ms
        for number in range(200):
            record = write_record(0, 0, None, bytes(10_000))
            sent = build_batch([record], start + 1_000 * number, start + 1_000 * number)
            assert (await produced(client, bytes(sent))).error_code == 0
        await server.store._checkpointer.checkpoint()
        server.store._context.tails.evict(0)
        assert (await listed(client, start)).offset == 0  # the index is read
        disk.count = 0
        for number in (1, 100, 199):
            found = await listed(client, start + 1_000 * number - 999)
            assert (found.timestamp, found.offset) == (start + 1_000 * number, number)
        assert disk.count < 3 * (4 << 20) // 8


@pytest.mark.parametrize("version", range(1, 12))
async def test_constants_are_served_from_their_version_on(tmp_path: Path, version: int) -> None:
    expected = {-1: 3, -2: 0, -3: 2, -4: 0, -5: -1, -6: -1, -7: -1}
    since = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99}
    async with on_topic(tmp_path) as (_, client):
        await produced(client, batch(3))
        for constant, offset in expected.items():
            found = await listed(client, constant, version)
            if version < since[constant]:
                assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
                continue
            assert (found.error_code, found.offset) == (0, offset)
            if version >= 4:
                assert found.leader_epoch == (0 if offset >= 0 else -1)


async def test_the_largest_timestamp_has_the_first_record_with_it(tmp_path: Path) -> None:
    async with on_topic(tmp_path) as (server, client):
        for times in ((5_000, 9_000, 1_000), (9_000, 3_000), (7_000,)):
            made = [write_record(n, time - 5_000, None, b"v") for n, time in enumerate(times)]
            assert (await produced(client, bytes(build_batch(made, 5_000, 9_000)))).error_code == 0
        found = await listed(client, -3)
        assert (found.timestamp, found.offset) == (9_000, 1)
        partition = await server.topics.open(FULL, create=True)
        server.store.delete_messages(partition.ledger, [(0, 4)])
        found = await listed(client, -3)
        assert (found.timestamp, found.offset) == (7_000, 5)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("header", [0, 999_999])
async def test_the_largest_timestamp_of_a_batch_is_that_of_its_records(
    tmp_path: Path, header: int, codec: int
) -> None:
    """A header that names another one is corrected, as by Apache Kafka."""
    async with on_topic(tmp_path) as (_, client):
        times = (5_000, 70_000, 4_000)
        made = [write_record(n, time - 5_000, None, b"v") for n, time in enumerate(times)]
        sent = bytes(build_batch(made, 5_000, header, codec=codec))
        assert (await produced(client, sent)).error_code == 0
        ((stored, data),) = split_batches(bytes((await fetched(client, 0)).records))
        check_batch(data)
        assert stored.max_timestamp == 70_000
        assert (await listed(client, 5_001)).offset == 1
        assert (await listed(client, 70_001)).offset == -1


@settings(max_examples=100, deadline=None)
@given(
    sent=entries,
    cut=st.integers(0, 200),
    noise=st.binary(max_size=40),
    tag=st.sampled_from((*FORMATS, 9)),
)
def test_the_time_of_any_bytes_is_a_number(sent: Sent, cut: int, noise: bytes, tag: int) -> None:
    payload = sent.payload()
    for data in (noise, payload[:cut] + noise, payload[:cut] + noise + payload[cut + len(noise) :]):
        time = latest_time(Entry(0, 0, BASE, tag, 1, data))
        assert -(1 << 63) <= time < 1 << 63
        assert time != UNKNOWN_TIME or tag == KAFKA_FORMAT
