"""Drivers killed with -9, at random and between a batch's data and its commit: 0 lost, 0 twice.

One pipeline is run through all kills, each time with another parallelism. A driver is stopped
(SIGSTOP) as soon as its checkpoint shows the state that a kill is meant for, and killed if it still
shows it then: so each kill is where it is meant to be. By default a driver is killed in the two
states between a batch's data and its commit on each store, and once at random when the broker was
killed, too. SOAK_PIPELINE_KILLS asks for that many kills on each store, in every state.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import pytest

from router import settings as all_settings
from router.backends import Backend, Batch, embedded, kafka, memory
from router.model import Message, TopicName
from tests.pipelines.quick import ready
from tests.pipelines.sinking import new_topic, stored
from tests.processes import BrokerProcess
from tests.servers.kafka import Kafka

DRIVER = Path(__file__).with_name("crash_driver.py")
KILLS = int(os.environ.get("SOAK_PIPELINE_KILLS", "0"))
DEADLINE = 300.0
PARTITIONS = 3
pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900 + 150 * KILLS)]

Where = Callable[["World"], bool]


class Kill(NamedTuple):
    """A state in which a driver is killed, and the sink that it is about, which starts first."""

    sink: str
    where: Where


class World:
    """A topic that fills up, and a pipeline over it that is killed again and again."""

    def __init__(self, folder: Path, backend: Backend, url: str, flags: Mapping[str, str]) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.staging = self.checkpoint / "topic" / "staging"
        self.backend = backend
        self.source = new_topic(backend, "in", PARTITIONS)
        self.sink = new_topic(backend, "in-out", PARTITIONS)
        self.published = 0
        self.base: dict[str, int] = {}
        self.moment: float | None = None
        self._told = {"url": url, "folder": str(folder), "topic": "in", "flags": dict(flags)}
        self._parts = cycle((2, 3, 1))
        self._driver: subprocess.Popen[bytes] | None = None

    def feed(self, count: int) -> None:
        """Publish some more messages."""
        for partition in range(PARTITIONS):
            numbers = range(self.published + partition, self.published + count, PARTITIONS)
            messages = [Message(b"m%d" % n, b"k%d" % (n % 11)) for n in numbers]
            self.backend.publish(Batch(self.source, partition, messages), 60.0)
        self.published += count

    def start(self, first: str, *, last: bool = False) -> None:
        """Start a driver, one sink before the others, with another parallelism than before."""
        told = {**self._told, "first": first, "last": last, "parts": next(self._parts)}
        self.base = {sink: self.committed(sink) for sink in ("topic", "parquet", "delta")}
        self.moment = None
        with (self.folder / "driver.log").open("wb") as log:
            self._driver = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(told)],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_when(self, where: Where) -> None:
        """Kill the driver, Spark's processes too, in the state that is meant."""
        until, fed = time.monotonic() + DEADLINE, time.monotonic()
        while True:
            assert self.running(), self.log()
            assert time.monotonic() < until, f"it does not come to that: {self.log()}"
            if where(self):
                self._signal(signal.SIGSTOP)
                if where(self):
                    self.kill()
                    return
                self._signal(signal.SIGCONT)
            if time.monotonic() > fed + 1.0:
                self.feed(30)
                fed = time.monotonic()
            time.sleep(0.001)

    def finish(self) -> None:
        """Run to the end of the topic."""
        self.start("topic", last=True)
        assert self._driver is not None
        assert self._driver.wait(DEADLINE) == 0, self.log()
        self._driver = None

    def running(self) -> bool:
        """Return whether the driver runs."""
        return self._driver is not None and self._driver.poll() is None

    def kill(self) -> None:
        """Kill -9 the driver and the JVM that it started, and wait until both are gone."""
        if self._driver is None:
            return
        self._signal(signal.SIGKILL)
        self._driver.wait(DEADLINE)
        self._driver = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._driver is not None
        try:
            os.killpg(self._driver.pid, number)
        except ProcessLookupError:
            pass  # it ended before

    def committed(self, sink: str) -> int:
        """Return the last batch that Spark committed for a sink, -1: none."""
        folder = self.checkpoint / sink / "commits"
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def log(self) -> str:
        """Return the end of what the drivers said."""
        return (self.folder / "driver.log").read_text(errors="replace")[-6000:]

    def result(self) -> dict[str, Counter[str]]:
        """Return what is in each sink."""
        found = {
            kind: Counter(values)
            for kind, values in json.loads((self.folder / "tables.json").read_text()).items()
        }
        messages = stored(self.backend, self.sink)
        return {**found, "topic": Counter(message.value.decode() for message in messages)}

    def check(self) -> None:
        """Assert that every message is in every sink, once."""
        expected = Counter(f"M{number}" for number in range(self.published))
        for sink, found in self.result().items():
            missing, twice = expected - found, found - expected
            assert not missing, f"{sink}: {len(missing)} are missing, such as {min(missing)}"
            assert not twice, f"{sink}: {len(twice)} are there twice, such as {min(twice)}"
        assert list(self.staging.iterdir()) == []


def between(sink: str, data: Callable[[World, int], Path]) -> Where:
    """Return whether the data of a batch not yet met are committed, and its offsets are not."""

    def where(world: World) -> bool:
        batch = world.committed(sink) + 1
        return batch > world.base[sink] + 1 and data(world, batch).exists()

    return where


def _delta_version(table: Path, batch: int) -> Path:
    """Return the table's last version if it is what a batch wrote, else what is not there."""
    versions = sorted((table / "_delta_log").glob("*.json"))
    if versions and f'"version":{batch},' in versions[-1].read_text():
        return versions[-1]
    return table / "none"


def publishing(world: World) -> bool:
    """Return whether a batch is being published."""
    batch = world.committed("topic") + 1
    folder = world.staging / f"batch={batch}"
    begun, done = folder / "begun.json", folder / "done.json"
    return batch > world.base["topic"] + 1 and begun.exists() and not done.exists()


def at_random(world: World) -> bool:
    """Return whether this driver has committed something, and some chance of a time after it."""
    if world.committed("topic") > world.base["topic"] and world.moment is None:
        world.moment = time.monotonic() + random.uniform(0, 8)
    return world.moment is not None and time.monotonic() >= world.moment


PUBLISHING = Kill("topic", publishing)
TOPIC_DONE = Kill(
    "topic",
    between("topic", lambda world, n: world.staging / f"batch={n}" / "done.json"),
)
PARQUET_DONE = Kill(
    "parquet",
    between("parquet", lambda world, n: world.folder / f"parquet/_spark_metadata/{n}"),
)
DELTA_DONE = Kill(
    "delta",
    between("delta", lambda world, n: _delta_version(world.folder / "delta", n)),
)
AT_RANDOM = Kill("topic", at_random)
BETWEEN = (PUBLISHING, TOPIC_DONE)
EVERYWHERE = (*BETWEEN, DELTA_DONE, PARQUET_DONE, AT_RANDOM)


def kills() -> Iterator[Kill]:
    """Return the kills that a test makes on its store."""
    return islice(cycle(EVERYWHERE), KILLS) if KILLS else iter(BETWEEN)


@pytest.fixture
def on_broker(folder: Path, broker: BrokerProcess) -> Iterator[World]:
    """A pipeline on the embedded broker."""
    flags = {"data.dir": str(folder / "data"), "broker.spawn": "no"}
    settings = all_settings.load(None, {}, flags)
    backend = embedded.open_backend("embedded:", settings, None)
    world = World(folder, backend, f"embedded:{folder / 'data'}", flags)
    yield world
    world.kill()
    backend.close()


@pytest.fixture
def on_kafka(folder: Path, new_kafka: Callable[[], Kafka]) -> Iterator[World]:
    """A pipeline on a Kafka of its own."""
    server = new_kafka()
    server.start()
    flags = {"data.dir": str(folder / "data")}
    url = f"kafka://{server.address}"
    settings = all_settings.load(None, {}, {**flags, "backend.url": url})
    backend = kafka.open_backend(url, settings, memory.open_node(settings))
    world = World(folder, backend, url, flags)
    yield world
    world.kill()
    backend.close()


def test_sinks_have_each_message_once_when_drivers_and_the_broker_are_killed(
    on_broker: World, broker: BrokerProcess
) -> None:
    ready()
    world = on_broker
    world.feed(900)
    for sink, where in kills():
        world.start(sink)
        world.kill_when(where)
    world.start("topic")
    while world.committed("topic") <= world.base["topic"]:
        assert world.running(), world.log()
        time.sleep(0.05)
    broker.kill()
    broker.start()
    world.feed(300)
    world.kill_when(at_random)
    world.finish()
    world.check()


def test_sinks_have_each_message_once_when_drivers_are_killed_on_kafka(on_kafka: World) -> None:
    ready()
    world = on_kafka
    world.feed(900)
    for sink, where in kills():
        world.start(sink)
        world.kill_when(where)
    world.finish()
    world.check()
    assert world.sink == TopicName.parse("in-out")
