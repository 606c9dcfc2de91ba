"""Kafka's own tool for transactions, `kafka-transactions.sh`, on Apache Kafka and on the router."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from tests.kafka.clients import SECONDS
from tests.kafka.clients.program import compiled
from tests.kafka.conftest import OURS, Clients
from tests.kafka.test_transactions import committed, producer, write
from tests.servers import maven
from tests.servers.java import FAST_START

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]
Rows = list[dict[str, str]]


class Tool:
    """The tool on a broker: calls return the rows of its table; it runs in one process."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        jars = maven.classpath("kafka")
        classes = compiled("TransactionsTool", jars, folder)
        command = ["java", "-Xmx192m", *FAST_START, "-Dlevel=OFF", "-cp", f"{jars}:{classes}"]
        self._bootstrap = bootstrap
        self.process = subprocess.Popen(
            [*command, "TransactionsTool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, *arguments: str) -> Rows:
        """Run it; raise AssertionError with what it printed unless it ends with the status 0."""
        status, lines = self._run(*arguments)
        assert status == "exit 0", lines
        head, *rows = [[cell.strip() for cell in line.split("\t")] for line in lines or [""]]
        return [dict(zip(head, row, strict=False)) for row in rows]

    def refusal(self, *arguments: str) -> str:
        """Run it; return what it printed before it ended with the status 1."""
        status, lines = self._run(*arguments)
        assert status == "exit 1", lines
        return " ".join(lines)

    def _run(self, *arguments: str) -> tuple[str, list[str]]:
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Timer(3 * SECONDS, process.kill)
        overdue.start()
        try:
            process.stdin.write(" ".join(("--bootstrap-server", self._bootstrap, *arguments)))
            process.stdin.write("\n")
            process.stdin.flush()
            lines = []
            while (line := process.stdout.readline()).startswith("| "):
                lines.append(line[2:].rstrip("\n"))
        finally:
            overdue.cancel()
        return line.strip(), lines


@pytest.fixture
def tool(clients: Clients, tmp_path: Path) -> Iterator[Tool]:
    made = Tool(clients.bootstrap, tmp_path / "classes")
    with made.process as process:
        try:
            yield made
        finally:
            process.kill()


def test_the_tool_lists_describes_and_aborts(clients: Clients, tool: Tool) -> None:
    topic = f"tool-{uuid.uuid4()}"
    clients["confluent-kafka"].create(topic, 1)
    place = "--topic", topic, "--partition", "0"

    def listed(*options: str) -> list[str]:
        found = tool("list", *options)
        return [one["TransactionState"] for one in found if one["TransactionalId"] == topic]

    def open_at() -> list[str]:
        found = tool("describe-producers", *place)
        return [one["CurrentTransactionStartOffset"] for one in found if one["ProducerId"] == id_]

    first = producer(clients, topic)
    write(first, topic, b"a", b"b")
    assert listed() == listed("--transactional-id-pattern", "tool-.*") == ["Ongoing"]
    assert listed("--duration-filter", "0") == ["Ongoing"]
    assert listed("--duration-filter", "600000") == []
    assert listed("--transactional-id-pattern", "tool-") == []
    assert "unexpected exception" in tool.refusal("list", "--transactional-id-pattern", "[")
    (described,) = tool("describe", "--transactional-id", topic)
    assert (described["TransactionState"], described["TopicPartitions"]) == (
        "Ongoing",
        f"{topic}-0",
    )
    id_, epoch = described["ProducerId"], described["ProducerEpoch"]
    assert "could not be found" in tool.refusal("describe", "--transactional-id", f"no-{topic}")
    for oldest in ((), ("--max-transaction-timeout", "0")):
        assert tool("find-hanging", "--topic", topic, *oldest) == []
    assert open_at() == ["0"]
    assert "Could not find any open" in tool.refusal("abort", *place, "--start-offset", "7")
    strange = "--producer-id", "999999999", "--producer-epoch", "0", "--coordinator-epoch", "0"
    assert tool("abort", *place, *strange) == []
    assert open_at() == ["0"]
    assert tool("abort", *place, "--start-offset", "0") == []
    assert open_at() == ["None"]
    # Once more, by the producer: nothing is open, and nothing is refused.
    named = "--producer-id", id_, "--producer-epoch", epoch, "--coordinator-epoch", "0"
    assert tool("abort", *place, *named) == []
    plain = Producer({"bootstrap.servers": clients.bootstrap})
    plain.produce(topic, b"c", b"k", partition=0)
    assert plain.flush(SECONDS) == 0
    assert [value for _, value in committed(clients.bootstrap, topic)] == [b"c"]
    # Apache Kafka's coordinator goes on; the router's has aborted the whole, and its producer ends.
    fenced = pytest.raises(KafkaException) if clients.broker == OURS else contextlib.nullcontext()
    with fenced:
        first.commit_transaction(SECONDS)
    assert listed() == ["CompleteAbort" if clients.broker == OURS else "CompleteCommit"]


def test_the_tool_aborts_by_producer_and_terminates(clients: Clients, tool: Tool) -> None:
    topic = f"tool-{uuid.uuid4()}"
    clients["confluent-kafka"].create(topic, 1)
    place = "--topic", topic, "--partition", "0"
    first = producer(clients, topic)
    write(first, topic, b"a")
    (one,) = tool("describe-producers", *place)
    named = "--producer-id", one["ProducerId"], "--producer-epoch", one["ProducerEpoch"]
    assert tool("abort", *place, *named, "--coordinator-epoch", "0") == []
    (one,) = tool("describe-producers", *place)
    assert one["CurrentTransactionStartOffset"] == "None"
    second = producer(clients, topic)
    write(second, topic, b"b")
    assert tool("forceTerminateTransaction", "--transactionalId", topic) == []
    with pytest.raises(KafkaException):
        second.commit_transaction(SECONDS)
    assert committed(clients.bootstrap, topic) == []
