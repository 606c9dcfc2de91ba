"""`router copy` from nats-server: messages, buckets, gaps and consumers, each message once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, KeyValueConfig, RetentionPolicy

from router.backends import NullMailbox, Start
from router.backends.nats import NatsSource
from router.errors import (
    BackendUnavailableError,
    NotAllowedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import NOT_PARTITIONED, Position, Subscription, TopicName
from tests.ports import free_port
from tests.servers.nats import Nats

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SECONDS: Final = 120
CALL_SECONDS: Final = 30.0
LARGE: Final = bytes(range(256)) * 2_000


def copy(url: str, target: Path, *options: str) -> dict[str, Any]:
    """Run the command; return what it says as JSON."""
    command = [sys.executable, "-m", "router", "copy", url, str(target), "--json", *options]
    done = subprocess.run(
        command,
        cwd=target.parent,
        env=os.environ | {"XDG_CONFIG_HOME": str(target.parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def publish(url: str, stream: str, first: int, last: int) -> None:
    client = await nats.connect(url)
    js = client.jetstream(timeout=CALL_SECONDS)
    for number in range(first, last + 1):
        await js.publish(f"{stream}.{number % 3}", b"%d" % number, headers={"N": str(number)})
    await client.close()


async def fill(url: str, stream: str) -> None:
    """Make a stream with gaps and consumers, a bucket, and a work queue."""
    client = await nats.connect(url)
    js = client.jetstream(timeout=CALL_SECONDS)
    await js.add_stream(name=stream, subjects=[f"{stream}.>"])
    await publish(url, stream, 1, 600)
    await js.publish(f"{stream}.large", LARGE)
    await js.purge_stream(stream, seq=3)
    for sequence in (7, 8):
        await js.delete_msg(stream, sequence)
    await js.purge_stream(stream, subject=f"{stream}.1")
    await js.add_consumer(stream, ConsumerConfig(durable_name="g", ack_policy=AckPolicy.EXPLICIT))
    await js.add_consumer(
        stream,
        ConsumerConfig(
            durable_name="f", ack_policy=AckPolicy.EXPLICIT, filter_subject=f"{stream}.2"
        ),
    )
    pull = await js.pull_subscribe_bind("g", stream)
    for message in await pull.fetch(10, CALL_SECONDS):
        await message.ack_sync(CALL_SECONDS)
    bucket = await js.create_key_value(KeyValueConfig(bucket=stream))
    await bucket.put("a", b"1")
    await bucket.put("a", b"2")
    await js.add_stream(
        name=f"{stream}-queue", subjects=[f"{stream}-queue"], retention=RetentionPolicy.WORK_QUEUE
    )
    await js.publish(f"{stream}-queue", b"work")
    await js.add_consumer(
        f"{stream}-queue", ConsumerConfig(durable_name="w", ack_policy=AckPolicy.EXPLICIT)
    )
    await client.close()


def test_streams_are_copied_once_and_compared(nats_server: Nats, tmp_path: Path) -> None:
    stream = f"copied-{uuid4().hex[:8]}"
    asyncio.run(fill(nats_server.url, stream))
    target, only = tmp_path / "data", ("--topics", f"*{stream}*")
    first = copy(nats_server.url, target, *only, "--verify=all")
    kept = [n for n in range(3, 601) if n not in {7, 8} and n % 3 != 1]
    assert first["messages"] == len(kept) + 1 + 1 + 1
    assert first["groups"]["groups"] == 2
    assert first["groups"]["failures"] == []
    asyncio.run(publish(nats_server.url, stream, 603, 610))
    again = copy(nats_server.url, target, *only, "--verify=all")
    assert again["messages"] == 8
    assert copy(nats_server.url, target, *only)["messages"] == 0


def test_what_is_read_of_a_stream(nats_server: Nats) -> None:
    stream = f"read-{uuid4().hex[:8]}"
    asyncio.run(fill(nats_server.url, stream))
    source = NatsSource(nats_server.url, "public", "default")
    topic = TopicName.parse(stream)
    assert topic in [info.topic for info in source.list_topics(CALL_SECONDS)]
    stats = source.describe_topic(topic, CALL_SECONDS)
    kept = [n for n in range(3, 601) if n not in {7, 8} and n % 3 != 1] + [601]
    [partition] = stats.partitions
    assert (partition.messages, partition.next_entry) == (len(kept), 602)
    assert [one.name for one in stats.subscriptions] == ["g"]
    [state] = source.cursors(Subscription(topic, "g"), CALL_SECONDS)
    assert state.mark_delete == Position(0, kept[9])
    assert state.backlog == len(kept) - 10

    def read(start: Any, max_bytes: int = 1 << 20) -> list[Any]:
        reader = source.read(topic, NOT_PARTITIONED, start, NullMailbox(), CALL_SECONDS)
        found: list[Any] = []
        while some := reader.receive(100, max_bytes, CALL_SECONDS):
            found += some
        reader.close()
        return found

    whole = read(Start.EARLIEST)
    assert [one.position.entry for one in whole] == kept
    assert [one.message.value for one in whole] == [*(b"%d" % n for n in kept[:-1]), LARGE]
    assert whole[0].message.properties == {"Nats-Subject": f"{stream}.0", "N": "3"}
    assert all(one.message.event_time == one.publish_time > 0 for one in whole)
    assert [one.message.sequence for one in whole] == kept
    assert read(Start.EARLIEST, 64) == whole
    assert read(Position(0, 300)) == whole[kept.index(300) :]
    later = read(whole[50].publish_time)
    assert later == [one for one in whole if one.publish_time >= whole[50].publish_time]
    assert read(Start.LATEST) == []
    with pytest.raises(TopicNotFoundError):
        source.describe_topic(TopicName.parse("nothing"), CALL_SECONDS)
    with pytest.raises(SubscriptionNotFoundError):
        source.cursors(Subscription(topic, "f"), CALL_SECONDS)
    with pytest.raises(NotAllowedError, match="not written to"):
        source.delete_topic(topic, CALL_SECONDS)
    away = NatsSource(f"nats://127.0.0.1:{free_port()}", "public", "default")
    with pytest.raises(BackendUnavailableError):
        away.ready(CALL_SECONDS)
