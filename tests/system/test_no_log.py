"""A node whose messages live in another server: its broker process has no log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from router.backends import Batch, NullMailbox, embedded
from router.errors import FencedError, NotAllowedError
from router.model import (
    NOT_PARTITIONED,
    ConsumerId,
    Grant,
    Message,
    PollOutcome,
    Subscription,
    TopicInfo,
    TopicName,
)
from router.node import client
from router.settings import load
from router.wire.pulsar import encode, pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.processes import broker_starter, wait_until

pytestmark = pytest.mark.system

WAIT = 10.0
KAFKA = "kafka://somebody:s3cr3t@k1:9092,k2:9092/?sasl.password=hidden"
TOPIC = TopicName.parse("t")
GROUP = Subscription(TOPIC, "g")

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with broker_starter(tmp_path, ROUTER_BACKEND_URL=KAFKA) as start:
        yield start


@contextlib.contextmanager
def node_of(folder: Path) -> Iterator[client.BrokerNode]:
    """Reach the broker of a folder, and start none."""
    settings = load(None, {}, {"data.dir": str(folder), "broker.spawn": "false"})
    node = client.open_node(settings)
    try:
        yield node
    finally:
        node.close()


def test_there_is_no_log_on_disk(tmp_path: Path, start: Start) -> None:
    broker = start("--stay")
    with node_of(tmp_path) as node:
        node.metrics(WAIT)
    assert {
        path.name for path in tmp_path.iterdir() if not path.name.startswith("registry.db")
    } == {
        "broker.lock",
        "broker.log",
        "broker.sock",
    }
    broker.terminate()
    assert broker.wait(WAIT) == os.EX_OK
    assert not (tmp_path / "broker.sock").exists()


def test_the_node_works(tmp_path: Path, start: Start) -> None:
    start("--stay")
    with node_of(tmp_path) as node:
        claim = node.claim(ConsumerId(GROUP, "c"), 0, NullMailbox(), WAIT)
        (generation,) = claim.granted().values()
        node.confirm(Grant(GROUP, NOT_PARTITIONED, generation), WAIT)
        claim.release(PollOutcome.DELIVERED)
        with pytest.raises(FencedError):
            node.confirm(Grant(GROUP, NOT_PARTITIONED, generation), WAIT)
        assert node.take_token("b", 1, 1, WAIT) is None
        node.push_metrics([("router_publish_refused_total", (("code", "x"),), 2.0)], [], WAIT)
        assert 'router_publish_refused_total{code="x"} 2.0' in node.metrics(WAIT)
        assert node.registry.put("key", "a", b"{}", 0, WAIT).value == b"{}"


def test_messages_and_topics_are_refused_with_a_sentence_that_says_where_they_are(
    tmp_path: Path, start: Start
) -> None:
    start("--stay")
    settings = load(None, {}, {"data.dir": str(tmp_path)})
    with node_of(tmp_path) as node:
        backend = embedded.open_backend("embedded", settings, node)
        calls: list[Callable[[], object]] = [
            lambda: backend.partitions(TOPIC, WAIT),
            lambda: backend.publish(Batch(TOPIC, NOT_PARTITIONED, [Message(b"v")]), WAIT),
            lambda: backend.create_topic(TopicInfo(TOPIC), WAIT),
            lambda: backend.consume(Grant(GROUP, NOT_PARTITIONED, 1), NullMailbox(), WAIT),
            lambda: backend.list_topics(WAIT),
        ]
        for call in calls:
            with pytest.raises(NotAllowedError) as refusal:
                call()
            assert str(refusal.value).endswith("they live in kafka://k1:9092,k2:9092")


def test_command_about_a_producer_that_cannot_be_ends_the_connection(
    tmp_path: Path, start: Start
) -> None:
    start("--stay")
    with node_of(tmp_path) as node:
        connection = node.link.connection(time.monotonic() + WAIT)
        send = pb.CommandSend(producer_id=1, sequence_id=1)
        connection.send(
            encode(
                pb.BaseCommand(type=pb.BaseCommand.SEND, send=send),
                pack([Message(b"v")], "p", 1, 1),
            )
        )
        wait_until(lambda: connection.error is not None, WAIT)


def test_generations_grow_and_records_stay_when_the_broker_was_killed(
    tmp_path: Path, start: Start
) -> None:
    generations: list[int] = []
    for number in range(2):
        broker = start("--stay")
        with node_of(tmp_path) as node:
            claim = node.claim(ConsumerId(GROUP, "c"), 0, NullMailbox(), WAIT)
            generations += claim.granted().values()
            node.registry.put("key", f"a{number}", b"{}", 0, WAIT)
            assert len(node.registry.list("key", WAIT)) == number + 1
        os.kill(broker.pid, signal.SIGKILL)
        broker.wait(WAIT)
    assert generations == sorted(set(generations))
    assert len(generations) == 2


def test_spawned_broker_leaves_when_its_last_client_left(tmp_path: Path, start: Start) -> None:
    broker = start(ROUTER_BROKER_LINGER="4s")
    with node_of(tmp_path) as node:
        node.metrics(WAIT)
        time.sleep(4.5)
        assert broker.poll() is None
    assert broker.wait(WAIT) == os.EX_OK


def test_damaged_registry_is_refused_with_a_sentence(tmp_path: Path, start: Start) -> None:
    (tmp_path / "registry.db").write_bytes(b"nonsense" * 1000)
    broker = start("--stay")
    _, errors = broker.communicate(timeout=2 * WAIT)
    assert broker.returncode == os.EX_DATAERR
    assert "registry.db" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("command", ["broker", "serve", "check"])
def test_settings_that_do_not_go_together_are_refused_before_anything_starts(
    tmp_path: Path, command: str
) -> None:
    settings = {"ROUTER_BROKER_PULSAR": "127.0.0.1:0", "ROUTER_BACKEND_URL": KAFKA}
    done = subprocess.run(
        [sys.executable, "-m", "router", command, "--data", str(tmp_path / "data")],
        env=os.environ | {"ROUTER_CONFIG": ""} | settings,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == os.EX_CONFIG, done.stderr
    assert "there is nothing to serve" in done.stderr
    assert "s3cr3t" not in done.stderr + done.stdout
    assert "hidden" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
