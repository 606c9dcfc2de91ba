"""One log for all dialects: what one of them published, each of the others reads as it was."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from tests.kafka.clients import CODECS, Record
from tests.kafka.clients.confluent import Confluent
from tests.kafka.conftest import KafkaStack
from tests.kafka.scenarios import T0

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

SECONDS = 20
MILLISECONDS = SECONDS * 1000


@pytest.fixture(scope="module")
def kafka_client(router_stack: KafkaStack) -> Iterator[Confluent]:
    client = Confluent(router_stack.kafka)
    yield client
    client.close()


@pytest.fixture(scope="module")
def pulsar_client(router_stack: KafkaStack) -> Iterator[pulsar.Client]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(router_stack.folder / "pulsar.log"))
    client = pulsar.Client(f"pulsar://{router_stack.pulsar}", logger=logger)
    yield client
    client.close()


def post(stack: KafkaStack, topic: str, body: bytes, *, key: str = "") -> None:
    """Publish a message over HTTP."""
    path = f"{stack.url}/events/{topic}" + (f"?partitionKey={key}" if key else "")
    request = urllib.request.Request(path, body, {"Content-Type": "text/plain"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert answer.status == 200


def poll(stack: KafkaStack, topic: str, group: str, count: int) -> list[str]:
    """Poll a group over HTTP until so many messages came."""
    found: list[str] = []
    path = f"{stack.url}/events/{topic}/{group}/c?timeout={MILLISECONDS}&from=earliest"
    while len(found) < count:
        with urllib.request.urlopen(path, timeout=2 * SECONDS) as answer:
            page = json.loads(answer.read())
        assert page, f"{len(found)} of {count} messages came"
        found += page
    return found


def received(consumer: Any, count: int) -> list[Any]:
    """Receive and acknowledge so many messages with the Pulsar client."""
    found: list[Any] = []
    while len(found) < count:
        found.append(consumer.receive(MILLISECONDS))
        consumer.acknowledge(found[-1])
    return found


def earliest(client: pulsar.Client, topic: str) -> Any:
    """Subscribe from the first message on."""
    return client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)


@pytest.mark.parametrize("codec", CODECS)
def test_what_kafka_clients_produce_is_read_by_all(
    router_stack: KafkaStack,
    kafka_client: Confluent,
    pulsar_client: pulsar.Client,
    codec: str,
) -> None:
    topic = f"kafka-{uuid4()}"
    sent = [
        Record(b"value %d " % n * 20, b"key", (("header", b"h%d" % n),), T0 + n) for n in range(20)
    ]
    kafka_client.create(topic)
    kafka_client.produce(topic, sent, codec=codec)
    texts = [(one.value or b"").decode() for one in sent]
    assert poll(router_stack, topic, "g", 20) == texts
    seen = received(earliest(pulsar_client, topic), 20)
    assert [one.data().decode() for one in seen] == texts
    assert {one.partition_key() for one in seen} == {"key"}
    assert [one.properties() for one in seen] == [{"header": f"h{n}"} for n in range(20)]
    assert [one.event_timestamp() for one in seen] == [one.timestamp for one in sent]


def test_a_null_value_stays_one_for_kafka_and_is_empty_for_the_others(
    router_stack: KafkaStack, kafka_client: Confluent, pulsar_client: pulsar.Client
) -> None:
    topic = f"null-{uuid4()}"
    sent = [Record(None, b"gone", timestamp=T0), Record(b"there", timestamp=T0)]
    kafka_client.create(topic)
    kafka_client.produce(topic, sent)
    assert [one.record for one in kafka_client.read(topic, 0, 2)] == sent
    assert poll(router_stack, topic, "g", 2) == ["", "there"]
    seen = received(earliest(pulsar_client, topic), 2)
    assert [one.data() for one in seen] == [b"", b"there"]


def test_what_is_posted_is_consumed_by_kafka_clients(
    router_stack: KafkaStack, kafka_client: Confluent
) -> None:
    topic = f"posted-{uuid4()}"
    for number in range(5):
        post(router_stack, topic, b"m%d" % number, key="k")
    seen = kafka_client.read(topic, 0, 5)
    assert [one.record.value for one in seen] == [b"m%d" % n for n in range(5)]
    assert [one.record.key for one in seen] == [b"k"] * 5
    assert [one.offset for one in seen] == list(range(5))


@pytest.mark.parametrize("batched", [False, True])
def test_what_pulsar_clients_send_is_consumed_by_kafka_clients(
    router_stack: KafkaStack,
    kafka_client: Confluent,
    pulsar_client: pulsar.Client,
    batched: bool,
) -> None:
    topic = f"sent-{uuid4()}"
    producer = pulsar_client.create_producer(
        topic, batching_enabled=batched, compression_type=pulsar.CompressionType.ZSTD
    )
    for number in range(20):
        producer.send_async(
            b"m%d" % number, lambda *_: None, partition_key="k", properties={"n": str(number)}
        )
    producer.flush()
    seen = kafka_client.read(topic, 0, 20)
    assert [one.offset for one in seen] == list(range(20))
    assert [one.record.value for one in seen] == [b"m%d" % n for n in range(20)]
    assert {one.record.key for one in seen} == {b"k"}
    assert [one.record.headers for one in seen] == [(("n", b"%d" % n),) for n in range(20)]
    assert poll(router_stack, topic, "g", 20) == [f"m{n}" for n in range(20)]


def test_dialects_take_turns_on_one_topic(
    router_stack: KafkaStack, kafka_client: Confluent, pulsar_client: pulsar.Client
) -> None:
    topic = f"turns-{uuid4()}"
    kafka_client.create(topic)
    producer = pulsar_client.create_producer(topic)
    for number in range(0, 12, 3):
        kafka_client.produce(topic, [Record(b"m%d" % number, timestamp=T0)])
        post(router_stack, topic, b"m%d" % (number + 1))
        producer.send(b"m%d" % (number + 2))
    expected = [f"m{n}" for n in range(12)]
    assert poll(router_stack, topic, "g", 12) == expected
    seen = received(earliest(pulsar_client, topic), 12)
    assert [one.data().decode() for one in seen] == expected
    offsets = kafka_client.read(topic, 0, 12)
    assert [(one.record.value or b"").decode() for one in offsets] == expected
    assert [one.offset for one in offsets] == list(range(12))
