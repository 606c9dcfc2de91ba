"""`router pipeline run` as its users start it: to the end, once at a time, and told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from router.services.pipelines import read_status
from tests.pipelines.quick import ready
from tests.ports import free_port
from tests.processes import BrokerProcess

pytestmark = [pytest.mark.timeout(900), pytest.mark.java, pytest.mark.system, pytest.mark.slow]

DEADLINE = 400.0
DECLARED = """\
checkpoint = "ck"
bad_records = "skip"

[source]
topics = ["words"]
format = "text"

[[step]]
name = "long"
sql = "SELECT value, length(value) AS size FROM records WHERE length(value) > 2"

[[sink]]
kind = "parquet"
path = "out"

[resources]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.sql.shuffle.partitions" = 2
"""


class Folder:
    """A folder of a user's, with a broker and a declared pipeline."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.folder = folder
        self._data = str(broker.folder)
        (folder / "config" / "pipelines").mkdir(parents=True)
        (folder / "config" / "pipelines" / "words.toml").write_text(DECLARED)

    def command(self, *given: str) -> list[str]:
        """Return a command line of the router's."""
        return [sys.executable, "-P", "-m", "router", *given, "--data", self._data]

    def done(self, *given: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*given),
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    def rows(self) -> int:
        """Return how many rows the status counts."""
        found = read_status(self.folder / "ck") or {}
        return int((found.get("sinks") or {}).get("parquet", {}).get("rows", 0))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for a condition while a process runs."""
    until = time.monotonic() + DEADLINE
    while not condition():
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < until, "it never came"
        time.sleep(0.5)


def test_pipeline_runs_until_it_is_told_to_stop(tmp_path: Path, broker: BrokerProcess) -> None:
    ready()
    user = Folder(tmp_path / "user", broker)
    refused = user.done("pipeline", "check", "words")
    assert refused.returncode == 78
    assert "words.toml:5:10: there is no topic 'words'" in refused.stderr
    assert user.done("topics", "create", "words", "--partitions", "2").returncode == 0
    user.done("pub", "words", stdin="one\nto\nthree\n")
    assert user.done("pipeline", "check", "words").returncode == 0
    metrics = f"127.0.0.1:{free_port()}"
    command = user.command("pipeline", "run", "words", "--progress", "--metrics", metrics)
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(command, cwd=user.folder, stderr=log, stdout=log)
    try:
        wait_for(lambda: user.rows() == 3, run)
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=DEADLINE) as answer:
            told = answer.read().decode()
        assert 'router_pipeline_rows_total{pipeline="words",sink="parquet"} 3.0' in told
        second = user.done("pipeline", "run", "words")
        assert second.returncode == 1
        assert f"pipeline words is running already: process {run.pid}" in second.stderr
        status = user.done("pipeline", "status", "words")
        assert status.returncode == 0
        assert "words: running" in status.stdout
        run.send_signal(signal.SIGTERM)
        assert run.wait(DEADLINE) == 0
    finally:
        if run.poll() is None:
            os.kill(run.pid, signal.SIGKILL)
            run.wait(DEADLINE)
    events = [json.loads(line)["event"] for line in _json_lines(tmp_path / "log")]
    assert "3 rows" in (tmp_path / "log").read_text()
    assert events[0] == "pipeline.starting"
    assert events[-1] == "pipeline.stopped"
    assert "words: stopped" in user.done("pipeline", "status", "words").stdout
    assert list((user.folder / "out" / "_spark_metadata").iterdir())


def _json_lines(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("{")]
