"""Our codec of Kafka messages beside kafka-python's, and kio's where it is installed.

Each message is read and written in turns by all codecs in this process; what counts is processor
time, the least of several rounds. Every codec reads the same bytes and makes the same bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from router.kafka.definitions import definition_texts
from router.wire.kafka.engine import Messages

ROUNDS = 5
SECONDS_PER_ROUND = 0.25

Codec = tuple[Callable[[], object], Callable[[], object]]
"""What writes and what reads a message once."""


@dataclass(frozen=True)
class Case:
    """A message of a version, in Kafka's JSON form."""

    name: str
    version: int
    kio: str
    value: Callable[[Messages], Any]


def metadata(messages: Messages) -> Any:
    """Return 100 topics of 10 partitions with 3 replicas, on 6 brokers."""
    partition = {"errorCode": 0, "leaderId": 3, "leaderEpoch": 17, "offlineReplicas": []}
    topics = [
        {
            "errorCode": 0,
            "name": f"topic-with-a-name-{topic:04}",
            "isInternal": False,
            "partitions": [
                {
                    **partition,
                    "partitionIndex": number,
                    "replicaNodes": [1, 2, 3],
                    "isrNodes": [1, 2, 3],
                }
                for number in range(10)
            ],
            "topicAuthorizedOperations": -(1 << 31),
        }
        for topic in range(100)
    ]
    brokers = [
        {"nodeId": node, "host": f"broker-{node}.example.org", "port": 9092, "rack": "rack"}
        for node in range(6)
    ]
    return messages.message("MetadataResponse").from_json(
        {
            "throttleTimeMs": 0,
            "brokers": brokers,
            "clusterId": "cluster-of-the-bench",
            "controllerId": 1,
            "topics": topics,
            "clusterAuthorizedOperations": -(1 << 31),
        },
        9,
    )


def produce(messages: Messages) -> Any:
    """Return one batch of 100 KiB."""
    cls = messages.message("ProduceRequest")
    partition = cls.STRUCTS["PartitionProduceData"]
    topic = cls.STRUCTS["TopicProduceData"]
    found = partition(index=0, records=bytes(range(256)) * 400)  # type: ignore[call-arg]
    topics = [topic(name="orders", partition_data=[found])]  # type: ignore[call-arg]
    return cls(acks=-1, timeout_ms=30_000, topic_data=topics)  # type: ignore[call-arg]


def fetch(messages: Messages) -> Any:
    """Return 50 partitions of 1 KiB."""
    cls = messages.message("FetchResponse")
    partition: Any = cls.STRUCTS["PartitionData"]
    topic: Any = cls.STRUCTS["FetchableTopicResponse"]
    found = [
        partition(
            partition_index=number,
            high_watermark=1000,
            last_stable_offset=1000,
            log_start_offset=0,
            aborted_transactions=[],
            records=bytes(1024),
        )
        for number in range(50)
    ]
    return cls(  # type: ignore[call-arg]
        session_id=7, responses=[topic(topic="orders", partitions=found)]
    )


def join(messages: Messages) -> Any:
    """Return a member with two protocols."""
    cls = messages.message("JoinGroupRequest")
    protocol: Any = cls.STRUCTS["JoinGroupRequestProtocol"]
    return cls(  # type: ignore[call-arg]
        group_id="orders-of-the-day",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id="consumer-1-3d6f1a52-0c5b-4b5e-9d6b-5b0b9a5f6f10",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[
            protocol(name="range", metadata=bytes(60)),
            protocol(name="cooperative-sticky", metadata=bytes(70)),
        ],
    )


CASES = (
    Case("MetadataResponse", 9, "metadata.v9.response", metadata),
    Case("ProduceRequest", 9, "produce.v9.request", produce),
    Case("FetchResponse", 12, "fetch.v12.response", fetch),
    Case("JoinGroupRequest", 7, "join_group.v7.request", join),
)


def ours(case: Case, message: Any, data: bytes) -> Codec:
    """Return this project's codec."""
    cls, version = type(message), case.version
    return lambda: message.write(version), lambda: cls.read(data, version)


def kafka_python(case: Case, data: bytes) -> Codec:
    """Return kafka-python's codec of the same message."""
    package = importlib.import_module("kafka.protocol.metadata")
    found: Any = None
    for name in ("metadata", "producer", "consumer"):
        package = importlib.import_module(f"kafka.protocol.{name}")
        found = found or getattr(package, case.name, None)
    message = found.decode(data, version=case.version)
    assert bytes(message.encode()) == data
    return message.encode, lambda: found.decode(data, version=case.version)


def kio(case: Case, data: bytes) -> Codec:
    """Return kio's codec of the same message."""
    serial: Any = importlib.import_module("kio.serial")
    found = getattr(importlib.import_module(f"kio.schema.{case.kio}"), case.name)
    reader, writer = serial.entity_reader(found), serial.entity_writer(found)
    message, _ = reader(data, 0)

    def write() -> bytes:
        target = io.BytesIO()
        writer(target, message)
        return target.getvalue()

    assert write() == data
    return write, lambda: reader(data, 0)


def rate(operation: Callable[[], object]) -> float:
    """Return how many operations a second of processor time takes, at best."""
    best = 0.0
    for _ in range(ROUNDS):
        done, began = 0, time.process_time()
        while (spent := time.process_time() - began) < SECONDS_PER_ROUND:
            for _ in range(10):
                operation()
            done += 10
        best = max(best, done / spent)
    return best


def compare(_: float = 0.0) -> None:
    """Print operations per second of processor time, and by how much ours are faster."""
    messages = Messages(definition_texts())
    print("| message | codec | write/s | read/s | ours, write | ours, read |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        message = case.value(messages)
        data = message.write(case.version)
        codecs = {"ours": ours(case, message, data), "kafka-python": kafka_python(case, data)}
        if importlib.util.find_spec("kio"):
            codecs["kio"] = kio(case, data)
        rates = {name: (rate(write), rate(read)) for name, (write, read) in codecs.items()}
        for name, (write, read) in rates.items():
            first = rates["ours"]
            print(
                f"| {case.name} v{case.version}, {len(data)} bytes | {name} | {write:,.0f} "
                f"| {read:,.0f} | {first[0] / write:.2f} x | {first[1] / read:.2f} x |"
            )


if __name__ == "__main__":
    compare()
