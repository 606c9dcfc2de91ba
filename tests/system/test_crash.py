"""Kill -9 at any moment: nothing acknowledged is lost, nothing reordered, nothing stored twice."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]

BROKER_KILLS = int(os.environ.get("SOAK_BROKER_KILLS", "40"))
STACK_KILLS = int(os.environ.get("SOAK_STACK_KILLS", "8"))
TOPICS = ("one", "two", "parts")


class Publisher(threading.Thread):
    """Posts numbered messages one after another; never repeats one itself."""

    def __init__(self, port: int, topic: str, name: str) -> None:
        super().__init__(daemon=True)
        self.port, self.topic, self.label = port, topic, name
        self.stopping = threading.Event()
        self.acknowledged: list[int] = []
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
                answer.read()
                if answer.status == 200:
                    self.acknowledged.append(number)
            except (OSError, http.client.HTTPException):
                client.close()
                time.sleep(0.01)
        client.close()


class Poller(threading.Thread):
    """Polls one consumer id of a group and keeps all that it is given, in order."""

    def __init__(self, port: int, topic: str, group: str, consumer: str) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.path = f"/events/{topic}/{group}/{consumer}?timeout=2000"
        self.stopping = threading.Event()
        self.received: list[str] = []

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
                    time.sleep(0.05)
            except (OSError, http.client.HTTPException):
                client.close()
                time.sleep(0.02)
        client.close()


def read_all(port: int, topic: str) -> list[str]:
    """Return everything that a topic holds, through a group of its own."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    found: list[str] = []
    while True:
        client.request("GET", f"/events/{topic}/audit/audit?timeout=1500&from=earliest")
        answer = client.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        messages = json.loads(body)
        if not messages:
            client.close()
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
    """The product on an empty folder, with one partitioned topic."""
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
    body = json.dumps({"topicName": "parts", "partitionCount": 4})
    client.request("POST", "/topics/create", body, {"Content-Type": "application/json"})
    assert client.getresponse().status == 200
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
    time.sleep(3)
    for poller in pollers:
        poller.stopping.set()
    for poller in pollers:
        poller.join(60)
    stored = {topic: read_all(stack.port, topic) for topic in TOPICS}
    judge(publishers, stored)
    for topic in TOPICS:
        seen = {m for p in pollers if f"/{topic}/" in p.path for m in p.received}
        missed = _after_first(set(stored[topic]) - seen, seen)
        assert not missed, f"{topic}: the group never got {sorted(missed)[:5]}"


def _after_first(missing: set[str], seen: set[str]) -> set[str]:
    """Leave out what was stored before the group's first poll made it exist."""
    first: dict[str, int] = {}
    for message in seen:
        label, number = re.split(":", message)
        first[label] = min(int(number), first.get(label, int(number)))
    return {m for m in missing if int(m.split(":")[1]) > first.get(m.split(":")[0], 1 << 60)}


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
