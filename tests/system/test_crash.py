"""Kill -9 at any moment: nothing acknowledged is lost, nothing reordered, nothing stored twice."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]

BROKER_KILLS = int(os.environ.get("SOAK_BROKER_KILLS", "10"))
STACK_KILLS = int(os.environ.get("SOAK_STACK_KILLS", "3"))
TOPICS = {"one": 1, "two": 1, "parts": 4}
# What a client may be answered while a part of the product is not there.
AWAY = {503, 504}
DRAIN_SECONDS = 60.0


class Publisher(threading.Thread):
    """Posts numbered messages one after another; never repeats one itself."""

    def __init__(self, port: int, topic: str, name: str) -> None:
        super().__init__(daemon=True)
        self.port, self.topic, self.label = port, topic, name
        self.stopping = threading.Event()
        self.acknowledged: list[int] = []
        self.refused: list[tuple[int, bytes]] = []
        self.sent = 0

    def run(self) -> None:
        """Post until told to stop."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        path = f"/events/{self.topic}?partitionKey={self.label}"
        while not self.stopping.is_set():
            number, self.sent = self.sent, self.sent + 1
            body = f"{self.label}:{number}".encode()
            try:
                client.request("POST", path, body, {"Content-Type": "text/plain"})
                answer = client.getresponse()
                told = answer.read()
                if answer.status == 200:
                    self.acknowledged.append(number)
                else:
                    self.refused.append((answer.status, told))
            except (OSError, http.client.HTTPException):
                client.close()
                time.sleep(0.01)
        client.close()


class Poller(threading.Thread):
    """Polls one consumer id of a group and keeps all that it is given, in order."""

    def __init__(self, port: int, topic: str, group: str, consumer: str) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.topic = topic
        self.path = f"/events/{topic}/{group}/{consumer}?timeout=2000&from=earliest"
        self.stopping = threading.Event()
        self.received: list[str] = []
        self.refused: list[tuple[int, bytes]] = []

    def run(self) -> None:
        """Poll until told to stop."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while not self.stopping.is_set():
            try:
                client.request("GET", self.path)
                answer = client.getresponse()
                body = answer.read()
                if answer.status == 200:
                    self.received += json.loads(body)
                else:
                    self.refused.append((answer.status, body))
                    time.sleep(0.05)
            except (OSError, http.client.HTTPException):
                client.close()
                time.sleep(0.02)
        client.close()


def read_all(port: int, topic: str) -> list[str]:
    """Return everything that a topic holds.

    What was killed last may still be on its way back: a reading that is broken off begins again, as
    another group.
    """
    deadline = time.monotonic() + DRAIN_SECONDS
    for attempt in itertools.count():
        try:
            return _read_as(port, topic, f"audit-{attempt}")
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline, f"{topic} cannot be read"
            time.sleep(0.05)
    raise AssertionError


def _read_as(port: int, topic: str, group: str) -> list[str]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    found: list[str] = []
    with contextlib.closing(client):
        while True:
            client.request("GET", f"/events/{topic}/{group}/audit?timeout=1500&from=earliest")
            answer = client.getresponse()
            body = answer.read()
            if answer.status in AWAY:
                raise ConnectionError(body)
            assert answer.status == 200, body
            messages = json.loads(body)
            if not messages:
                return found
            found += messages


def judge(publishers: list[Publisher], stored: dict[str, list[str]]) -> None:
    """Hold what is stored against what was acknowledged."""
    for topic, messages in stored.items():
        twice = [m for m, n in Counter(messages).items() if n > 1]
        assert not twice, f"{topic}: stored twice {twice[:5]}"
    for publisher in publishers:
        mine = [
            int(m.split(":")[1])
            for m in stored[publisher.topic]
            if m.startswith(publisher.label + ":")
        ]
        lost = set(publisher.acknowledged) - set(mine)
        assert not lost, f"{publisher.label}: acknowledged and lost {sorted(lost)[:5]}"
        assert mine == sorted(mine), f"{publisher.label}: reordered"
        assert len(publisher.acknowledged) > 10, f"{publisher.label}: no load"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """The product on an empty folder, with its topics."""
    made = Stack(
        tmp_path,
        "--workers",
        "2",
        consume_empty_polls_per_minute="0",
        storage_journal="1M",
        storage_segment="512K",
    )
    made.start()
    client = http.client.HTTPConnection("127.0.0.1", made.port, timeout=30)
    for topic, partitions in TOPICS.items():
        body = json.dumps({"topicName": topic, "partitionCount": partitions})
        client.request("POST", "/topics/create", body, {"Content-Type": "application/json"})
        with client.getresponse() as answer:
            assert answer.status == 200, answer.read()
            answer.read()
    client.close()
    yield made
    made.stop()


def _load(stack: Stack) -> tuple[list[Publisher], list[Poller]]:
    publishers = [Publisher(stack.port, t, f"{t}-{i}") for t in TOPICS for i in range(4)]
    pollers = [Poller(stack.port, t, "live", f"c{i}") for t in TOPICS for i in range(2)]
    for thread in (*publishers, *pollers):
        thread.start()
    return publishers, pollers


def _end(stack: Stack, publishers: list[Publisher], pollers: list[Poller]) -> None:
    for publisher in publishers:
        publisher.stopping.set()
    for publisher in publishers:
        publisher.join(60)
        assert not publisher.is_alive()
    stack.wait_ready()
    stored = {topic: read_all(stack.port, topic) for topic in TOPICS}
    judge(publishers, stored)
    try:
        for topic in TOPICS:
            _expect_received(topic, set(stored[topic]), pollers)
    finally:
        for poller in pollers:
            poller.stopping.set()
        for poller in pollers:
            poller.join(60)
    refused = [told for publisher in publishers for told in publisher.refused]
    refused += [told for poller in pollers for told in poller.refused]
    wrong = [told for told in refused if told[0] not in AWAY]
    assert not wrong, f"answers that none of it explains: {wrong[:5]}, {len(wrong)} in all"


def _expect_received(topic: str, stored: set[str], pollers: list[Poller]) -> None:
    """Wait until the group has had all that is stored, and demand that it had nothing else."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while True:
        seen = {message for p in pollers if p.topic == topic for message in list(p.received)}
        missed = stored - seen
        if not missed:
            break
        assert time.monotonic() < deadline, f"{topic}: the group never got {sorted(missed)[:5]}"
        time.sleep(0.05)
    assert seen == stored, f"{topic}: never stored {sorted(seen - stored)[:5]}"


@pytest.mark.timeout(120 + BROKER_KILLS * 10)
def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(stack: Stack) -> None:
    publishers, pollers = _load(stack)
    chance = random.Random(1)
    for _ in range(BROKER_KILLS):
        time.sleep(chance.uniform(0.02, 1.0))
        os.kill(stack.broker(), signal.SIGKILL)
        stack.wait_ready()
    _end(stack, publishers, pollers)


@pytest.mark.timeout(120 + STACK_KILLS * 20)
def test_nothing_acknowledged_is_lost_when_everything_is_killed(stack: Stack) -> None:
    publishers, pollers = _load(stack)
    chance = random.Random(2)
    for _ in range(STACK_KILLS):
        time.sleep(chance.uniform(0.3, 2.0))
        stack.kill()
        stack.start()
    _end(stack, publishers, pollers)


@pytest.mark.timeout(120)
def test_nothing_acknowledged_is_lost_when_a_worker_is_killed(stack: Stack) -> None:
    publishers, pollers = _load(stack)
    chance = random.Random(3)
    for _ in range(6):
        time.sleep(chance.uniform(0.3, 1.0))
        os.kill(chance.choice(stack.workers()), signal.SIGKILL)
    _end(stack, publishers, pollers)
