"""Kill -9 of the broker under idempotent producers: nothing lost, doubled or reordered."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Producer

from tests.kafka.clients.confluent import Confluent
from tests.kafka.clients.program import java
from tests.kafka.conftest import KafkaStack
from tests.processes import wait_until

pytestmark = [pytest.mark.java, pytest.mark.system, pytest.mark.slow]

KILLS = int(os.environ.get("SOAK_KAFKA_KILLS", "4"))
BETWEEN_KILLS = 2_000
PARTITIONS = 2
PATIENCE = 60.0


class Load(Protocol):
    """Produces the numbers from 0 on, to two partitions in turn."""

    def load(self, topic: str) -> None: ...

    def acknowledged(self) -> int: ...

    def unload(self) -> tuple[int, int]: ...

    def close(self) -> None: ...


class Librdkafka:
    """The load of confluent-kafka, in a thread."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "queue.buffering.max.messages": 2_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._ending = threading.Event()
        self._sent, self._acknowledged, self._failed = 0, 0, 0
        self._thread: threading.Thread | None = None

    def load(self, topic: str) -> None:
        self._thread = threading.Thread(target=self._run, args=(topic,))
        self._thread.start()

    def acknowledged(self) -> int:
        return self._acknowledged

    def unload(self) -> tuple[int, int]:
        self.close()
        assert self._producer.flush(PATIENCE) == 0
        return self._sent, self._failed

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, topic: str) -> None:
        while not self._ending.is_set():
            try:
                self._producer.produce(
                    topic,
                    b"%d" % self._sent,
                    partition=self._sent % PARTITIONS,
                    on_delivery=self._delivered,
                )
                self._sent += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._failed += 1


def _reached(load: Load, count: int) -> bool:
    return load.acknowledged() >= count


LOADS: dict[str, Callable[[str, Path], Load]] = {
    "confluent-kafka": lambda bootstrap, _: Librdkafka(bootstrap),
    "java-4.4.0": lambda bootstrap, folder: java("java-4.4.0", folder, bootstrap),
}


@pytest.mark.timeout(180 + 30 * KILLS)
def test_idempotent_producers_survive_kills_of_the_broker(folder: Path) -> None:
    stack = KafkaStack(folder)
    stack.start()
    with closing(Confluent(stack.kafka)) as reader:
        loads = {name: make(stack.kafka, folder / "classes") for name, make in LOADS.items()}
        for name, load in loads.items():
            reader.create(name, PARTITIONS)
            load.load(name)
        for _ in range(KILLS):
            for load in loads.values():
                wait_until(partial(_reached, load, load.acknowledged() + BETWEEN_KILLS), PATIENCE)
            os.kill(stack.broker(), signal.SIGKILL)
        for name, load in loads.items():
            sent, failed = load.unload()
            assert failed == 0, name
            assert sent > KILLS * BETWEEN_KILLS
            for partition in range(PARTITIONS):
                expected = [b"%d" % number for number in range(partition, sent, PARTITIONS)]
                assert reader.ends(name, partition) == (0, len(expected)), name
                seen = reader.read(name, 0, len(expected), partition)
                assert [one.record.value for one in seen] == expected, name
            load.close()
    assert stack.stop() == 0
