"""Pipelines and streams under spark-submit, on a standalone master and two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset
import pyspark
import pytest

from router.model import Message
from router.pipelines import connectors
from tests.broker.guarded import cli
from tests.contract.conftest import open_with_node
from tests.pipelines import topics
from tests.pipelines.topics import create, publish
from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until

HOME = Path(pyspark.__file__).parent
DEADLINE = 420.0
# A JVM that lives for seconds has no use for the compiler that makes it fast after minutes.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
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
# Two streams: one has a wrong token, and one, having read all there is, is held before it plans
# the next batch until its router is gone. The planner waits 60 s for an answer otherwise.
STREAMS = """
import json, sys, time
from pathlib import Path
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from router.pipelines.source import planning
from router.pipelines.source.router_source import RouterSource
from router.pipelines.source.streams import RouterStreamReader

FOLDER = Path.cwd()

class Held(RouterStreamReader):
    def latestOffset(self, start, limit):
        if (FOLDER / "hold").exists():
            (FOLDER / "held").touch()
            until = time.monotonic() + 120
            while not (FOLDER / "gone").exists() and time.monotonic() < until:
                time.sleep(0.05)
            planning.TIMEOUT_SECONDS = 3.0
        return super().latestOffset(start, limit)

class Impatient(RouterSource):
    @classmethod
    def name(cls):
        return "impatient"

    def streamReader(self, schema):
        return Held(super().streamReader(schema)._options)

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(Impatient)
url, token = sys.argv[1:]

def start(name, token):
    secret = json.dumps({"pulsar.token": token})
    options = {"url": url, "topics": "orders", "settings.secret": secret}
    rows = spark.readStream.format("impatient").options(**options).load()
    writer = rows.writeStream.option("checkpointLocation", f"checkpoint-{name}")
    return writer.format("parquet").option("path", name).start()

def end(query):
    try:
        return f"within 180 s: {query.awaitTermination(180)}"
    except StreamingQueryException as error:
        return str(error)

refused = end(start("refused", "wrong"))
known = start("known", token)
known.processAllAvailable()
(FOLDER / "read").touch()
(FOLDER / "ends").write_text(json.dumps([refused, end(known)]))
"""


def environment() -> dict[str, str]:
    return os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JVM,
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


@dataclass(frozen=True)
class Cluster:
    """A standalone master and two workers."""

    url: str
    log: Path

    def command(self, *arguments: str) -> list[str]:
        """Return what runs a program on it."""
        return [
            str(HOME / "bin" / "spark-submit"),
            "--master",
            self.url,
            *("--driver-memory", "512m", "--executor-memory", "512m"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            *("--driver-java-options", JVM, "--conf", f"spark.executor.extraJavaOptions={JVM}"),
            *arguments,
        ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of this file."""
    folder = tmp_path_factory.mktemp("cluster")
    port, web = free_port(), free_port()
    found = Cluster(f"spark://127.0.0.1:{port}", folder / "Master.log")
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)]
    worker = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "600m"]
    with ExitStack() as stack:
        stack.enter_context(daemon(folder, "org.apache.spark.deploy.master.Master", *master))
        wait_until(lambda: "Starting Spark master" in found.log.read_text(), 120)
        work = ["--work-dir", str(folder / "work"), found.url]
        for _ in range(2):
            stack.enter_context(
                daemon(folder, "org.apache.spark.deploy.worker.Worker", *worker, *work)
            )
        wait_until(lambda: workers(web) == 2, 120)
        yield found


@pytest.mark.java
@pytest.mark.timeout(900)
def test_pipeline_runs_on_a_cluster_under_spark_submit(cluster: Cluster, tmp_path: Path) -> None:
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
        command = cluster.command(
            *("--jars", jars),
            *("run.py", "pipeline", "run", "doubled", "--once", "--data", str(tmp_path / "data")),
        )
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
        assert "app-" in cluster.log.read_text(), "the cluster had no application"
        good = [n for n in range(1_000) if n % 10]
        files = list((tmp_path / "table").glob("part-*.parquet"))
        table = pyarrow.dataset.dataset(files).to_table()
        assert sorted(table["twice"].to_pylist()) == [2 * n for n in good]
        stored = [one.message for part in topics.read(opened.backend, "doubled") for one in part]
        assert sorted(json.loads(one.value)["id"] for one in stored) == good
        dead = [one.message for part in topics.read(opened.backend, "orders.dlq") for one in part]
        assert [one.value for one in dead] == [b"{"] * 100


@pytest.mark.java
@pytest.mark.timeout(900)
def test_stream_ends_with_a_sentence_when_its_router_is_gone_or_does_not_take_its_token(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "streams.py").write_text(STREAMS)
    (tmp_path / "secret").write_bytes(b"k" * 64)
    port = free_port()
    secret = str(tmp_path / "secret")
    (tmp_path / "permissions").write_text("anna orders publish, subscribe\n")
    broker = BrokerProcess(
        tmp_path / "data",
        port,
        auth_token_secret_file=secret,
        auth_permissions=str(tmp_path / "permissions"),
    )
    token = cli("token", "create", "--role", "anna", "--ttl", "1h", "--secret-file", secret)
    with ExitStack() as stack:
        broker.start()
        assert broker.process is not None
        stack.callback(broker.process.wait, 60)
        stack.callback(broker.process.kill)
        opened = open_with_node("embedded", tmp_path / "data", stack)
        topic = create(opened.backend, "orders", 2)
        publish(opened.backend, topic, [Message(b"%d" % n) for n in range(100)], size=10)
        command = cluster.command("streams.py", broker.url, token)
        with (tmp_path / "spark.log").open("wb") as out:
            spark = subprocess.Popen(
                command, cwd=tmp_path, env=environment(), stdout=out, stderr=out
            )
        stack.callback(spark.wait, 60)
        stack.callback(spark.kill)

        def there(name: str) -> bool:
            assert spark.poll() in {None, 0}, (tmp_path / "spark.log").read_text()[-4000:]
            return (tmp_path / name).exists()

        wait_until(lambda: there("read"), DEADLINE)
        (tmp_path / "hold").touch()
        wait_until(lambda: there("held"), DEADLINE)
        broker.kill()
        (tmp_path / "gone").touch()
        assert spark.wait(DEADLINE) == 0, (tmp_path / "spark.log").read_text()[-4000:]
        read = pyarrow.dataset.dataset(list((tmp_path / "known").glob("part-*.parquet")))
        assert sorted(map(int, read.to_table()["value"].to_pylist())) == list(range(100))
        refused, gone = json.loads((tmp_path / "ends").read_text())
        assert f"{broker.url} refuses the token of pulsar.token: unauthenticated" in refused
        assert f"{broker.url} cannot be reached" in gone
