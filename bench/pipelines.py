"""The source `router` beside Spark's own Kafka connector, on the same messages of one broker.

Both read the same topics within one Spark session, by turns, to a sink that throws rows away: small
messages, messages of 1 KiB, and many topics. The connector reads the broker's Kafka listener. A
first round of each warms up and does not count. Beside rows a second it is told what a row takes of
processor time: of Spark with its Python workers, and of the broker. Then messages are published one
at a time under a running stream, and the time from the publishing to the row is measured.

PIPELINES_SHARE is the part of the full size, 5,000,000 small messages, 1,000,000 of 1 KiB and 1,000
topics of 1,000, that is read; 0.02 unless it is given.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from router.backends import Backend, Batch
from router.model import NOT_PARTITIONED, Message, TopicInfo, TopicName
from router.pipelines import connectors, session
from router.pipelines.declaration import SourceSpec
from router.pipelines.source import frame
from router.pipelines.source.options import SourceOptions
from tests.ports import free_port
from tests.processes import BrokerProcess

SHARE = float(os.environ.get("PIPELINES_SHARE", "0.02"))
ROUNDS = 3
PROBES = 20
TOGETHER = 500
WAIT = 60.0
RESOURCES = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """Messages of a size in topics whose names begin with that of the load."""

    name: str
    topics: int
    partitions: int
    messages: int
    size: int

    def names(self) -> list[TopicName]:
        """Return the topics."""
        return [TopicName.parse(f"{self.name}-{number}") for number in range(self.topics)]


def loads() -> list[Load]:
    """Return what is read, by SHARE."""
    topics = max(1, int(1_000 * SHARE))
    return [
        Load("small", 1, 4, int(5_000_000 * SHARE), 100),
        Load("large", 1, 4, int(1_000_000 * SHARE), 1024),
        Load("many", topics, 0, 1_000 * topics, 100),
    ]


def compare(_seconds: float) -> None:
    """Print the rates, processor times and their ratios, and how long a message is under way."""
    connectors.install(print)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = f"127.0.0.1:{free_port()}"
        broker = BrokerProcess(folder / "data", free_port(), broker_kafka=kafka)
        stack.callback(broker.kill)
        broker.start()
        spark = session.start("bench", RESOURCES, ["kafka"])
        stack.callback(spark.stop)
        url = f"embedded:{folder / 'data'}"
        backend = stack.enter_context(SourceOptions.of_source(SourceSpec(url=url)).opened())
        for load in loads():
            fill(backend, load)
            urls = {"router": url, "kafka": f"kafka://{kafka}"}
            read(spark, load, urls, broker)
        delays(spark, SourceSpec(url=url, topics=("probes",)), backend, folder)


def fill(backend: Backend, load: Load) -> None:
    value = (bytes(range(256)) * (load.size // 256 + 1))[: load.size]
    share = load.messages // load.topics
    for topic in load.names():
        backend.create_topic(TopicInfo(topic, load.partitions), WAIT)
        for first in range(0, share, TOGETHER):
            numbers = range(first, min(share, first + TOGETHER))
            partition = first // TOGETHER % load.partitions if load.partitions else NOT_PARTITIONED
            some = [Message(value, b"key-%d" % number) for number in numbers]
            backend.publish(Batch(topic, partition, some), WAIT)


def read(spark: SparkSession, load: Load, urls: dict[str, str], broker: BrokerProcess) -> None:
    names = tuple(topic.local for topic in load.names())
    rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in urls}
    for number in range(ROUNDS + 1):
        for name, url in urls.items():
            found = measured(frame(spark, SourceSpec(url=url, topics=names), False), broker)
            if number:
                rounds[name].append(found)
    print(f"{load.name}: {load.messages:,} messages of {load.size} bytes, {load.topics} topics")
    medians: dict[str, tuple[float, float, float]] = {}
    for name, found in rounds.items():
        wall, spark_cpu, broker_cpu = (
            statistics.median(column) for column in zip(*found, strict=True)
        )
        medians[name] = wall, spark_cpu, broker_cpu
        print(
            f"  {name:<8} {load.messages / wall:>12,.0f} rows/s"
            f"  Spark {per_row(spark_cpu, load):6.2f} us/row"
            f"  broker {per_row(broker_cpu, load):6.2f} us/row"
        )
    (wall, own, served), (others_wall, others, others_served) = medians["router"], medians["kafka"]
    print(
        f"  router / kafka: rate {others_wall / wall:.2f}, Spark's time {own / others:.2f},"
        f" all time {(own + served) / (others + others_served):.2f}"
    )


def per_row(seconds: float, load: Load) -> float:
    return seconds * 1e6 / load.messages


def measured(read: DataFrame, broker: BrokerProcess) -> tuple[float, float, float]:
    """Return the seconds of a read: by the clock, and of the processor for Spark and the broker."""
    assert broker.process is not None
    served = broker.process.pid
    before, spark_before, start = cpu([served]), spark_cpu(served), time.perf_counter()
    read.write.format("noop").mode("overwrite").save()
    took = time.perf_counter() - start
    return took, spark_cpu(served) - spark_before, cpu([served]) - before


def spark_cpu(broker: int) -> float:
    """Return the processor time of this process and all below it, except for the broker."""
    return cpu(below(os.getpid(), broker))


def below(process: int, other: int) -> Iterator[int]:
    yield process
    children: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        children += map(int, file.read_text().split())
    for child in children:
        if child != other:
            yield from below(child, other)


def cpu(processes: Iterator[int] | list[int]) -> float:
    """Return the seconds of processor time of processes, and of their children that ended."""
    total = 0
    for process in processes:
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            continue  # its parent has its time
        total += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return total / _TICKS


def delays(spark: SparkSession, spec: SourceSpec, backend: Backend, folder: Path) -> None:
    """Print how long it takes from publishing a message to its row in a running stream."""
    topic = TopicName.parse(spec.topics[0])
    backend.create_topic(TopicInfo(topic, 2), WAIT)
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
