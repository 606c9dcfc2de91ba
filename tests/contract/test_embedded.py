"""What the embedded backend adds: a broker process that comes, goes, dies and is replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.backends import Batch, JointBackend, Start, embedded
from router.errors import BackendUnavailableError, FencedError, NotServedError, TopicNotFoundError
from router.model import (
    NOT_PARTITIONED,
    ConsumerId,
    Grant,
    Message,
    PollOutcome,
    Subscription,
    TopicName,
)
from router.node import client
from router.node.client import BrokerNode
from router.process.build import NODE_PROTOCOL, build_id
from router.pulsar_client import connection as connecting
from router.pulsar_client import refusals
from tests.contract.conftest import WAIT, Bell, Opened, settings_for, stop_broker

pytestmark = pytest.mark.contract

TOPIC = TopicName.parse("t")
GROUP = Subscription(TOPIC, "g")


def open_folder(folder: Path, **flags: str) -> Opened:
    settings = settings_for(folder, **flags)
    node = client.open_node(settings)
    return Opened("embedded", embedded.open_backend("embedded", settings, node), node, settings)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    found = open_folder(tmp_path)
    yield found
    found.backend.close()
    found.node.close()
    stop_broker(tmp_path)


def broker_pid(folder: Path) -> int:
    return int((folder / "broker.lock").read_text())


def publish(opened: Opened, value: bytes) -> None:
    opened.backend.publish(Batch(TOPIC, NOT_PARTITIONED, [Message(value)]), WAIT)


def received(opened: Opened, topic: TopicName = TOPIC) -> list[bytes]:
    consumer = opened.consumer(topic, group="reader")
    found = consumer.receive(100_000, 1 << 30, WAIT)
    consumer.close()
    return [stored.message.value for stored in found]


def test_a_killed_broker_is_started_again_and_nothing_is_lost_or_doubled(
    opened: Opened, tmp_path: Path
) -> None:
    done: list[bytes] = []
    stop = threading.Event()

    def work(name: int) -> None:
        number = 0
        while not stop.is_set():
            value = b"%d-%d" % (name, number)
            publish(opened, value)
            done.append(value)
            number += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        before = len(done)
        deadline = time.monotonic() + WAIT
        while len(done) < before + 20 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(broker_pid(tmp_path), signal.SIGKILL)
    stop.set()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(received(opened)) == sorted(done)
    assert len(done) > 60


class ManyTopics:
    """Publishers that each append to all topics at once, and what they were told is stored."""

    topics = tuple(TopicName.parse(f"many-{number}") for number in range(6))

    def __init__(self, opened: Opened) -> None:
        assert isinstance(opened.backend, JointBackend)
        self._many = opened.backend
        for topic in self.topics:
            opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"first")]), WAIT)
        self.done = {topic: [b"first"] for topic in self.topics}
        self.failures: list[BaseException] = []
        self.stop = threading.Event()

    def work(self, name: int) -> None:
        number = 0
        while not self.stop.is_set():
            self._publish(b"%d-%d" % (name, number))
            number += 1

    def _publish(self, value: bytes) -> None:
        ended = threading.Semaphore(0)

        def settled(place: int, failure: BaseException | None) -> None:
            if failure is None:
                self.done[self.topics[place]].append(value)
            else:
                self.failures.append(failure)
            ended.release()

        batches = [Batch(topic, NOT_PARTITIONED, [Message(value)]) for topic in self.topics]
        self._many.publish_many(batches, WAIT, settled)
        for _ in self.topics:
            assert ended.acquire(timeout=WAIT)


def test_appends_of_many_partitions_are_stored_once_when_the_broker_is_killed(
    opened: Opened, tmp_path: Path
) -> None:
    many = ManyTopics(opened)
    threads = [threading.Thread(target=many.work, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = len(many.done[many.topics[0]])
        deadline = time.monotonic() + WAIT
        while len(many.done[many.topics[0]]) < before + 20 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(broker_pid(tmp_path), signal.SIGKILL)
    many.stop.set()
    for thread in threads:
        thread.join(WAIT)
    assert many.failures == []
    for topic in many.topics:
        values = received(opened, topic)
        assert sorted(values) == sorted(many.done[topic])
        for name in range(2):
            own = [value for value in values if value.startswith(b"%d-" % name)]
            assert own == [b"%d-%d" % (name, number) for number in range(len(own))]
    assert len(many.done[many.topics[0]]) > 40


def test_a_killed_broker_wakes_polls_that_hold_nothing_any_more(
    opened: Opened, tmp_path: Path, bell: Bell
) -> None:
    publish(opened, b"1")
    opened.backend.subscribe(GROUP, Start.LATEST, WAIT)
    claim = opened.node.claim(ConsumerId(GROUP, "a"), 0, bell, WAIT)
    generation = claim.granted()[NOT_PARTITIONED]
    consumer = opened.backend.consume(Grant(GROUP, NOT_PARTITIONED, generation), bell, WAIT)
    assert consumer.receive(10, 1000, WAIT) == []
    os.kill(broker_pid(tmp_path), signal.SIGKILL)
    bell.until(claim.lost)
    assert claim.granted() == {}
    with pytest.raises(BackendUnavailableError):
        consumer.receive(10, 1000, WAIT)
    consumer.close()
    claim.release(PollOutcome.EMPTY)
    again = opened.node.claim(ConsumerId(GROUP, "a"), 0, bell, WAIT)
    assert again.granted()[NOT_PARTITIONED] > generation
    again.release(PollOutcome.EMPTY)


def test_an_acknowledgement_after_the_partition_went_on_is_refused(opened: Opened) -> None:
    publish(opened, b"1")
    opened.backend.subscribe(GROUP, Start.EARLIEST, WAIT)
    first = opened.node.claim(ConsumerId(GROUP, "a"), 0, Bell(), WAIT)
    generation = first.granted()[NOT_PARTITIONED]
    consumer = opened.backend.consume(Grant(GROUP, NOT_PARTITIONED, generation), Bell(), WAIT)
    (stored,) = consumer.receive(10, 1000, WAIT)
    first.release(PollOutcome.EMPTY)
    second = opened.node.claim(ConsumerId(GROUP, "a"), 0, Bell(), WAIT)
    assert second.granted()
    with pytest.raises(FencedError):
        consumer.acknowledge(stored.position, WAIT)
    second.release(PollOutcome.EMPTY)
    consumer.close()


def test_a_waiting_poll_is_told_which_process_holds_its_id(opened: Opened) -> None:
    first = opened.node.claim(ConsumerId(GROUP, "a"), 0, Bell(), WAIT)
    second = opened.node.claim(ConsumerId(GROUP, "a"), 0, Bell(), WAIT)
    holder = second.holder() or ""
    assert holder.startswith(f"consumer a (worker pid {os.getpid()}), polling for ")
    second.release(PollOutcome.EMPTY)
    first.release(PollOutcome.EMPTY)


def test_claims_of_a_worker_that_went_are_free(opened: Opened, tmp_path: Path, bell: Bell) -> None:
    publish(opened, b"1")
    other = open_folder(tmp_path)
    other.node.claim(ConsumerId(GROUP, "a"), 0, Bell(), WAIT)
    claim = opened.node.claim(ConsumerId(GROUP, "a"), 0, bell, WAIT)
    assert claim.granted() == {}
    other.node.close()
    bell.until(claim.granted)
    claim.release(PollOutcome.EMPTY)


def test_a_broker_without_clients_leaves(tmp_path: Path) -> None:
    found = open_folder(tmp_path)
    found.backend.ready(WAIT)
    found.node.close()
    deadline = time.monotonic() + WAIT
    while (tmp_path / "broker.sock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_broker_of_another_build_is_used_and_stays(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(opened, b"1")
    old = broker_pid(tmp_path)
    monkeypatch.setattr(connecting, "build_id", lambda: "another")
    guest = open_folder(tmp_path)
    assert received(guest) == [b"1"]
    assert broker_pid(tmp_path) == old
    guest.node.close()


def test_a_broker_of_another_node_protocol_stays_and_is_named(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(opened, b"1")
    old = broker_pid(tmp_path)
    monkeypatch.setattr(refusals, "NODE_PROTOCOL", NODE_PROTOCOL + 1)
    guest = open_folder(tmp_path)
    with pytest.raises(NotServedError, match=re.escape(build_id())):
        guest.backend.ready(WAIT)
    assert broker_pid(tmp_path) == old
    assert received(opened) == [b"1"]
    guest.node.close()


def test_a_supervisor_gets_the_folder_from_a_broker_that_has_clients(
    opened: Opened, tmp_path: Path
) -> None:
    publish(opened, b"1")
    spawned = broker_pid(tmp_path)
    command = [sys.executable, "-m", "router", "broker", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervised:
        assert supervised.stdout is not None
        assert "listens on" in supervised.stdout.readline()
        publish(opened, b"2")
        assert broker_pid(tmp_path) == supervised.pid != spawned
        os.kill(supervised.pid, signal.SIGKILL)
    publish(opened, b"3")
    assert received(opened) == [b"1", b"2", b"3"]


def test_workers_that_start_at_once_get_one_broker(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from tests.contract.conftest import settings_for\n"
        "from router.node import client\n"
        "node = client.open_node(settings_for(pathlib.Path(sys.argv[1])))\n"
        "node.take_token('b', 1, 100, 10)\n"
        "print(node.link.connection(0).server_version, flush=True)\n"
        "print((pathlib.Path(sys.argv[1]) / 'broker.lock').read_text(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    told = []
    for worker in workers:
        assert worker.stdout is not None
        told.append((worker.stdout.readline(), worker.stdout.readline()))
    for worker in workers:
        worker.communicate(timeout=WAIT)
    stop_broker(tmp_path)
    assert len(set(told)) == 1
    assert told[0][0].startswith("dragoman ")


def test_a_broker_that_is_told_not_to_creates_no_topics(tmp_path: Path) -> None:
    found = open_folder(tmp_path, topics__auto_create="no")
    with pytest.raises(TopicNotFoundError):
        publish(found, b"1")
    assert found.backend.list_topics(WAIT) == []
    found.node.close()
    stop_broker(tmp_path)


def test_a_path_that_is_long_is_served(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 100) / "data"
    found = open_folder(folder)
    publish(found, b"1")
    assert received(found) == [b"1"]
    found.node.close()
    stop_broker(folder)


def test_a_closed_backend_serves_nothing_more(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    backend = embedded.open_backend("embedded", settings, None)
    backend.ready(WAIT)
    backend.close()
    with pytest.raises(BackendUnavailableError):
        backend.ready(WAIT)
    stop_broker(tmp_path)


def test_a_backend_shares_the_connection_of_its_node(opened: Opened) -> None:
    assert isinstance(opened.node, BrokerNode)
    opened.backend.ready(WAIT)
    connection = opened.node.link.connection(time.monotonic() + WAIT)
    opened.backend.close()
    assert connection.error is None
    opened.node.take_token("b", 1, 1, WAIT)


def test_it_all_works_under_gevent(tmp_path: Path) -> None:
    program = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import sys, pathlib, time, gevent\n"
        "from router.backends import Batch, JointBackend, Start, embedded\n"
        "from router.model import ConsumerId, Grant, Message, PollOutcome\n"
        "from router.model import Subscription, TopicName\n"
        "from router.node import client\n"
        "from tests.contract.conftest import Bell, settings_for\n"
        "settings = settings_for(pathlib.Path(sys.argv[1]))\n"
        "node = client.open_node(settings)\n"
        "backend = embedded.open_backend('embedded', settings, node)\n"
        "def poll(number):\n"
        "    topic, bell = TopicName.parse(f't{number}'), Bell()\n"
        "    group = Subscription(topic, 'g')\n"
        "    claim = node.claim(ConsumerId(group, 'c'), 0, bell, 60)\n"
        "    grant = Grant(group, -1, claim.granted()[-1])\n"
        "    consumer = backend.consume(grant, bell, 60)\n"
        "    while not (found := consumer.receive(10, 1000, 60)):\n"
        "        waiting.add(number)\n"
        "        assert bell.rang(60)\n"
        "    consumer.acknowledge(found[-1].position, 60)\n"
        "    consumer.close()\n"
        "    claim.release(PollOutcome.DELIVERED)\n"
        "    return found[0].message.value\n"
        "topics = [TopicName.parse(f't{n}') for n in range(100)]\n"
        "for topic in topics:\n"
        "    backend.publish(Batch(topic, -1, [Message(b'before')]), 60)\n"
        "    backend.subscribe(Subscription(topic, 'g'), Start.LATEST, 60)\n"
        "waiting = set()\n"
        "polls = [gevent.spawn(poll, n) for n in range(100)]\n"
        "with gevent.Timeout(60):\n"
        "    while len(waiting) < len(polls):\n"
        "        gevent.sleep(0.01)\n"
        "batches = [Batch(topic, -1, [Message(b'x')]) for topic in topics]\n"
        "sends = [gevent.spawn(backend.publish, batch, 60) for batch in batches]\n"
        "gevent.joinall(sends, raise_error=True)\n"
        "gevent.joinall(polls, timeout=60, raise_error=True)\n"
        "print([p.value for p in polls].count(b'x'))\n"
        "node.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    stop_broker(tmp_path)
    assert done.stdout == "100\n"
    assert len(done.stderr.splitlines()) == 1, "more than the word on the new folder"
