"""A copy to Apache Kafka and to Apache Pulsar while copier, source and target are killed with -9.

Each is killed when a part of what was there before is copied, with publishers and subscribers in
traffic; then the installation is switched. What the target holds is read by its own client.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from kafka.errors import KafkaError

from tests.servers.kafka import Kafka
from tests.servers.pulsar import Pulsar
from tests.system.growing import (
    PARTITIONS,
    TOPIC,
    Copy,
    Town,
    expect_promised,
    fill,
    read_pulsar,
)
from tests.system.nodes import read_kafka, until_true

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(1200),
]

# Of each of the four partitions: what a copy takes several seconds for, at RATE bytes a second.
MESSAGES, SIZE, RATE = 2_000, 1_000, 700_000
SECONDS = 120.0


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """The page's first router behind nginx."""
    with Town(tmp_path) as found:
        yield found


class Target:
    """A server to copy to: its settings on the page, how much it holds, and what."""

    def __init__(self, server: Kafka | Pulsar) -> None:
        self.server = server

        self.title = f"To Apache {type(server).__name__}"

    def settings(self, town: Town) -> str:
        """Write the page's settings for it; return the name of their file."""
        if isinstance(self.server, Kafka):
            town.places["kafka1:9092"] = self.server.address
            town.write_files(self.title)
            return "kafka.cfg"
        self.server.ask("POST", "namespaces/public/default/deduplication", body=True)
        town.places |= {
            "pulsar1:6650": self.server.address,
            "http://pulsar1:8080": self.server.admin,
        }
        town.write_files(self.title)
        return "pulsar.cfg"

    def bytes(self) -> int:
        """Return about how many bytes it holds of the topic."""
        if isinstance(self.server, Kafka):
            with contextlib.suppress(KafkaError):
                return SIZE * sum(self.server.ends(TOPIC, committed=False).values())
            return 0
        with contextlib.suppress(OSError):  # no such topic yet, or it has just started
            stats = self.server.ask("GET", f"persistent/public/default/{TOPIC}/partitioned-stats")
            return int(stats["storageSize"])
        return 0

    def restart(self) -> None:
        """Kill it, and start it again."""
        if isinstance(self.server, Kafka):
            self.server.restart_killed(TOPIC)
        else:
            self.server.kill()
            self.server.start()

    def read(self) -> list[list[str]]:
        """Return what it holds, as its own client reads it."""
        if isinstance(self.server, Kafka):
            return read_kafka(self.server.address, TOPIC)
        return read_pulsar(self.server.url, TOPIC, PARTITIONS)


def kill_each(town: Town, target: Target, copy: Copy) -> None:
    """Kill copier, the source's broker, target and copier again, while the copy is under way."""
    everything = PARTITIONS * MESSAGES * SIZE

    def wait_for(part: float) -> None:
        until_true(lambda: copy.tended() and target.bytes() > part * everything, SECONDS)
        assert "level" not in copy.said, "nothing was under way any more"

    copy.start()
    wait_for(0.1)
    town.traffic.phase("kill copier")
    copy.kill()
    copy.start()
    wait_for(0.3)
    town.traffic.phase("kill source")
    lock = town.folder / "data" / "broker.lock"
    killed, broker = time.monotonic(), lock.read_text()
    os.kill(int(broker), signal.SIGKILL)
    until_true(lambda: lock.read_text() not in {"", broker} and is_ready(town), SECONDS)
    # What was in flight, and was read ahead, may come again here too.
    town.switches.append((killed, time.monotonic()))
    wait_for(0.5)
    town.traffic.phase("kill target")
    target.restart()
    wait_for(0.6)
    town.traffic.phase("kill again")
    copy.kill()
    copy.start()
    copy.level(SECONDS)


def is_ready(town: Town) -> bool:
    """Return whether the first router has a broker that serves."""
    with contextlib.suppress(OSError), urlopen(f"http://{town.places['127.0.0.1:3904']}/ready"):
        return True
    return False


def copies_instead(copy: Copy, command: str) -> bool:
    """Do with the copy that runs what a command of the page does with the page's."""
    if "$COPY" in command and "INT" in command:
        copy.tended()
        assert copy.interrupt() in {0, os.EX_TEMPFAIL}, copy.said
        return True
    return "copy.log" in command or "deduplication" in command or "--dry-run" in command


@pytest.mark.parametrize("kind", [Kafka, Pulsar])
def test_nothing_is_lost_or_stored_twice_when_each_is_killed_during_a_copy(
    town: Town, kind: type[Kafka | Pulsar], tmp_path: Path
) -> None:
    server = kind(tmp_path / "target")
    with contextlib.ExitStack() as owned:
        owned.callback(server.stop)
        server.start()
        target = Target(server)
        town.follow("Before you begin")
        fill(town.places["127.0.0.1:3904"], MESSAGES, SIZE)
        town.traffic.start()
        settings = target.settings(town)
        copy = Copy(town.folder, "router.cfg", settings, "--rate", str(RATE))
        owned.callback(copy.kill)
        kill_each(town, target, copy)
        town.traffic.phase("switch")
        town.follow(target.title, partial(copies_instead, copy))
        town.traffic.phase("after")
        town.traffic.flow(30)
        report = town.traffic.end(target.read)
        print(report, town.traffic.failures(), copy.starts)  # noqa: T201
        expect_promised(town.traffic.audit, report, town.switches)
