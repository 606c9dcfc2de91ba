"""A replay to the broker's listener for Kafka, of rows that are written down, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
import pytest
from pyarrow import parquet

from router.backends.kafka.transactions import KafkaTransactions
from router.pipelines.declaration import Pipeline, SourceSpec
from router.pipelines.jobs import JobContext
from router.pipelines.jobs.options import read
from router.pipelines.jobs.replay_files import ReplayFiles
from router.pipelines.jobs.replaying import MAX_TRANSACTION_SECONDS, replay
from tests.contract.conftest import open_kafka
from tests.kafka.clients.confluent import Confluent
from tests.ports import free_port
from tests.processes import BrokerProcess, ManualClock

ROWS = 200


@pytest.fixture
def kafka_address(tmp_path: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    process = BrokerProcess(tmp_path / "data", free_port(), broker_kafka=address)
    process.start()
    yield address
    assert process.stop() == 0


class Waits(threading.Event):
    """Lets time pass where a job waits."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0)
        return False


def write(topic: str, folder: Path) -> None:
    """Write two files of rows as Spark does."""
    folder.mkdir()
    for file in range(2):
        values = [b"%d" % number for number in range(file * ROWS, (file + 1) * ROWS)]
        columns: dict[str, Any] = {
            "topic": [topic] * ROWS,
            "partition": pa.array([0] * ROWS, pa.int32()),
            "key": pa.array([None] * ROWS, pa.binary()),
            "value": pa.array(values),
            "properties": pa.array([[]] * ROWS, pa.map_(pa.string(), pa.string())),
            "event_time": pa.array([None] * ROWS, pa.int64()),
        }
        name = f"part-00000-5c7c8d9e-c{file:03}.snappy.parquet"
        parquet.write_table(pa.table(columns), folder / name)
    (folder / "_SUCCESS").touch()


def test_replay_below_the_rate_of_its_plan_commits_in_time_and_keeps_to_its_rate(
    kafka_address: str, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"replayed-{uuid4()}"
    options = read("replay", {"archive": "table", "rate": 1})
    chosen = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.values.items()
        if name not in {"rate", "chunk"}
    }
    ReplayFiles(tmp_path / "replay").make(chosen, partial(write, topic), lambda _: {topic: 1}, 10)
    opened, spans = list[float](), list[tuple[float, float]]()
    add_partition, end = KafkaTransactions.add_partition, KafkaTransactions.end

    def added(self: KafkaTransactions, *arguments: Any) -> None:
        opened.append(clock())
        add_partition(self, *arguments)

    def ended(self: KafkaTransactions, *, commit: bool, deadline: float) -> None:
        spans.append((opened[-1], clock()))
        end(self, commit=commit, deadline=deadline)

    monkeypatch.setattr(KafkaTransactions, "add_partition", added)
    monkeypatch.setattr(KafkaTransactions, "end", ended)
    with ExitStack() as stack:
        client = stack.enter_context(closing(Confluent(kafka_address)))
        client.create(topic)
        store = open_kafka(kafka_address, tmp_path / "node", stack)
        context = JobContext(
            pipeline=Pipeline("p", SourceSpec(), checkpoint=str(tmp_path)),
            spark=cast("Any", None),
            backend=store.backend,
            settings=store.settings,
            stop=Waits(clock),
            notify=lambda _: None,
            clock=clock,
            wall_ms=lambda: 1_790_000_000_000,
        )
        begin = clock()
        assert replay(context, options)
        sent = [int(one.record.value or b"") for one in client.read(topic, 0, 2 * ROWS)]
    assert sent == list(range(2 * ROWS))
    assert [last - first for first, last in spans] == [MAX_TRANSACTION_SECONDS] * 2
    assert spans[1][0] - begin == ROWS
