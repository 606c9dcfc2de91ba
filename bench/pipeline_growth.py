"""What a stream that runs for long leaves behind: files of its checkpoint, and memory.

Two streams read the same topic, one of them with a state, batch after batch as fast as Spark makes
them; a message comes every 20 ms. Spark keeps the files of 100 batches and the state of as many, so
what grows behind them grows without a bound. PIPELINES_MINUTES is how long they run; 10 unless it
is given.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.pipelines import RESOURCES, WAIT
from router.backends import Backend, Batch
from router.model import NOT_PARTITIONED, Message, TopicInfo, TopicName
from router.pipelines import session
from router.pipelines.declaration import SourceSpec
from router.pipelines.source import frame
from router.pipelines.source.options import SourceOptions
from tests.ports import free_port
from tests.processes import BrokerProcess

MINUTES = float(os.environ.get("PIPELINES_MINUTES", "10"))
PAUSE_SECONDS = 0.02
KEYS = 50
TOPIC = TopicName.parse("live")


def growth(_seconds: float) -> None:
    """Print, each minute, what there is of both streams."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = BrokerProcess(folder / "data", free_port())
        stack.callback(broker.kill)
        broker.start()
        spark = session.start("bench", RESOURCES, [])
        stack.callback(spark.stop)
        source = SourceSpec(url=f"embedded:{folder / 'data'}", topics=(TOPIC.local,))
        backend = stack.enter_context(SourceOptions.of_source(source).opened())
        backend.create_topic(TopicInfo(TOPIC, 0), WAIT)
        stop = Event()
        publisher = Thread(target=publish, args=(backend, stop))
        stack.callback(publisher.join)
        stack.callback(stop.set)
        publisher.start()
        queries = [start(spark, source, folder / name) for name in ("plain", "counts")]
        for minute in range(1, round(MINUTES) + 1):
            time.sleep(60)
            print(f"{minute:>4} min  broker {resident(broker.pid)} MB  Spark {heap(spark)} MB")
            for query in queries:
                print(f"          {described(query, folder)}")
        for query in queries:
            query.stop()


def publish(backend: Backend, stop: Event) -> None:
    number = 0
    while not stop.wait(PAUSE_SECONDS):
        message = Message(b"%d" % number, b"key-%d" % (number % KEYS))
        backend.publish(Batch(TOPIC, NOT_PARTITIONED, [message]), WAIT)
        number += 1


def start(spark: SparkSession, source: SourceSpec, checkpoint: Path) -> StreamingQuery:
    """Start the stream that is named as its checkpoint is."""
    rows = frame(spark, source, streaming=True)
    if checkpoint.name == "counts":
        rows = rows.groupBy("key").count()
    writer = rows.writeStream.format("noop").outputMode("update").queryName(checkpoint.name)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def described(query: StreamingQuery, folder: Path) -> str:
    """Return how far a stream has come, its checkpoint, and the median of its latest batches."""
    batches = [one for one in query.recentProgress if one["numInputRows"]]
    took = statistics.median(one["durationMs"]["triggerExecution"] for one in batches)
    found = folder / str(query.name)
    sizes = list(file_sizes(found))
    return (
        f"{query.name:<7} batch {batches[-1]['batchId']:>6}  {took:>5.0f} ms  checkpoint"
        f" {len(sizes):>5} files {sum(sizes):>9,} bytes"
    )


def file_sizes(folder: Path) -> Iterator[int]:
    for path in list(folder.rglob("*")):
        with suppress(FileNotFoundError):  # Spark removes them meanwhile
            if not path.is_dir():
                yield path.stat().st_size


def resident(process: int) -> int:
    """Return the memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def heap(spark: SparkSession) -> int:
    """Return what is in use of the JVM's heap after a collection, in MB."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return (int(runtime.totalMemory()) - int(runtime.freeMemory())) >> 20
