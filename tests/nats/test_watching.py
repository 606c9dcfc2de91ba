"""A plain NATS subscription sees what clients of the other dialects publish to a stream's topic."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import Callable
from uuid import uuid4

import nats
import pulsar
import pytest
from nats.aio.msg import Msg

from tests.broker.nats_raw import QUIET, RawNats
from tests.kafka.clients import Record
from tests.kafka.clients.confluent import Confluent
from tests.nats.conftest import NatsStack

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

SECONDS = 20.0


def publish_text(stack: NatsStack, topic: str, body: bytes, **headers: str) -> None:
    """Publish a text over HTTP."""
    given = {"Content-Type": "text/plain"} | {n.replace("_", "-"): v for n, v in headers.items()}
    request = urllib.request.Request(f"{stack.url}/events/{topic}", body, given)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert answer.status == 200


def publish_all(stack: NatsStack, topic: str, subject: str) -> None:
    """Publish a message in each dialect; those that have properties say the subject."""
    path = f"{stack.url}/events/{topic}?partitionKey=k"
    request = urllib.request.Request(path, b"by HTTP", {"Content-Type": "text/plain"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert answer.status == 200
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(stack.folder / "pulsar.log"))
    client = pulsar.Client(f"pulsar://{stack.pulsar}", logger=logger)
    properties = {"Nats-Subject": subject, "a": "1"}
    producer = client.create_producer(topic)
    producer.send(b"by Pulsar", properties, partition_key="k", event_timestamp=77)
    client.close()
    kafka = Confluent(stack.kafka)
    headers = (("Nats-Subject", subject.encode()), ("a", b"1"))
    kafka.produce(topic, [Record(b"by Kafka", b"k", headers, 77)], codec="none")
    kafka.close()


async def watched(
    stack: NatsStack, pattern: str, count: int, publish: Callable[[], None]
) -> list[Msg]:
    """Return what a subscription receives of what is published after it."""
    connection = await nats.connect(stack.nats_url)
    try:
        subscription = await connection.subscribe(pattern)
        await connection.flush()
        await asyncio.to_thread(publish)
        return [await subscription.next_msg(timeout=SECONDS) for _ in range(count)]
    finally:
        await connection.close()


def test_a_subscription_sees_what_each_dialect_publishes_to_a_plain_topic(
    nats_stack: NatsStack,
) -> None:
    topic = f"watched-{uuid4().hex}"
    found = asyncio.run(
        watched(nats_stack, topic, 3, lambda: publish_all(nats_stack, topic, "not-its-own"))
    )
    assert [(one.subject, one.data) for one in found] == [
        (topic, b"by HTTP"),
        (topic, b"by Pulsar"),
        (topic, b"by Kafka"),
    ]
    assert {one.header["router-key"] for one in found if one.header} == {"k"}
    assert found[1].header == {"a": "1", "router-key": "k", "router-event-time": "77"}
    assert found[2].header == found[1].header


def test_a_subscription_sees_subjects_that_the_stream_takes(nats_stack: NatsStack) -> None:
    name = f"S{uuid4().hex}"

    async def body() -> list[Msg]:
        connection = await nats.connect(nats_stack.nats_url)
        await connection.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
        await connection.close()
        publish = lambda: publish_all(nats_stack, name, f"{name}.new")  # noqa: E731
        return await watched(nats_stack, f"{name}.*", 3, publish)

    found = asyncio.run(body())
    assert [(one.subject, one.data) for one in found] == [
        (f"{name}.{name}", b"by HTTP"),
        (f"{name}.new", b"by Pulsar"),
        (f"{name}.new", b"by Kafka"),
    ]


async def test_what_http_publishes_to_a_stream_of_other_subjects_has_a_subject_of_the_stream(
    nats_stack: NatsStack,
) -> None:
    name = f"TRP{uuid4().hex}"
    prefix = name.lower()

    def publish() -> None:
        publish_text(nats_stack, name, b"bare")
        publish_text(nats_stack, name, b"named", Nats_Subject=f"{prefix}.new")

    connection = await nats.connect(nats_stack.nats_url)
    js = connection.jetstream()
    await js.add_stream(name=name, subjects=[f"{prefix}.>"], allow_direct=True)
    expected = [(f"{prefix}.{name}", b"bare"), (f"{prefix}.new", b"named")]
    found = await watched(nats_stack, f"{prefix}.>", 2, publish)
    assert [(one.subject, one.data) for one in found] == expected
    for pattern in (f"{prefix}.>", f"{prefix}.*"):
        pull = await js.pull_subscribe(pattern, stream=name)
        read = await pull.fetch(2, timeout=SECONDS)
        assert [(one.subject, one.data) for one in read] == expected
    for subject, data in expected:
        assert (await js.get_last_msg(name, subject, direct=True)).data == data
    await connection.close()


def test_headers_whose_names_repeat_are_headers_for_each_dialect_that_has_them(
    nats_stack: NatsStack,
) -> None:
    topic = f"repeated-{uuid4().hex}"
    headers = (("a", b"1"), ("b", b"2"), ("a", b"3"))
    kafka = Confluent(nats_stack.kafka)
    kafka.produce(topic, [Record(b"by Kafka", None, headers, 77)], codec="none")
    with RawNats(nats_stack.nats) as client:
        client.connect(**QUIET)
        block = b"NATS/1.0\r\na: 1\r\nb: 2\r\na: 3\r\n\r\n"
        client.send("SUB _INBOX.x 1", f"HPUB {topic} _INBOX.x {len(block)} {len(block) + 7}")
        client.send(block + b"by NATS")
        assert client.line().startswith("MSG _INBOX.x 1")
    lines = "application/vnd.dragoman+ndjson"
    listed = '[["a","1"],["b","2"],["a","3"]]'
    properties = {"a": "3", "b": "2", "router-headers": listed}
    line = json.dumps({"value": "by HTTP", "properties": properties}).encode()
    publish_text(nats_stack, topic, line, Content_Type=lines)

    records = [one.record for one in kafka.read(topic, 0, 3)]
    kafka.close()
    own = {"Nats-Subject"}
    for record in records:
        assert tuple(one for one in record.headers if one[0] not in own) == headers
    with urllib.request.urlopen(
        f"{nats_stack.url}/topics/public/default/{topic}/partitions/0/messages?max_messages=3",
        timeout=SECONDS,
    ) as answer:
        found = json.load(answer)["messages"]
    assert [one["properties"].items() >= properties.items() for one in found] == [True] * 3

    async def stored() -> list[str]:
        connection = await nats.connect(nats_stack.nats_url)
        js = connection.jetstream()
        blocks = []
        for sequence in (1, 2, 3):
            reply = await connection.request(
                f"$JS.API.STREAM.MSG.GET.{topic}", b'{"seq":%d}' % sequence, timeout=SECONDS
            )
            blocks.append(base64.b64decode(json.loads(reply.data)["message"]["hdrs"]).decode())
        assert (await js.stream_info(topic)).state.messages == 3
        await connection.close()
        return blocks

    for shown in asyncio.run(stored()):
        assert "\r\na: 1\r\nb: 2\r\na: 3\r\n" in shown
        assert "router-headers" not in shown
