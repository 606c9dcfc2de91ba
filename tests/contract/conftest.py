"""Every backend and node that keeps the protocols, opened for one suite each."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from router import settings as all_settings
from router.backends import Backend, Consumer, Start, embedded, memory, pulsar
from router.backends import kafka as kafka_backend
from router.broker.disk.faults import StoreError
from router.broker.folder import LOCK, hold_unserved
from router.errors import TopicNotFoundError
from router.model import NOT_PARTITIONED, Grant, Subscription, TopicInfo, TopicName
from router.node import Node, client
from router.settings import Settings
from tests.processes import wait_until
from tests.servers.kafka import Kafka
from tests.servers.pulsar import Pulsar

WAIT = 30.0
_numbers = itertools.count(1)


class Bell:
    """A mailbox that a test can wait for."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    def rang(self, timeout: float = WAIT) -> bool:
        """Wait for a wake-up and forget it."""
        found = self._event.wait(timeout)
        self._event.clear()
        return found

    def until(self, true: Callable[[], object]) -> None:
        """Wait until something holds, looking after each wake-up."""
        deadline = time.monotonic() + WAIT
        while not true():
            assert time.monotonic() < deadline, "it did not become true"
            self.rang(0.2)


def settings_for(folder: Path, **flags: str) -> Settings:
    given = {"data.dir": str(folder), "broker.linger": "1s", "consume.idle": "500ms"}
    return all_settings.load(None, {}, given | {k.replace("__", "."): v for k, v in flags.items()})


def stop_broker(folder: Path) -> None:
    """End the broker of a folder, if one runs there; fail when it does not end."""
    holders: set[str] = set()

    def ended() -> bool:
        if not _served(folder):
            return True
        holder = (folder / LOCK).read_text()
        if holder not in holders:  # a client may have started another one meanwhile
            holders.add(holder)
            with suppress(ValueError, ProcessLookupError):
                os.kill(int(holder), signal.SIGTERM)
        return False

    if (folder / LOCK).exists():
        wait_until(ended, WAIT)


def _served(folder: Path) -> bool:
    """Return whether a broker holds the folder, whatever a killed one left there."""
    try:
        with hold_unserved(folder):
            return False
    except StoreError:
        return True


@contextmanager
def serving_pulsar(folder: Path) -> Iterator[str]:
    """Run a broker that serves Pulsar clients over TCP; give its URL."""
    command = [sys.executable, "-m", "router.broker", "--data", str(folder), "--stay"]
    with subprocess.Popen(
        [*command, "--pulsar", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            line = broker.stdout.readline()
            assert "pulsar://" in line, f"the broker did not start: {line}"
            yield line.split()[-1]
        finally:
            broker.terminate()


class Trusting(memory.MemoryNode):
    """A node that confirms every generation: tests of backends open consumers without claims."""

    def confirm(self, grant: Grant, timeout: float) -> None:
        """Return."""

    def confirm_all(self, grants: Sequence[Grant], timeout: float) -> list[bool]:
        """Return that each stands."""
        return [True] * len(grants)


def open_kafka(address: str, folder: Path, stack: ExitStack, **flags: str) -> Opened:
    """Open a backend on a Kafka that runs at host:port."""
    settings = settings_for(folder, **flags)
    node = Trusting()
    backend = kafka_backend.open_backend(f"kafka://{address}", settings, node)
    stack.callback(node.close)
    stack.callback(backend.close)
    return Opened("kafka", backend, node, settings)


def open_apache(server: Pulsar, folder: Path, stack: ExitStack) -> Opened:
    """Open a backend on an Apache Pulsar, where messages are stored once as everywhere else."""
    server.ask("POST", "namespaces/public/default/deduplication", body=True)
    settings = settings_for(folder, **server.flags)
    node = memory.open_node(settings)
    backend = pulsar.open_backend(server.backend, settings, node)
    stack.callback(node.close)
    stack.callback(backend.close)
    return Opened("apache", backend, node, settings)


class Opened:
    """A backend with its node, and names that no other test uses."""

    def __init__(self, kind: str, backend: Backend, node: Node, settings: Settings) -> None:
        self.kind = kind
        self.backend = backend
        self.node = node
        self.settings = settings

    def new_name(self) -> TopicName:
        return TopicName.parse(f"topic-{next(_numbers)}")

    def new_topic(self, partitions: int = 0) -> TopicName:
        topic = self.new_name()
        self.backend.create_topic(TopicInfo(topic, partitions), WAIT)
        return topic

    def consumer(
        self,
        topic: TopicName,
        *,
        group: str = "g",
        start: Start = Start.EARLIEST,
        partition: int = NOT_PARTITIONED,
        bell: Bell | None = None,
    ) -> Consumer:
        """Open a consumer of a subscription, which is made if it is not there."""
        subscription = Subscription(topic, group)
        self.backend.subscribe(subscription, start, WAIT)
        return self.backend.consume(Grant(subscription, partition, 1), bell or Bell(), WAIT)

    def is_there(self, topic: TopicName) -> bool:
        try:
            self.backend.partitions(topic, WAIT)
        except TopicNotFoundError:
            return False
        return True


def open_with_node(kind: str, folder: Path, stack: ExitStack) -> Opened:
    settings = settings_for(folder)
    if kind == "memory":
        node: Node = memory.open_node(settings)
        backend = memory.open_backend("memory", settings, None)
    elif kind == "embedded":
        stack.callback(stop_broker, folder)
        node = client.open_node(settings)
        backend = embedded.open_backend("embedded", settings, node)
    else:
        url = stack.enter_context(serving_pulsar(folder))
        node = memory.open_node(settings)
        backend = pulsar.open_backend(url, settings, node)
    stack.callback(node.close)
    stack.callback(backend.close)
    return Opened(kind, backend, node, settings)


def open_any(
    request: pytest.FixtureRequest, folder: Path, stack: ExitStack, kind: str = ""
) -> Opened:
    """Open a backend of this kind, or of the one that a fixture's parameter names.

    Kafka and Apache Pulsar are the servers that all tests share.
    """
    kind = kind or request.param
    if kind == "kafka":
        return open_kafka(request.getfixturevalue("kafka").address, folder, stack)
    if kind == "apache":
        return open_apache(request.getfixturevalue("apache_pulsar"), folder, stack)
    return open_with_node(kind, folder, stack)


# The first test on Kafka waits until it is up, and so does the first one on Apache Pulsar.
ON_KAFKA = [pytest.mark.timeout(120), pytest.mark.java]
ON_APACHE = [pytest.mark.timeout(300), pytest.mark.java]
KAFKA = pytest.param("kafka", marks=ON_KAFKA)
APACHE = pytest.param("apache", marks=ON_APACHE)
# Each kind is a source and a target of copies: what reads one knows nothing of what the other is.
PAIRS = [
    pytest.param(("embedded", "pulsar"), id="embedded-pulsar"),
    pytest.param(("pulsar", "kafka"), id="pulsar-kafka", marks=ON_KAFKA),
    pytest.param(("kafka", "embedded"), id="kafka-embedded", marks=ON_KAFKA),
    pytest.param(("embedded", "apache"), id="embedded-apache", marks=ON_APACHE),
    pytest.param(("apache", "embedded"), id="apache-embedded", marks=ON_APACHE),
]


@pytest.fixture(scope="module", params=PAIRS)
def source_and_target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Opened, Opened]]:
    """Two stores, of two kinds."""
    here, there = request.param
    with ExitStack() as stack:
        yield (
            open_any(request, tmp_path_factory.mktemp("source"), stack, here),
            open_any(request, tmp_path_factory.mktemp("target"), stack, there),
        )


@pytest.fixture(scope="module", params=["memory", "embedded", "pulsar", KAFKA, APACHE])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield open_any(request, tmp_path_factory.mktemp("data"), stack)


@pytest.fixture(scope="module")
def on_kafka(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A backend on the Kafka that all tests share."""
    with ExitStack() as stack:
        yield open_kafka(kafka.address, tmp_path_factory.mktemp("data"), stack)


@pytest.fixture
def another(kafka: Kafka, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Open a backend of another worker on the same Kafka, with settings of its own."""
    with ExitStack() as stack:
        yield lambda **flags: open_kafka(kafka.address, tmp_path, stack, **flags)


@pytest.fixture(scope="module")
def admin(kafka: Kafka) -> Iterator[KafkaAdminClient]:
    """Somebody who administers Kafka beside the router."""
    client = KafkaAdminClient(bootstrap_servers=kafka.address)
    yield client
    client.close()


@pytest.fixture(scope="module", params=["memory", "embedded"])
def with_node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield open_with_node(request.param, tmp_path_factory.mktemp("data"), stack)


@pytest.fixture
def bell() -> Bell:
    return Bell()
