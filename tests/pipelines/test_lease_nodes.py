"""The lease of a pipeline between two nodes: a real ZooKeeper says who runs it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.backends.opening import open_node
from router.pipelines.lease import PipelineLease, RunningError
from tests.contract.conftest import settings_for, stop_broker
from tests.servers.kafka import Kafka
from tests.servers.zookeeper import Zookeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

DEADLINE = 60.0


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


@pytest.fixture
def leases(
    kafka: Kafka, zookeeper: Zookeeper, folders: list[Path]
) -> Iterator[list[PipelineLease]]:
    """The same pipeline's lease on two nodes, which share a Kafka and a ZooKeeper."""
    shared = {
        "backend__url": f"kafka://{kafka.address}",
        "zookeeper__servers": f"{zookeeper.address}/pipelines-{time.monotonic_ns()}",
        "zookeeper__session": "6s",
    }
    with ExitStack() as stack:
        found = []
        for folder in folders:
            node = open_node(settings_for(folder, **shared))
            stack.callback(stop_broker, folder)
            stack.callback(node.close)
            found.append(PipelineLease(node, "large", 10.0))
            stack.callback(found[-1].release)
        yield found


def acquired(lease: PipelineLease) -> None:
    """Take a lease as soon as it is free."""
    until = time.monotonic() + DEADLINE
    while True:
        try:
            return lease.acquire()
        except RunningError:
            assert time.monotonic() < until, "the lease is never free"


def test_second_node_is_refused_until_the_first_lets_go(leases: list[PipelineLease]) -> None:
    first, second = leases
    acquired(first)
    with pytest.raises(RunningError, match="pipeline large is running already: "):
        second.acquire()
    first.check()
    first.release()
    acquired(second)
    second.check()


def test_second_node_takes_over_when_the_first_is_gone(
    leases: list[PipelineLease], folders: list[Path]
) -> None:
    first, second = leases
    acquired(first)
    os.kill(int((folders[0] / "broker.lock").read_text()), signal.SIGKILL)
    acquired(second)
    second.check()
