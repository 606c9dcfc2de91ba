"""`router copy` as operators run it: killed again and again on each target, and what it says."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from router.backends import Backend, Batch, Start, embedded
from router.model import Message, Stored, TopicInfo, TopicName
from router.node import client
from tests.contract.conftest import (
    WAIT,
    Bell,
    open_apache,
    open_kafka,
    settings_for,
    stop_broker,
)

pytestmark = pytest.mark.system

PARTITIONS = 2
PER_PARTITION = {"apache": 3_000}
"""Messages, where batches are small; else MANY."""
MANY = 15_000
IN_ONE_ENTRY = 500
KILLS = 3
SECONDS = 60.0


def copy(*words: str | Path, folder: Path) -> subprocess.Popen[str]:
    """Start the command, with nothing of this machine's configuration."""
    return subprocess.Popen(
        [sys.executable, "-m", "router", "copy", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"ROUTER_CONFIG": "", "XDG_STATE_HOME": str(folder)},
    )


def done(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    """Wait for a command that ends with a status; return what it printed."""
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == status, errors
    return output, errors


@contextmanager
def store(folder: Path) -> Iterator[Backend]:
    """Use the embedded broker of a folder."""
    settings = settings_for(folder)
    node = client.open_node(settings)
    backend = embedded.open_backend("embedded", settings, node)
    try:
        yield backend
    finally:
        backend.close()
        node.close()
        stop_broker(folder)


def fill(backend: Backend, topic: TopicName, count: int) -> None:
    """Publish numbered messages to each partition."""
    backend.create_topic(TopicInfo(topic, PARTITIONS), WAIT)
    for partition in range(PARTITIONS):
        for first in range(0, count, IN_ONE_ENTRY):
            numbers = range(first, min(count, first + IN_ONE_ENTRY))
            messages = [
                Message(b"%d" % number, b"key-%d" % (number % 7), {"of": str(partition)})
                for number in numbers
            ]
            backend.publish(Batch(topic, partition, messages), WAIT)


def read(backend: Backend, topic: TopicName, partition: int, count: int) -> list[Stored]:
    bell, found = Bell(), list[Stored]()
    reader = backend.read(topic, partition, Start.EARLIEST, bell, WAIT)

    def all_found() -> bool:
        found.extend(reader.receive(100_000, 1 << 30, WAIT))
        return len(found) >= count

    try:
        bell.until(all_found)
    finally:
        reader.close()
    return found


def batches(state: Path) -> int:
    """Return how many batches a copy that runs has begun."""
    if not state.exists():
        return 0
    connection = sqlite3.connect(f"file:{state}?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT count(*) FROM batches").fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # its tables are being made
    finally:
        connection.close()


def kill_in_the_middle(process: subprocess.Popen[str], state: Path) -> None:
    """Kill a copy some time after it began another batch."""
    before, deadline = batches(state), time.monotonic() + SECONDS
    while batches(state) <= before and process.poll() is None:
        assert time.monotonic() < deadline, "the copy does not begin"
        time.sleep(0.002)
    time.sleep(random.uniform(0, 0.3))
    process.kill()
    process.communicate()


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Backend]]:
    """What names a target for the command, and how the test reads it."""
    with ExitStack() as stack:
        if request.param == "embedded":
            folder = tmp_path / "to"
            yield str(folder), stack.enter_context(store(folder))
        elif request.param == "kafka":
            kafka = request.getfixturevalue("kafka")
            opened = open_kafka(kafka.address, tmp_path / "node", stack)
            yield f"kafka://{kafka.address}", opened.backend
        else:
            pulsar = request.getfixturevalue("apache_pulsar")
            opened = open_apache(pulsar, tmp_path / "node", stack)
            yield pulsar.backend, opened.backend


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("embedded", marks=pytest.mark.timeout(180)),
        pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.timeout(180)]),
        pytest.param("apache", marks=[pytest.mark.java, pytest.mark.timeout(300)]),
    ],
    indirect=True,
)
def test_a_copy_that_is_killed_stores_each_message_once(
    request: pytest.FixtureRequest, target: tuple[str, Backend], tmp_path: Path
) -> None:
    name, there = target
    count = PER_PARTITION.get(request.node.callspec.params["target"], MANY)
    topic = TopicName.parse(f"killed-{tmp_path.name}")
    state = tmp_path / "copy.db"
    with store(tmp_path / "from") as here:
        fill(here, topic, count)
        words = (tmp_path / "from", name, "--topics", topic.local, "--state", state)
        for _ in range(KILLS):
            kill_in_the_middle(copy(*words, "--rate", "300K", folder=tmp_path), state)
        output, _ = done(copy(*words, "--json", "--verify=all", folder=tmp_path))
        report = json.loads(output)
        assert report["level"]
        assert report["before"] + report["messages"] == PARTITIONS * count
        for partition in range(PARTITIONS):
            wanted = [stored.message for stored in read(here, topic, partition, count)]
            found = [stored.message for stored in read(there, topic, partition, count)]
            assert found == wanted


def test_a_copy_that_follows_says_when_it_is_level_and_ends_with_what_came(tmp_path: Path) -> None:
    topic, later = TopicName.parse("orders"), TopicName.parse("later")
    with store(tmp_path / "from") as here, store(tmp_path / "to") as there:
        fill(here, topic, 10)
        process = copy(tmp_path / "from", tmp_path / "to", "--follow", folder=tmp_path)
        try:
            wait_for_line(process, "level")
            here.publish(Batch(topic, 0, [Message(b"more")]), WAIT)
            fill(here, later, 5)
            assert len(read(there, topic, 0, 11)) == 11
            wait_until_there(there, later)
            assert len(read(there, later, 1, 5)) == 5
            process.send_signal(signal.SIGINT)
            output, _ = done(process)
        finally:
            process.kill()
            process.communicate()
        assert output.startswith("copied 31 messages")


def wait_for_line(process: subprocess.Popen[str], begin: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(begin):
            return
    raise AssertionError(f"no line begins with {begin}")


def wait_until_there(backend: Backend, topic: TopicName) -> None:
    deadline = time.monotonic() + SECONDS
    while topic not in {info.topic for info in backend.list_topics(WAIT)}:
        assert time.monotonic() < deadline, "the topic is not copied"
        time.sleep(0.05)


def test_what_is_refused_is_said_and_the_rest_is_copied(tmp_path: Path) -> None:
    topic, other = TopicName.parse("orders"), TopicName.parse("other")
    with store(tmp_path / "from") as here, store(tmp_path / "to") as there:
        for name in (topic, other):
            fill(here, name, 3)
        fill(there, other, 1)
        words: Sequence[Path] = (tmp_path / "from", tmp_path / "to")
        output, _ = done(copy(*words, "--dry-run", folder=tmp_path), 1)
        assert "orders  6 messages, is made" in output
        assert len(there.list_topics(WAIT)) == 1
        output, errors = done(copy(*words, folder=tmp_path), 1)
        assert output.startswith("copied 6 messages")
        assert "topic other holds 2 messages at the target" in errors
        assert len(read(there, topic, 1, 3)) == 3
        output, _ = done(copy(*words, "--into-existing", "--json", folder=tmp_path))
        assert json.loads(output)["messages"] == 6


def test_a_target_whose_disk_is_full_is_named_and_the_next_run_copies(tmp_path: Path) -> None:
    target = tmp_path / "to.cfg"
    with store(tmp_path / "from") as here:
        fill(here, TopicName.parse("orders"), 3)
        target.write_text(f"[data]\ndir = {tmp_path / 'to'}\n[storage]\nreserve = 900000G\n")
        _, errors = done(copy(tmp_path / "from", target, folder=tmp_path), 75)
        assert "topic orders cannot be made at the target: " in errors
        assert "is full: " in errors
        assert "Run the same command again: it goes on where it stopped." in errors
        stop_broker(tmp_path / "to")  # it lingers, with the settings that it was started with
        target.write_text(f"[data]\ndir = {tmp_path / 'to'}\n")
        output, _ = done(copy(tmp_path / "from", target, "--verify=all", folder=tmp_path))
        assert output.startswith("copied 6 messages")


def test_a_dry_run_into_nothing_makes_nothing(tmp_path: Path) -> None:
    topic, new, empty = TopicName.parse("orders"), tmp_path / "new", tmp_path / "empty"
    empty.mkdir()
    with store(tmp_path / "from") as here:
        fill(here, topic, 3)
        before = sorted(tmp_path.rglob("*"))
        for to in (new, empty):
            output, errors = done(copy(tmp_path / "from", to, "--dry-run", folder=tmp_path))
            assert output.startswith("orders  6 messages, is made")
            assert not errors
        assert sorted(tmp_path.rglob("*")) == before


def test_a_source_without_data_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("tpyo", "empty"):
        _, errors = done(copy(tmp_path / name, tmp_path / "to", folder=tmp_path), 78)
        assert "there is no data of a router in" in errors
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_ends_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no store")
    for words, status, sentence in (
        ((tmp_path / "same", tmp_path / "same"), 1, "the same store"),
        ((tmp_path / "file", tmp_path / "to"), 78, "is a file"),
        ((tmp_path / "from.cfg", tmp_path / "to"), 78, "from.cfg"),
        (("http://router:3904", tmp_path / "to"), 78, "there is no such backend"),
        ((tmp_path / "from", tmp_path / "to", "--until-level"), 2, "goes with --follow"),
    ):
        _, errors = done(copy(*words, folder=tmp_path), status)
        assert sentence in errors
        assert "Traceback" not in errors
