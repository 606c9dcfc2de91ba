"""Rows a second of the source `router` against Spark's own Kafka connector, on the same messages.

Both read the same messages from a server on this machine within one Spark session, by turns, to a
sink that throws rows away; a first round of each warms up and does not count. Then messages are
published one at a time under a running stream, and the time from the publishing to the row is
measured. What workers take in memory is the largest resident size of any Python worker.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from router.backends import Backend, Batch
from router.model import Message, TopicInfo, TopicName
from router.pipelines import connectors, session
from router.pipelines.declaration import SourceSpec
from router.pipelines.source import frame
from router.pipelines.source.options import SourceOptions
from tests.servers.kafka import Kafka

MESSAGES = 200_000
SIZE = 100
ROUNDS = 3
PROBES = 20
PARTITIONS = 2
TOGETHER = 500
WAIT = 60.0


def compare(_seconds: float) -> None:
    """Print both rates, their ratio, what a worker takes, and how long a message is under way."""
    connectors.install()
    resources = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = Kafka(folder / "kafka")
        stack.callback(server.close)
        server.start()
        spark = session.start("bench", resources, ["kafka"])
        stack.callback(spark.stop)
        stores = {
            "router": SourceSpec(url=f"embedded:{folder / 'data'}", topics=("bench",)),
            "kafka": SourceSpec(url=f"kafka://{server.address}", topics=("bench",)),
        }
        backends = {
            name: stack.enter_context(SourceOptions.of_source(spec).opened())
            for name, spec in stores.items()
        }
        for backend in backends.values():
            fill(backend)
        read(spark, stores)
        delays(spark, stores["router"], backends["router"], folder)


def fill(backend: Backend) -> None:
    topic = TopicName.parse("bench")
    backend.create_topic(TopicInfo(topic, PARTITIONS), WAIT)
    value = bytes(range(256)) * (SIZE // 256 + 1)
    for first in range(0, MESSAGES, TOGETHER):
        some = [Message(value[:SIZE], b"key-%d" % n) for n in range(first, first + TOGETHER)]
        backend.publish(Batch(topic, first // TOGETHER % PARTITIONS, some), WAIT)


def read(spark: SparkSession, stores: dict[str, SourceSpec]) -> None:
    rates: dict[str, list[float]] = {name: [] for name in stores}
    for number in range(ROUNDS + 1):
        for name, spec in stores.items():
            took = seconds(frame(spark, spec, streaming=False))
            if number:
                rates[name].append(MESSAGES / took)
    middle = {name: statistics.median(found) for name, found in rates.items()}
    for name, rate in middle.items():
        print(f"{name:<8} {rate:>12,.0f} rows/s   ({told(rates[name])})")
    print(f"router / kafka = {middle['router'] / middle['kafka']:.2f}")
    print(f"largest Python worker: {largest_worker() / 1024:.0f} MiB")


def seconds(read: DataFrame) -> float:
    start = time.perf_counter()
    read.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def delays(spark: SparkSession, spec: SourceSpec, backend: Backend, folder: Path) -> None:
    """Print how long it takes from publishing a message to its row in a running stream."""
    latest = SourceSpec(url=spec.url, topics=spec.topics, starting="latest")
    found: dict[bytes, float] = {}

    def take(rows: DataFrame, _: int) -> None:
        for row in rows.select("value").collect():
            found.setdefault(bytes(row["value"]), time.perf_counter())

    query = (
        frame(spark, latest, streaming=True)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    running = query.start()
    try:
        took = []
        topic = TopicName.parse("bench")
        for number in range(PROBES + 1):
            value = b"probe-%d" % number
            start = time.perf_counter()
            while value not in found and time.perf_counter() - start < WAIT:
                if number == 0 or time.perf_counter() - start < 0.001:
                    backend.publish(Batch(topic, 0, [Message(value)]), WAIT)
                time.sleep(0.01)
            took.append(found[value] - start)
        print(
            f"publish to row: median {statistics.median(took[1:]) * 1000:.0f} ms, most "
            f"{max(took[1:]) * 1000:.0f} ms"
        )
    finally:
        running.stop()


def told(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:,.0f}" for rate in rates)


def largest_worker() -> int:
    """Return the largest resident size of a Python worker of Spark, in KiB."""
    most = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"\0-m\0pyspark." in (process / "cmdline").read_bytes()
            status = (process / "status").read_text() if ours else ""
        except OSError:
            continue  # it ended meanwhile
        for line in status.splitlines():
            if line.startswith("VmHWM"):
                most = max(most, int(line.split()[1]))
    return most
