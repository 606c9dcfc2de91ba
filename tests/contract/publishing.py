"""Publishers that go on while a store dies, and what must be there afterwards."""

from __future__ import annotations

import threading
import time

from router.backends import Batch
from router.errors import RouterError
from router.model import NOT_PARTITIONED, Message, TopicName
from tests.contract.conftest import WAIT, Opened


class Publishers:
    """Threads that publish numbers and note those that were acknowledged."""

    def __init__(self, opened: Opened, topic: TopicName, count: int = 3) -> None:
        self.done: list[bytes] = []
        self.failed: set[bytes] = set()
        self._opened = opened
        self._topic = topic
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, name: int) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"%d-%d" % (name, number)
            number += 1
            try:
                batch = Batch(self._topic, NOT_PARTITIONED, [Message(value)])
                self._opened.backend.publish(batch, WAIT)
            except RouterError:
                self.failed.add(value)
            else:
                self.done.append(value)

    def more(self, count: int = 30) -> None:
        """Wait until so many more were acknowledged."""
        wanted, deadline = len(self.done) + count, time.monotonic() + 3 * WAIT
        while len(self.done) < wanted:
            assert time.monotonic() < deadline, "publishing does not go on"
            time.sleep(0.01)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * WAIT)


def received(opened: Opened, topic: TopicName) -> list[bytes]:
    consumer = opened.consumer(topic, group="reader")
    found = consumer.receive(1_000_000, 1 << 30, WAIT)
    consumer.close()
    return [stored.message.value for stored in found]


def check(publishers: Publishers, found: list[bytes]) -> None:
    """All that was acknowledged is there once; what failed may be there, once."""
    assert len(found) == len(set(found))
    assert set(publishers.done) <= set(found) <= set(publishers.done) | publishers.failed
