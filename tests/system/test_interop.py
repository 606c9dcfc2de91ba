"""One log under two dialects: the official Pulsar client and HTTP read what the other published."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from router.wire.pulsar import join_payload
from router.wire.pulsar.pulsar_pb2 import MessageMetadata
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]

COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


@pytest.fixture(scope="module")
def pulsar_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, pulsar_port: int) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("interop")
    made = Stack(folder, "--pulsar", f"127.0.0.1:{pulsar_port}")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(stack: Stack, pulsar_port: int) -> Iterator[pulsar.Client]:
    made = pulsar.Client(
        f"pulsar://127.0.0.1:{pulsar_port}",
        operation_timeout_seconds=10,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield made
    made.close()


def ask(
    stack: Stack, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)) as connection:
        connection.request(method, path, body or None, named)
        answer = connection.getresponse()
        return answer.status, answer.read()


def poll(stack: Stack, topic: str, accept: str) -> bytes:
    path = f"/events/{topic}/g/c?timeout=5000&from=earliest"
    status, body = ask(stack, "GET", path, Accept=accept)
    assert status == 200, body
    return body


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda kind: str(kind).split(".")[-1])
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_poll_gets_what_the_pulsar_client_published(
    stack: Stack, client: pulsar.Client, compression: pulsar.CompressionType, *, batching: bool
) -> None:
    topic = f"from-pulsar-{str(compression).rsplit('.', 1)[-1]}-{batching}"
    producer = client.create_producer(
        topic,
        compression_type=compression,
        batching_enabled=batching,
        batching_max_publish_delay_ms=50,
    )
    for i in range(10):
        producer.send_async(
            f"värde {i}".encode(), None, partition_key=f"k{i % 3}", properties={"n": str(i)}
        )
    producer.flush()
    lines = [json.loads(x) for x in poll(stack, topic, "application/x-ndjson").splitlines()]
    found = [(line["value"], line["key"], line["properties"]) for line in lines]
    assert found == [(f"värde {i}", f"k{i % 3}", {"n": str(i)}) for i in range(10)]


def test_poll_gets_exact_bytes_when_the_pulsar_client_published_no_text(
    stack: Stack, client: pulsar.Client
) -> None:
    value = bytes(range(256))
    client.create_producer("binary").send(value, partition_key="k")
    assert poll(stack, "binary", "application/cambria").rstrip(b"\n") == b"1.256.k" + value


def test_event_and_trace_are_seen_from_both_sides(stack: Stack, client: pulsar.Client) -> None:
    consumer = client.subscribe("events", "s", initial_position=pulsar.InitialPosition.Earliest)
    event = {"specversion": "1.0", "id": "7", "source": "/s", "type": "t"}
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    headers = {f"ce-{name}": value for name, value in event.items()} | trace
    headers |= {"ce-time": "1970-01-01T00:00:01Z", "ce-partitionkey": "k"}
    headers["Content-Type"] = "application/json"
    assert ask(stack, "POST", "/events/events", b'{"a":1}', **headers)[0] == 200
    received = consumer.receive(20_000)
    properties = {f"ce_{name}": value for name, value in event.items()} | trace
    properties |= {"ce_time": "1970-01-01T00:00:01Z", "ce_partitionkey": "k"}
    assert received.data() == b'{"a":1}'
    assert received.properties() == properties | {"content-type": "application/json"}
    assert (received.partition_key(), received.event_timestamp()) == ("k", 1000)
    client.create_producer("events").send(b"[1]", properties=received.properties())
    first, second = json.loads(poll(stack, "events", "application/cloudevents-batch+json"))
    more = {"time": "1970-01-01T00:00:01Z", "partitionkey": "k"}
    more["datacontenttype"] = "application/json"
    assert first == event | more | {"data": {"a": 1}}
    assert second == event | more | {"data": [1]}


def test_pulsar_client_gets_what_was_posted_with_keys(stack: Stack, client: pulsar.Client) -> None:
    consumer = client.subscribe("from-http", "s", initial_position=pulsar.InitialPosition.Earliest)
    body = b"2.5.k1first\n0.6.second\n" + b"3.4.k\xc3\xa9" + b"\x00\xff\x01\x02"
    status, answer = ask(
        stack, "POST", "/events/from-http", body, Content_Type="application/cambria"
    )
    assert (status, json.loads(answer)["count"]) == (200, 3)
    got = [consumer.receive(5000) for _ in range(3)]
    assert [(m.data(), m.partition_key()) for m in got] == [
        (b"first", "k1"),
        (b"second", ""),
        (b"\x00\xff\x01\x02", "ké"),
    ]


def test_group_of_http_and_subscription_of_pulsar_are_one_cursor(
    stack: Stack, client: pulsar.Client
) -> None:
    consumer = client.subscribe(
        "shared",
        "g",
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )
    ask(stack, "POST", "/events/shared", b"one\ntwo\nthree", Content_Type="text/plain")
    message = consumer.receive(5000)
    assert message.data() == b"one"
    consumer.acknowledge(message)
    consumer.close()
    assert json.loads(poll(stack, "shared", "application/json")) == ["two", "three"]


def test_poll_is_refused_while_a_pulsar_client_holds_the_subscription(
    stack: Stack, client: pulsar.Client
) -> None:
    ask(stack, "POST", "/events/held", b"one", Content_Type="text/plain")
    consumer = client.subscribe("held", "g", initial_position=pulsar.InitialPosition.Earliest)
    status, body = ask(stack, "GET", "/events/held/g/c?timeout=500")
    assert (status, json.loads(body)["mrErrorCode"]) == (503, 3002), body
    consumer.close()
    assert json.loads(poll(stack, "held", "application/json")) == ["one"]


def test_a_batch_that_cannot_be_taken_apart_comes_as_its_bytes_and_holds_nobody_up(
    stack: Stack, pulsar_port: int
) -> None:
    raw = RawClient(f"pulsar://127.0.0.1:{pulsar_port}")
    raw.shake_hands()
    raw.producer("broken")
    raw.publish(b"before")
    broken = MessageMetadata(
        producer_name="raw", sequence_id=1, publish_time=5, num_messages_in_batch=70
    )
    raw.send("SEND", join_payload(broken, b"no batch"), producer_id=0, sequence_id=1)
    assert raw.expect("SEND_RECEIPT").sequence_id == 1
    raw.publish(b"after", sequence_id=2)
    raw.close()
    lines = [json.loads(x) for x in poll(stack, "broken", "application/x-ndjson").splitlines()]
    assert [(line["value"], line.get("properties", {})) for line in lines] == [
        ("before", {}),
        ("no batch", {"router-undecoded": "body"}),
        ("after", {}),
    ]
    status, body = ask(stack, "GET", "/events/broken/g/c?timeout=0")
    assert (status, json.loads(body)) == (200, [])


def test_a_group_is_moved_while_a_poll_of_it_waits(stack: Stack) -> None:
    ask(stack, "POST", "/events/moved", b"one\ntwo", Content_Type="text/plain")
    assert json.loads(poll(stack, "moved", "application/json")) == ["one", "two"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(poll, stack, "moved", "application/json")
        deadline = time.monotonic() + 15
        while not told(stack, "moved")["consumers"]:
            assert time.monotonic() < deadline
        status, _ = ask(stack, "POST", "/topics/moved/groups/g/reset?to=1970-01-01T00:00:00Z")
        assert status == 200
        assert json.loads(waiting.result(20)) == ["one", "two"]
    assert told(stack, "moved")["backlog"] == 0


def told(stack: Stack, topic: str) -> dict[str, int]:
    """Return what is told of the one group of a topic."""
    _, body = ask(stack, "GET", f"/topics/{topic}/groups")
    (group,) = json.loads(body)["groups"]
    found: dict[str, int] = group
    return found
