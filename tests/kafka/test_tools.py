"""Apache's Admin client is shown the same by the router as by Apache Kafka, as tools ask it."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kafka.clients import SECONDS
from tests.kafka.clients.program import compiled
from tests.kafka.conftest import Clients
from tests.servers import maven
from tests.servers.java import FAST_START

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]
RUN_SECONDS = 90.0
SHOWN: Final = {
    "describeTopics": "2 partitions, replicas 1",
    "describeTopics of a missing one": "UnknownTopicOrPartitionException",
    "describeCluster": "1 node",
    "describeLogDirs": "[true, false, true]",
    "describeProducers": "1 with the last sequence 2",
    "describeAcls": "SecurityDisabledException",
    "describeClientQuotas": "{}",
    "describeUserScramCredentials": "ResourceNotFoundException",
    "listPartitionReassignments": "{}",
    "electLeaders": "ElectionNotNeededException",
    "listTransactions": "[]",
    "listConfigResources": "true",
    "describeConsumerGroups": (
        "Consumer Stable, range, 2 partitions, 2 of the target, upgraded true, listed true"
    ),
    "offset earliest": "0 in epoch Optional[0]",
    "offset latest": "3 in epoch Optional[0]",
    "offset of the largest timestamp": "1 in epoch Optional[0]",
    "offset earliest local": "0 in epoch Optional[0]",
    "offset latest tiered": "-1 in epoch Optional.empty",
    "offset of a time": "1 in epoch Optional[0]",
    "cleanup.policy": "compact",
    "append": "compact,delete",
    "subtract": "compact",
    "segment.bytes": "52428800",
    "an unknown config": "InvalidConfigurationException",
    "deleteRecords of a topic that is only compacted": "PolicyViolationException",
    "deleteRecords": "2",
    "offset earliest then": "2 in epoch Optional[0]",
}


def test_tools_are_shown_what_apache_kafka_shows(clients: Clients, tmp_path: Path) -> None:
    topic, settings = f"tools-{uuid.uuid4()}", {"bootstrap.servers": clients.bootstrap}
    new = NewTopic(topic, 2, 1, config={"cleanup.policy": "compact"})
    admin = AdminClient(settings)
    admin.create_topics([new])[topic].result(SECONDS)
    producer = Producer(settings | {"enable.idempotence": True, "linger.ms": 0})
    for key, time in ((b"a", 1), (b"b", 3), (b"c", 2)):
        producer.produce(topic, b"v", key, partition=0, timestamp=time)
        assert producer.flush(SECONDS) == 0
    jars = maven.classpath("kafka-clients")
    classes = compiled("AdminCalls", jars, tmp_path / "classes")
    command = ["java", "-Xmx192m", *FAST_START, "-cp", f"{jars}:{classes}", "AdminCalls"]
    done = subprocess.run(
        [*command, clients.bootstrap, topic],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RUN_SECONDS,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert dict(line.split(": ", 1) for line in done.stdout.splitlines()) == SHOWN
