"""`router copy`: how fast topics go from store to store, beside what reading and publishing take.

All parts run in one process with the same batches, so that the ratios hold on a busy machine: the
floor of a copy is the sum of what reading alone and publishing alone cost in processor time, as one
interpreter does both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import NamedTuple

from router import settings as all_settings
from router.backends import Backend, Batch, NullMailbox, Start, embedded, memory, pulsar
from router.backends import kafka as kafka_backend
from router.model import Message, TopicInfo, TopicName
from router.node import client
from router.services.copying.context import CopyContext, CopyOptions, Figures, Throttle
from router.services.copying.copier import PartitionCopier
from router.services.copying.fidelity import StoreKind
from router.services.copying.state import CopiedTopic, CopyState
from tests.contract.conftest import stop_broker
from tests.servers.kafka import Kafka
from tests.servers.pulsar import Pulsar

TIMEOUT = 60.0
PARTITIONS = 4
BATCH_BYTES = 4 << 20
SIZES = (100, 1_024, 10_240)


class Figure(NamedTuple):
    """Seconds on the clock and of this process's processor time."""

    seconds: float
    processor: float


class Store(NamedTuple):
    """A store to copy from or to."""

    kind: StoreKind
    backend: Backend


def copying(seconds: float) -> None:
    """Print a table for each target: rates of reading, publishing, and copying, of one run."""
    total = int(seconds * 8) << 20
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        source = _embedded(folder / "from", stack)
        targets = {
            "embedded": _embedded(folder / "to", stack),
            "Apache Kafka": _kafka(folder / "kafka", stack),
            "Apache Pulsar": _pulsar(folder / "pulsar", stack),
        }
        print(
            f"{PARTITIONS} partitions; MB/s, and processor time of the copying process, us/message"
        )
        print("| message | target | part | MB/s | messages/s | us/message |")
        print("| --- | --- | --- | --- | --- | --- |")
        for size in SIZES:
            count = min(200_000, total // size)
            topic = TopicName.parse(f"bench-{size}")
            source.backend.create_topic(TopicInfo(topic, PARTITIONS), TIMEOUT)
            _publish(source.backend, topic, size, count)
            for name, target in targets.items():
                _compare(name, source, target, topic, size, count)


def _compare(
    name: str, source: Store, target: Store, topic: TopicName, size: int, count: int
) -> None:
    floor = TopicName.parse(f"floor-{size}")
    target.backend.create_topic(TopicInfo(floor, PARTITIONS), TIMEOUT)
    target.backend.create_topic(TopicInfo(topic, PARTITIONS), TIMEOUT)
    parts: dict[str, Callable[[], None]] = {
        "reading alone": lambda: _read(source.backend, topic, count),
        "publishing alone": lambda: _publish(target.backend, floor, size, count),
        "copy": lambda: _copy(source, target, topic, count),
    }
    for part, work in parts.items():
        figure = _measured(work)
        rate = count / figure.seconds
        print(
            f"| {size} B | {name} | {part} | {rate * size / 1e6:.1f} | {rate:,.0f} |"
            f" {figure.processor / count * 1e6:.1f} |",
            flush=True,
        )


def _measured(work: Callable[[], None]) -> Figure:
    began, used = time.monotonic(), time.process_time()
    work()
    return Figure(time.monotonic() - began, time.process_time() - used)


def _read(backend: Backend, topic: TopicName, count: int) -> None:
    found = 0
    for partition in range(PARTITIONS):
        reader = backend.read(topic, partition, Start.EARLIEST, NullMailbox(), TIMEOUT)
        while some := reader.receive(5_000, BATCH_BYTES, TIMEOUT):
            found += len(some)
        reader.close()
    assert found == count, f"{found} of {count} messages were read"


def _publish(backend: Backend, topic: TopicName, size: int, count: int) -> None:
    """Publish with four threads, a partition each, in batches like those of a copy."""
    batch = max(1, min(5_000, BATCH_BYTES // (size + 64)))

    def publish(partition: int) -> None:
        left = count // PARTITIONS + (partition < count % PARTITIONS)
        while left:
            some = min(batch, left)
            messages = [Message(b"x" * size, b"key-%d" % number) for number in range(some)]
            backend.publish(Batch(topic, partition, messages), TIMEOUT)
            left -= some

    with ThreadPoolExecutor(PARTITIONS) as pool:
        list(pool.map(publish, range(PARTITIONS)))


def _copy(source: Store, target: Store, topic: TopicName, count: int) -> None:
    stop, figures = Event(), Figures(print)
    with _state() as state, ThreadPoolExecutor(4) as pool:
        copied = CopiedTopic(topic, topic, PARTITIONS, done=True)
        state.put_topic(copied)
        context = CopyContext(
            source.backend,
            target.backend,
            target.kind,
            state,
            CopyOptions(timeout=TIMEOUT),
            figures,
            Throttle(0, stop),
            pool,
            stop,
        )
        copier = PartitionCopier(context, BATCH_BYTES * 3 // 4)
        copier.add(copied, {})
        copier.run(lambda level: None, 0.1)
    assert figures.messages == count, f"{figures.messages} of {count} messages were copied"


@contextmanager
def _state() -> Iterator[CopyState]:
    with TemporaryDirectory() as folder:
        state = CopyState.open(Path(folder) / "copy.db", "here", "there")
        try:
            yield state
        finally:
            state.close()


def _embedded(folder: Path, stack: ExitStack) -> Store:
    settings = all_settings.load(None, {}, {"data.dir": str(folder)})
    stack.callback(stop_broker, folder)
    node = client.open_node(settings)
    stack.callback(node.close)
    backend = embedded.open_backend("embedded", settings, node)
    stack.callback(backend.close)
    return Store(StoreKind.EMBEDDED, backend)


def _kafka(folder: Path, stack: ExitStack) -> Store:
    server = Kafka(folder)
    stack.callback(server.close)
    server.start()
    settings = all_settings.load(None, {}, {"data.dir": str(folder / "node")})
    node = memory.open_node(settings)
    backend = kafka_backend.open_backend(f"kafka://{server.address}", settings, node)
    stack.callback(backend.close)
    return Store(StoreKind.KAFKA, backend)


def _pulsar(folder: Path, stack: ExitStack) -> Store:
    server = Pulsar(folder)
    stack.callback(server.stop)
    server.start()
    server.ask("POST", "namespaces/public/default/deduplication", body=True)
    settings = all_settings.load(None, {}, {"data.dir": str(folder / "node"), **server.flags})
    backend = pulsar.open_backend(server.backend, settings, None)
    stack.callback(backend.close)
    return Store(StoreKind.PULSAR, backend)
