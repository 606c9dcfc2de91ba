"""Kill -9 of the broker and of Kafka Streams, which counts words exactly once: no count twice."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.kafka.clients.confluent import Confluent
from tests.kafka.conftest import KafkaStack
from tests.kafka.test_streams import streams
from tests.kafka.test_transaction_crash import PARTITIONS, SOURCE, TARGET, Feeder, Transforming
from tests.kafka.test_transactions import committed
from tests.processes import wait_until

pytestmark = [pytest.mark.java, pytest.mark.system, pytest.mark.slow]

KILLS = int(os.environ.get("SOAK_STREAMS_KILLS", "1"))
"""Of the broker, every third one of the program."""
WORDS = 20
PATIENCE = 120.0
POLL_SECONDS = 0.2
Counts = list[tuple[bytes, bytes]]


class CommittedReader:
    """Follows the target as a committed reader, over all kills; `found` are words and counts."""

    def __init__(self, bootstrap: str) -> None:
        self.found: list[Counts] = [[] for _ in range(PARTITIONS)]
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "follower",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(TARGET, part, 0) for part in range(PARTITIONS)])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def has_read(self, count: int) -> bool:
        """Return whether so many counts came."""
        return sum(map(len, self.found)) >= count

    def close(self) -> None:
        """Read no more."""
        self._ending.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                count = message.key() or b"", message.value() or b""
                self.found[message.partition()].append(count)


def word(number: int) -> bytes:
    return b"w%d" % (number % WORDS)


@pytest.mark.timeout(300 + 60 * KILLS)
def test_each_word_is_counted_once_over_kills_of_the_broker_and_of_streams(folder: Path) -> None:
    stack, chance = KafkaStack(folder), Random(1)
    stack.start()
    with closing(Confluent(stack.kafka)) as admin:
        for topic in (SOURCE, TARGET):
            admin.create(topic, PARTITIONS)
    java, *rest = streams(folder)
    command = [java, "-Dguarantee=exactly_once_v2", "-Dsession=10000", *rest]
    arguments = stack.kafka, "counting", str(folder / "state"), SOURCE, TARGET
    reader = CommittedReader(stack.kafka)
    with closing(reader), closing(Transforming([*command, *arguments])) as program:
        with closing(Feeder(stack.kafka, word)) as feeder:
            for kill in range(KILLS):
                reached = sum(map(len, reader.found)) + chance.randint(50, 400)
                wait_until(partial(reader.has_read, reached), PATIENCE)
                if kill % 3 == 2:
                    program.kill()
                else:
                    os.kill(stack.broker(), signal.SIGKILL)
        wait_until(partial(reader.has_read, feeder.sent), PATIENCE)
    sent = Counter(word(number) for number in range(feeder.sent))
    counts: dict[bytes, list[int]] = {}
    for one, count in (pair for part in reader.found for pair in part):
        counts.setdefault(one, []).append(int(count))
    assert counts == {one: list(range(1, times + 1)) for one, times in sent.items()}
    assert [committed(stack.kafka, TARGET, part) for part in range(PARTITIONS)] == reader.found
    assert stack.stop() == 0
