"""Transactions by clients that know them, on Apache Kafka and on the router's broker."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.kafka.clients import SECONDS
from tests.kafka.clients.program import JARS, Program, compiled
from tests.kafka.conftest import Clients
from tests.kafka.test_streams import COUNTED, LINES, PARTITIONS, WordCount, streams
from tests.processes import wait_until
from tests.servers import maven
from tests.servers.java import FAST_START

pytestmark = [pytest.mark.timeout(240)]
RUN_SECONDS = 90.0


def committed(bootstrap: str, topic: str, partition: int = 0) -> list[tuple[bytes, bytes]]:
    """Return keys and values that a committed reader gets from the beginning to the end."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": f"reader-{uuid.uuid4()}",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    found: list[tuple[bytes, bytes]] = []
    with contextlib.closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(SECONDS)) is not None:
            if (error := message.error()) is None:
                found.append((message.key() or b"", message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise KafkaException(error)
    raise AssertionError("the end of the partition did not come")


def producer(clients: Clients, name: str) -> Producer:
    made = Producer({"bootstrap.servers": clients.bootstrap, "transactional.id": name})
    made.init_transactions(SECONDS)
    return made


def write(made: Producer, topic: str, *values: bytes) -> None:
    made.begin_transaction()
    for value in values:
        made.produce(topic, value, b"k", partition=0)
    made.flush(SECONDS)


def test_librdkafka_writes_transactions(clients: Clients) -> None:
    topic, group = (f"{end}-{uuid.uuid4()}" for end in ("tx", "group"))
    clients["confluent-kafka"].create(topic, 1)
    first = producer(clients, topic)
    write(first, topic, b"a", b"b")
    first.commit_transaction(SECONDS)
    write(first, topic, b"c")
    first.abort_transaction(SECONDS)
    settings = {"bootstrap.servers": clients.bootstrap, "group.id": group}
    with contextlib.closing(Consumer(settings)) as member:
        write(first, topic, b"d")
        place = TopicPartition(topic, 0, 2)
        first.send_offsets_to_transaction([place], member.consumer_group_metadata(), SECONDS)
        first.commit_transaction(SECONDS)
        (found,) = member.committed([TopicPartition(topic, 0)], SECONDS)
        assert found.offset == 2
    write(first, topic, b"e")
    second = producer(clients, topic)
    with pytest.raises(KafkaException) as failure:
        first.commit_transaction(SECONDS)
    assert failure.value.args[0].code() == KafkaError._FENCED
    write(second, topic, b"f")
    second.commit_transaction(SECONDS)
    assert [value for _, value in committed(clients.bootstrap, topic)] == [b"a", b"b", b"d", b"f"]


@pytest.mark.java
@pytest.mark.parametrize("assignor", ["range", "server"])
def test_franz_go_writes_copies_and_reads_transactions(clients: Clients, assignor: str) -> None:
    source, target = (f"{end}-{uuid.uuid4()}" for end in ("in", "out"))
    for topic in (source, target):
        clients["confluent-kafka"].create(topic, 1)
    franz = clients["franz-go"]
    assert isinstance(franz, Program)
    assert franz.write_transactions(source, source)
    expected = ["a", "c", "e"]
    assert franz.committed(source, 3) == expected
    assert franz.copy_transactions(source, target, target, 3, assignor=assignor) >= 2
    copied = [f"copied {value}" for value in expected]
    assert franz.committed(target, 3) == copied
    assert [value.decode() for _, value in committed(clients.bootstrap, target)] == copied


@pytest.mark.java
@pytest.mark.parametrize("version", ["java-3.9.2", "java-4.4.0"])
def test_java_writes_and_reads_transactions(clients: Clients, tmp_path: Path, version: str) -> None:
    topic, group = (f"{end}-{uuid.uuid4()}" for end in ("tx", "group"))
    clients["confluent-kafka"].create(topic, 1)
    jars = maven.classpath(JARS[version])
    classes = compiled("Transactions", jars, tmp_path)
    command = ["java", "-Xmx192m", *FAST_START, "-cp", f"{jars}:{classes}", "Transactions"]
    done = subprocess.run(
        [*command, clients.bootstrap, topic, group],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shown = [line for line in done.stdout.splitlines() if not line.startswith("[")]
    assert shown == ["fenced true", "committed 3", "seen [a0, a1, a2, c0, e0]"]


@pytest.mark.java
def test_streams_count_words_exactly_once(clients: Clients, tmp_path: Path) -> None:
    java, *rest = streams(tmp_path)
    command = [java, "-Dguarantee=exactly_once_v2", *rest]
    program = WordCount(clients, command, tmp_path)

    def counts() -> Counter[tuple[bytes, bytes]]:
        return Counter(
            pair
            for part in range(PARTITIONS)
            for pair in committed(clients.bootstrap, program.target, part)
        )

    expected: Counter[tuple[bytes, bytes]] = Counter()
    for times in (1, 2):
        program.say(LINES)
        for word, count in COUNTED.items():
            for number in range((times - 1) * count + 1, times * count + 1):
                expected[word.encode(), b"%d" % number] = 1
        with program.running():
            wait_until(lambda: counts().total() >= expected.total(), 3 * SECONDS)
        # Each count once: nothing was read twice, and nothing is seen of what was aborted.
        assert counts() == expected
        program.forget()
