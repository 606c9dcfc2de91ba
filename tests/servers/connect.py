"""A Kafka Connect worker in distributed mode: what it knows is in compacted topics of a broker."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from tests.processes import wait_until
from tests.servers.java import JavaServer

SECONDS = 60.0
TOPICS = "config", "offset", "status"


class Connect(JavaServer):
    """One worker, which is the group; started again it goes on with what its topics say."""

    NAME = "kafka-connect"
    HEAP = "256m"
    MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"

    def __init__(self, folder: Path, bootstrap: str) -> None:
        super().__init__(folder)
        self._bootstrap = bootstrap
        self.group = f"connect-{uuid.uuid4()}"

    def topic(self, kind: str) -> str:
        """Return the name of one of its TOPICS."""
        return f"{self.group}-{kind}"

    def put(self, connector: str, **config: str) -> None:
        """Make a connector, or change it."""
        self._ask("PUT", f"connectors/{connector}/config", config)

    def wait_running(self, connector: str) -> None:
        """Wait until a connector and its task run."""
        wait_until(lambda: self._states(connector) == ["RUNNING", "RUNNING"], SECONDS)

    def _states(self, connector: str) -> list[str]:
        with contextlib.suppress(urllib.error.HTTPError):
            status = self._ask("GET", f"connectors/{connector}/status")
            found = [status["connector"], *status["tasks"]]
            assert "FAILED" not in {one["state"] for one in found}, status
            return [one["state"] for one in found]
        return []

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.address}/{path}",
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def _ready(self) -> bool:
        """Whether it read its topics and is in its group: it answers then."""
        with contextlib.suppress(OSError):
            return self._ask("GET", "connectors") is not None
        return False

    def _arguments(self) -> list[str]:
        text = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self.group,
            "key.converter": text,
            "value.converter": text,
            **{f"{kind}.storage.topic": self.topic(kind) for kind in TOPICS},
            **{f"{kind}.storage.replication.factor": 1 for kind in TOPICS},
            "offset.storage.partitions": 2,
            "status.storage.partitions": 1,
            "offset.flush.interval.ms": 500,
            "scheduled.rebalance.max.delay.ms": 0,
            "plugin.discovery": "service_load",
            "listeners": f"http://{self.address}",
        }
        path = self.folder / "worker.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [str(path)]
