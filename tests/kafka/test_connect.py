"""Kafka Connect moves lines of a file through a topic into another file, over a restart."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

import pytest

from tests.kafka.clients.confluent import topic_configs
from tests.kafka.conftest import Clients
from tests.processes import wait_until
from tests.servers.connect import SECONDS, TOPICS, Connect

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]
FILE = "org.apache.kafka.connect.file.FileStream"


def test_lines_are_moved_once_and_in_order_over_a_restart(clients: Clients, tmp_path: Path) -> None:
    source, target = (tmp_path / name for name in ("source", "target"))
    topic = f"lines-{uuid.uuid4()}"
    written: list[str] = []

    def write(count: int) -> None:
        lines = [f"line {number}" for number in range(len(written), len(written) + count)]
        written.extend(lines)
        with source.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def moved() -> list[str]:
        return target.read_text().splitlines() if target.exists() else []

    worker = Connect(tmp_path / "worker", clients.bootstrap)
    write(200)
    with contextlib.ExitStack() as running:
        running.callback(worker.stop)
        worker.start()
        common = {"tasks.max": "1", "topic": topic, "topics": topic}
        worker.put(
            "from", **common, **{"connector.class": f"{FILE}SourceConnector"}, file=str(source)
        )
        worker.put(
            "into", **common, **{"connector.class": f"{FILE}SinkConnector"}, file=str(target)
        )
        for name in ("from", "into"):
            worker.wait_running(name)
        wait_until(lambda: len(moved()) >= len(written), SECONDS)
        for kind in TOPICS:
            configs = topic_configs(clients.bootstrap, worker.topic(kind))
            assert configs["cleanup.policy"] == "compact"
        worker.stop()
        write(200)
        worker.start()
        wait_until(lambda: len(moved()) >= len(written), SECONDS)
    assert moved() == written
