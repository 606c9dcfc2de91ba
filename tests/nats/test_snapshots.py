"""Backups of nats-server's clients between nats-server and the router, in each direction."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import nats
import pytest
from kafka import KafkaConsumer, TopicPartition
from nats.aio.client import Client
from nats.js.api import KeyValueConfig

from tests.nats.conftest import NatsStack
from tests.servers.golang import NATS, built
from tests.servers.nats import Nats
from tests.system.traffic import ask

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SECONDS: Final = 90
CALL_SECONDS: Final = 30.0
WAYS: Final = [("theirs", "ours"), ("ours", "theirs"), ("ours", "ours")]
LARGE: Final = random.Random(1).randbytes(300_000)
HOUR_NS: Final = 3_600_000_000_000


def go(*arguments: str, succeeds: bool = True) -> str:
    """Run the program in Go; return what it says."""
    command = [str(built(NATS)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode == 0) is succeeds, done.stderr
    return done.stderr


async def api(client: Client, call: str, body: Any = None) -> dict[str, Any]:
    content = b"" if body is None else json.dumps(body).encode()
    answer = await client.request(f"$JS.API.{call}", content, timeout=CALL_SECONDS)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def fill(url: str, name: str) -> None:
    """Make a stream with deletions and a consumer, a bucket, and an object store."""
    client = await nats.connect(url)
    js = client.jetstream(timeout=CALL_SECONDS)
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    for number in range(1, 31):
        await js.publish(f"{name}.{number % 3}", b"%d " % number * number, headers={"N": "a b"})
    await js.publish(f"{name}.same", b"0123456" * 40_000)
    for sequence in (1, 7, 8, 9, 31):
        await api(client, f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": HOUR_NS}
    config["filter_subject"] = f"{name}.1"
    await api(client, f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": config})
    pull = await js.pull_subscribe_bind("c", name)
    for place, message in enumerate(await pull.fetch(5, CALL_SECONDS)):
        if place in {0, 3}:
            await message.ack_sync(CALL_SECONDS)
    bucket = await js.create_key_value(KeyValueConfig(bucket=f"{name}-kv", history=2))
    for number in range(4):
        await bucket.put("a", b"%d" % number)
        await bucket.put(f"b.{number}", b"x")
    await bucket.delete("b.1")
    objects = await js.create_object_store(f"{name}-objects")
    await objects.put("large", LARGE)
    await client.close()


async def described(url: str, name: str) -> dict[str, Any]:
    """Return what clients find of it; times are exact to a millisecond with the router."""
    client = await nats.connect(url)
    js = client.jetstream(timeout=CALL_SECONDS)
    found: dict[str, Any] = {}
    for stream in (name, f"KV_{name}-kv", f"OBJ_{name}-objects"):
        info = await api(client, f"STREAM.INFO.{stream}", {"deleted_details": True})
        state = info["state"]
        members = ("messages", "first_seq", "last_seq", "deleted", "consumer_count")
        found[stream] = [state.get(member) for member in members]
        found[f"{stream} subjects"] = info["config"]["subjects"]
        for sequence in range(state["first_seq"], state["last_seq"] + 1):
            reply = await api(client, f"STREAM.MSG.GET.{stream}", {"seq": sequence})
            message = reply.get("message", {})
            if time := message.get("time"):
                message["time"] = datetime.fromisoformat(time).isoformat(timespec="milliseconds")
            found[f"{stream} {sequence}"] = message
    consumer = await api(client, f"CONSUMER.INFO.{name}.c")
    for member in ("delivered", "ack_floor"):
        consumer[member].pop("last_active", None)
    found["consumer"] = [
        consumer[member]
        for member in (
            "delivered",
            "ack_floor",
            "num_ack_pending",
            "num_redelivered",
            "num_pending",
        )
    ]
    bucket = await js.key_value(f"{name}-kv")
    found["keys"] = sorted(await bucket.keys())
    found["history"] = [(one.value, one.revision) for one in await bucket.history("a")]
    objects = await js.object_store(f"{name}-objects")
    found["object"] = (await objects.get("large")).data == LARGE
    pull = await js.pull_subscribe_bind("c", name)
    found["next"] = [one.metadata.sequence for one in await pull.fetch(2, CALL_SECONDS)]
    await client.close()
    return found


async def remove(url: str, *streams: str) -> None:
    client = await nats.connect(url)
    for stream in streams:
        await api(client, f"STREAM.DELETE.{stream}")
    await client.close()


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_backup_is_restored(
    nats_stack: NatsStack, nats_server: Nats, tmp_path: Path, source: str, target: str
) -> None:
    urls = {"ours": nats_stack.nats_url, "theirs": nats_server.url}
    name = f"{source}-{target}"
    streams = (name, f"KV_{name}-kv", f"OBJ_{name}-objects")
    asyncio.run(fill(urls[source], name))
    for stream in streams:
        go("backup", urls[source], stream, str(tmp_path / stream))
    said = go("restore", urls[source], name, str(tmp_path / name), succeeds=False)
    assert "stream name already in use, cannot restore" in said
    before = asyncio.run(described(urls[source], name))
    asyncio.run(remove(urls[source], *streams))
    for stream in streams:
        go("restore", urls[target], stream, str(tmp_path / stream))
    assert asyncio.run(described(urls[target], name)) == before
    asyncio.run(remove(urls[target], *streams))


def test_the_other_dialects_read_what_was_restored(nats_stack: NatsStack, tmp_path: Path) -> None:
    """Numbers without a message are gaps for each of them."""
    asyncio.run(fill(nats_stack.nats_url, "read"))
    go("backup", nats_stack.nats_url, "read", str(tmp_path / "read"))
    asyncio.run(remove(nats_stack.nats_url, "read", "KV_read-kv", "OBJ_read-objects"))
    go("restore", nats_stack.nats_url, "read", str(tmp_path / "read"))
    kept = [number for number in range(2, 31) if number not in {7, 8, 9}]
    partition = TopicPartition("read", 0)
    consumer = KafkaConsumer(
        bootstrap_servers=nats_stack.kafka, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[int] = []
    while len(found) < len(kept):
        polled = consumer.poll(CALL_SECONDS * 1000).get(partition, [])
        assert polled, found
        found += [one.offset + 1 for one in polled]
    assert found == kept
    assert consumer.end_offsets([partition]) == {partition: 31}
    consumer.close()
    answer = ask(nats_stack, "GET", "/events/read/g/c?from=earliest&timeout=20000")
    assert len(json.loads(answer.body)) == len(kept)
    asyncio.run(remove(nats_stack.nats_url, "read"))
