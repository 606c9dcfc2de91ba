"""Kill -9 of the broker and of a client that copies a topic in transactions: each message once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from tests.kafka.clients.confluent import Confluent
from tests.kafka.conftest import KafkaStack
from tests.kafka.test_transactions import committed
from tests.processes import wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow]

KILLS = int(os.environ.get("SOAK_TRANSFORM_KILLS", "2"))
"""Of the broker and of the client in turns."""
PARTITIONS = 2
PATIENCE = 60.0
SOURCE, TARGET = "untransformed", "transformed"
FEED_SECONDS = 0.02
FEED_MESSAGES = 4


class Feeder:
    """Writes the values of numbers from 0 on to the source, to its partitions in turn."""

    def __init__(self, bootstrap: str, value: Callable[[int], bytes]) -> None:
        self.sent = 0
        self._value = value
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(FEED_SECONDS):
            for _ in range(FEED_MESSAGES):
                partition = self.sent % PARTITIONS
                self._producer.produce(SOURCE, self._value(self.sent), partition=partition)
                self.sent += 1
            self._producer.poll(0)

    def close(self) -> None:
        """Write no more; all is stored on return."""
        self._ending.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE) == 0


class Transforming:
    """Keeps a process that transforms running; `committed`: how many transactions it told of."""

    def __init__(self, command: Sequence[str]) -> None:
        self.committed = self.begun = 0
        self._command = command
        self._is_ending = False
        self._process = self._begin()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _begin(self) -> subprocess.Popen[bytes]:
        self.begun += 1
        return subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _run(self) -> None:
        while True:
            process = self._process
            assert process.stdout is not None
            with process:
                for _ in process.stdout:
                    self.committed += 1
            if self._is_ending:
                return
            self._process = self._begin()

    def has_committed(self, count: int) -> bool:
        """Return whether so many transactions were committed."""
        return self.committed >= count

    def kill(self) -> None:
        """Kill the process; another one begins."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, and begin no other one."""
        self._is_ending = True
        while self._thread.is_alive():
            self._process.kill()
            self._thread.join(0.1)


def written(number: int) -> bytes:
    return b"%d" % number


@pytest.mark.timeout(180 + 30 * KILLS)
def test_each_message_is_copied_once_over_kills_of_the_broker_and_of_the_client(
    folder: Path,
) -> None:
    stack, chance = KafkaStack(folder), Random(1)
    stack.start()
    with closing(Confluent(stack.kafka)) as reader:
        for topic in (SOURCE, TARGET):
            reader.create(topic, PARTITIONS)
    command = [sys.executable, "-m", "tests.kafka.transforming", stack.kafka, SOURCE, TARGET]
    with closing(Transforming(command)) as client:
        with closing(Feeder(stack.kafka, written)) as feeder:
            for kill in range(KILLS):
                reached = client.committed + chance.randint(1, 9)
                wait_until(partial(client.has_committed, reached), PATIENCE)
                if kill % 2:
                    client.kill()
                else:
                    os.kill(stack.broker(), signal.SIGKILL)
        # What the last client did not tell of was committed, or is copied now.
        source = [
            [written(number) for number in range(partition, feeder.sent, PARTITIONS)]
            for partition in range(PARTITIONS)
        ]

        def copied() -> list[list[bytes]]:
            parts = range(PARTITIONS)
            return [[value for _, value in committed(stack.kafka, TARGET, p)] for p in parts]

        wait_until(lambda: sum(map(len, copied())) >= feeder.sent, PATIENCE)
    assert copied() == source
    assert client.begun > KILLS // 2
    assert stack.stop() == 0
