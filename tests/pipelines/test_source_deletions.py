"""Messages that were deleted on purpose are no rows, and no loss; what went otherwise is a loss."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.js import JetStreamContext

from router.errors import ReadFailedError
from router.model import NOT_PARTITIONED, TopicName
from router.model.policies import Policies
from router.pipelines.source import register
from router.pipelines.source.losses import MessagesLostError
from tests.pipelines.sourcing import WAIT, EagerBroker, Store, fill, values
from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Play = Callable[[JetStreamContext], Awaitable[Any]]


class Site(Store):
    """A store that clients of NATS use too."""

    def __init__(self, stack: ExitStack, broker: BrokerProcess, address: str) -> None:
        super().__init__(stack, broker.url)
        self.broker = broker
        self._address = f"nats://{address}"

    def play(self, play: Play) -> Any:
        """Return what a client of NATS gets."""

        async def run() -> Any:
            client = await nats.connect(self._address)
            try:
                return await play(client.jetstream(timeout=WAIT))
            finally:
                await client.close()

        return asyncio.run(run())

    def first_entry(self, name: str) -> int:
        """Return the first entry of a topic's one partition that is kept."""
        topic = TopicName.parse(name)
        ((extent,),) = self.backend.extents({topic: ()}, WAIT).values()  # type: ignore[attr-defined]
        return int(extent.first.entry)


def site_on(stack: ExitStack, kind: type[BrokerProcess], folder: Path) -> Site:
    """Return a site on a broker that is stopped with the stack."""
    address = f"127.0.0.1:{free_port()}"
    if kind is EagerBroker:
        broker: BrokerProcess = EagerBroker(folder, free_port(), broker_nats=address)
    else:
        broker = BrokerProcess(folder, free_port(), broker_nats=address)
    broker.start()
    stack.callback(broker.stop)
    return Site(stack, broker, address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield site_on(stack, BrokerProcess, tmp_path_factory.mktemp("site") / "data")


@pytest.fixture
def eager(tmp_path: Path) -> Iterator[Site]:
    """Small segments and quick retention, so that files go while a test runs."""
    with ExitStack() as stack:
        yield site_on(stack, EagerBroker, tmp_path / "data")


def test_messages_that_were_deleted_or_purged_are_no_rows(site: Site) -> None:
    async def play(js: JetStreamContext) -> None:
        await js.add_stream(name="PURGED", subjects=["purged.*"])
        for number in range(20):
            await js.publish(f"purged.{'ab'[number % 2]}", b"%d" % number)
        for sequence in (1, 5, 9, 20):
            await js.delete_msg("PURGED", sequence)
        await js.purge_stream("PURGED", subject="purged.b")

    site.play(play)
    left = [b"%d" % number for number in range(2, 20, 2) if number not in {4, 8}]
    source = site.source(topics="PURGED")
    rows = source.all()
    assert values(rows) == left
    assert [row["index"] for row in rows] == [int(value) for value in left]
    found, start = [], source.begin()
    while (end := source.end(start, 3)) != start:
        found += source.rows(start, end)
        start = end
    assert found == rows


def test_rows_are_what_is_left_whatever_was_deleted(site: Site) -> None:
    """The law: entries of one and of many messages, some, all or none of which are deleted."""
    randomly = random.Random(7)
    topic = site.create("LEFT")
    sent = [v for n in range(60) for v in fill(site, topic, 1, randomly.choice((1, 3, 70)))]
    gone = {n for n in range(len(sent)) if n % 97 > 60 or randomly.random() < 0.2}

    async def delete(js: JetStreamContext) -> None:
        await asyncio.gather(*(js.delete_msg("LEFT", n + 1) for n in sorted(gone)))

    source = site.source(topics="LEFT")
    start = source.begin()
    end = source.end(start)
    site.play(delete)
    rows = source.rows(start, end)
    assert [row["index"] for row in rows] == [n for n in range(len(sent)) if n not in gone]
    assert source.all() == rows
    low, high = len(sent) // 3, len(sent) // 2
    bounds = {"starting": f'{{"LEFT": {{"0": {low}}}}}', "ending": f'{{"LEFT": {{"0": {high}}}}}'}
    bounded = site.source(topics="LEFT", **bounds)
    start = bounded.begin()
    found = bounded.rows(start, bounded.end(start, target=bounded.planner.target()))
    assert found == [row for row in rows if low <= row["index"] < high]


def test_bucket_is_read_and_read_on(site: Site) -> None:
    async def put(js: JetStreamContext, first: int) -> None:
        bucket = await js.key_value("settings")
        for number in range(first, first + 30):
            await bucket.put(f"key-{number % 3}", b"%d" % number)

    async def create(js: JetStreamContext) -> None:
        await js.create_key_value(bucket="settings", history=1)
        await put(js, 0)

    site.play(create)
    source = site.source(topics="KV_settings")
    start = source.begin()
    end = source.end(start)
    assert values(source.rows(start, end)) == [b"27", b"28", b"29"]
    site.play(lambda js: put(js, 30))
    after = source.end(end)
    assert values(source.rows(end, after)) == [b"57", b"58", b"59"]
    assert source.rows(start, end) == []
    assert after.losses == 0


def test_work_queue_is_read_without_what_was_worked_off(eager: Site) -> None:
    """Files of a queue go with its messages: what was before them was no loss either."""

    async def work(js: JetStreamContext) -> None:
        await js.add_stream(name="JOBS", subjects=["jobs.>"], retention="workqueue")
        await publish(js, 400)
        worker = await js.pull_subscribe("jobs.>", durable="worker")
        for message in await worker.fetch(390, timeout=WAIT):
            await message.ack_sync(timeout=WAIT)

    async def publish(js: JetStreamContext, count: int) -> None:
        await asyncio.gather(*(js.publish("jobs.x", bytes(1_000)) for _ in range(count)))

    async def begin(js: JetStreamContext) -> None:
        await js.add_stream(name="JOBS", subjects=["jobs.>"], retention="workqueue")
        await publish(js, 1)

    eager.play(begin)
    source = eager.source(topics="JOBS")
    end = source.end(source.begin())
    eager.play(work)
    wait_until(lambda: eager.first_entry("JOBS") > 1, WAIT)
    after = source.end(end)
    assert [row["index"] for row in source.rows(end, after)] == list(range(390, 401))
    assert after.losses == 0


@pytest.mark.parametrize(
    ("limit", "left"), [({"max_msgs": 10}, 10), ({"max_bytes": 2_000}, 20), ({"max_age": 0.2}, 0)]
)
def test_messages_that_a_limit_of_a_stream_took_are_a_loss(
    site: Site, limit: dict[str, Any], left: int
) -> None:
    name = f"LIMIT-{next(iter(limit))}"

    async def publish(js: JetStreamContext) -> None:
        await js.add_stream(name=name, subjects=[f"{name}.*"], **limit)
        for number in range(40):
            await js.publish(f"{name}.x", b"%03d" % number * 30)

    async def taken(js: JetStreamContext) -> bool:
        state = (await js.stream_info(name)).state
        return state.messages <= left and state.bytes <= limit.get("max_bytes", state.bytes)

    async def create(js: JetStreamContext) -> None:
        await js.add_stream(name=name, subjects=[f"{name}.*"], **limit)

    site.play(create)
    source = site.source(topics=name)
    end = source.end(source.begin())
    site.play(publish)
    wait_until(lambda: site.play(taken), WAIT)
    with pytest.raises(MessagesLostError, match=r"from .*:0 to before .*retention"):
        source.end(end)
    # So it stays after a crash, and a stream that begins now has lost nothing.
    site.broker.kill()
    site.broker.start()
    # What the limit deleted last may not have been on disk, and is deleted again.
    wait_until(lambda: site.play(taken), WAIT)
    with pytest.raises(MessagesLostError, match="retention"):
        source.end(end)
    assert len(source.all()) <= left


def test_retention_beside_deletions_is_a_loss_still(eager: Site) -> None:
    topic = eager.create("KEPT", 0, Policies(retention_bytes=100_000))
    fill(eager, topic, 3, 10)
    source = eager.source(topics="KEPT")
    end = source.end(source.begin(), 10)
    eager.play(lambda js: js.delete_msg("KEPT", 15))

    def taken() -> bool:
        fill(eager, topic, 20, 10, wide=200)
        return eager.first_entry("KEPT") > 0

    wait_until(taken, WAIT)
    with pytest.raises(MessagesLostError, match="retention removed them"):
        source.end(end)
    # So it stays when the broker has written it down and comes back.
    eager.broker.stop()
    eager.broker.start()
    with pytest.raises(MessagesLostError, match="retention removed them"):
        source.end(end)


def test_damage_and_what_a_repair_gave_up_are_no_deletions(site: Site) -> None:
    topic = site.create("HURT")
    for number in range(20):
        site.publish(topic, NOT_PARTITIONED, b"%03d" % number * 50)
    source = site.source(topics="HURT")
    start = source.begin()
    end = source.end(start)
    site.play(lambda js: js.delete_msg("HURT", 3))
    ledger = next(iter(end.next.values())).ledger
    site.broker.stop()
    (segment,) = site.broker.folder.glob(f"ledgers/*{ledger}/*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"010" * 50)] ^= 0xFF
    segment.write_bytes(data)
    site.broker.start()
    for on_loss in ("fail", "skip"):
        with pytest.raises(ReadFailedError, match=f"{ledger}:10 cannot be read"):
            site.source(topics="HURT", on_loss=on_loss).rows(start, end)
    site.broker.stop()
    repair = [sys.executable, "-m", "router", "check", "--data", str(site.broker.folder)]
    subprocess.run([*repair, "--repair"], check=False, timeout=WAIT, capture_output=True)
    site.broker.start()
    with pytest.raises(MessagesLostError, match=f"from {ledger}:10 to before {ledger}:11: 1 "):
        source.rows(start, end)
    skipping = site.source(topics="HURT", on_loss="skip")
    kept = [n for n in range(20) if n not in {2, 10}]
    assert values(skipping.rows(start, end)) == [b"%03d" % n * 50 for n in kept]


@pytest.mark.java
@pytest.mark.timeout(400)
def test_spark_reads_a_bucket_and_a_queue_without_what_was_deleted(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    async def put(js: JetStreamContext, *values: str) -> None:
        bucket = await js.key_value("spark")
        for number, value in enumerate(values):
            await bucket.put(f"key-{number % 2}", value.encode())

    async def create(js: JetStreamContext) -> None:
        await js.create_key_value(bucket="spark", history=1)
        await js.add_stream(name="SPARK-JOBS", subjects=["spark-jobs"], retention="workqueue")
        for number in range(6):
            await js.publish("spark-jobs", b"job %d" % number)
        worker = await js.pull_subscribe("spark-jobs", durable="worker")
        for message in await worker.fetch(4, timeout=WAIT):
            await message.ack_sync(timeout=WAIT)
        await put(js, "a", "b", "c", "d")

    def stream() -> set[str]:
        """Have a stream take what there is; return all values that it took so far."""
        read = spark.readStream.format("router").options(url=site.url, topics="KV_spark").load()
        query = (
            read.selectExpr("cast(value AS STRING) AS value")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(280)
        return {row["value"] for row in spark.read.parquet(str(tmp_path / "out")).collect()}

    register(spark)
    site.play(create)
    frame = spark.read.format("router").options(url=site.url, topics="SPARK-JOBS").load()
    assert [bytes(row["value"]) for row in frame.orderBy("index").collect()] == [b"job 4", b"job 5"]
    assert stream() == {"c", "d"}
    site.play(lambda js: put(js, "e", "f", "g"))
    assert stream() == {"c", "d", "f", "g"}
