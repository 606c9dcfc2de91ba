"""A pipeline under spark-submit, on a standalone master and two workers of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow.dataset
import pyspark
import pytest

from router.model import Message
from router.pipelines import connectors
from tests.contract.conftest import open_with_node
from tests.pipelines.topics import create, publish, read
from tests.ports import free_port
from tests.processes import wait_until

HOME = Path(pyspark.__file__).parent
DEADLINE = 420.0
DECLARATION = """
bad_records = "dlq"
checkpoint = "checkpoint"
[source]
topics = ["orders"]
format = "json"
schema = "id BIGINT"
[[step]]
name = "doubled"
sql = "SELECT id, id * 2 AS twice FROM records"
[[sink]]
kind = "parquet"
path = "table"
[[sink]]
kind = "topic"
topic = "doubled"
[resources]
"spark.sql.shuffle.partitions" = "1"
"""


def environment() -> dict[str, str]:
    return os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }


@contextmanager
def daemon(folder: Path, main: str, *arguments: str) -> Iterator[None]:
    """Run one of Spark's own servers."""
    log = folder / f"{main.rpartition('.')[2]}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), main, *arguments],
            env=environment(),
            cwd=folder,
            stdout=out,
            stderr=out,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def workers(port: int) -> int:
    with (
        suppress(OSError, ValueError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as answer,
    ):
        return int(json.load(answer)["aliveworkers"])
    return 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master with two workers; its address."""
    port, web = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)]
    worker = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "600m"]
    with ExitStack() as stack:
        stack.enter_context(daemon(tmp_path, "org.apache.spark.deploy.master.Master", *master))
        wait_until(lambda: "Starting Spark master" in (tmp_path / "Master.log").read_text(), 120)
        work = ["--work-dir", str(tmp_path / "work"), url]
        for _ in range(2):
            stack.enter_context(
                daemon(tmp_path, "org.apache.spark.deploy.worker.Worker", *worker, *work)
            )
        wait_until(lambda: workers(web) == 2, 120)
        yield url


@pytest.mark.java
@pytest.mark.timeout(900)
def test_pipeline_runs_on_a_cluster_under_spark_submit(cluster: str, tmp_path: Path) -> None:
    connectors.install(print)
    jars = ",".join(str(path) for path in connectors.jars(connectors.CONNECTORS))
    folder = tmp_path / "config" / "pipelines"
    folder.mkdir(parents=True)
    (folder / "doubled.toml").write_text(DECLARATION)
    (tmp_path / "run.py").write_text("from router.__main__ import main\nmain()\n")
    with ExitStack() as stack:
        opened = open_with_node("embedded", tmp_path / "data", stack)
        topic = create(opened.backend, "orders", 2)
        values = [b'{"id": %d}' % n if n % 10 else b"{" for n in range(1_000)]
        publish(opened.backend, topic, [Message(value) for value in values], size=100)
        command = [
            str(HOME / "bin" / "spark-submit"),
            "--master",
            cluster,
            *("--driver-memory", "512m", "--executor-memory", "512m"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            *("--jars", jars),
            *("run.py", "pipeline", "run", "doubled", "--once", "--data", str(tmp_path / "data")),
        ]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "app-" in (tmp_path / "Master.log").read_text(), "the cluster had no application"
        good = [n for n in range(1_000) if n % 10]
        files = list((tmp_path / "table").glob("part-*.parquet"))
        table = pyarrow.dataset.dataset(files).to_table()
        assert sorted(table["twice"].to_pylist()) == [2 * n for n in good]
        stored = [one.message for part in read(opened.backend, "doubled") for one in part]
        assert sorted(json.loads(one.value)["id"] for one in stored) == good
        dead = [one.message.value for part in read(opened.backend, "orders.dlq") for one in part]
        assert dead == [b"{"] * 100
