"""What expired, and its delete marker, in every dialect: at once, after a kill -9, and restored."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import nats
import pulsar
import pytest

from tests.kafka.clients.confluent import Confluent
from tests.nats.conftest import NatsStack
from tests.nats.dialects import KEY, READERS, SUBJECT, WHOLE, Place, Sent
from tests.nats.users import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

SECOND: Final = 1_000_000_000
COMMAND_SECONDS: Final = 60.0
TOPICS: Final = ("live", "killed", "restored")
"""A topic for each state of the router: readers of groups read it once."""


def left(topic: str) -> list[Sent]:
    """Return what each topic holds: a value that lives for ever, and the marker of another one."""
    marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h0m0s", "Nats-Rollup": "sub"}
    return [
        Sent("kept", "kept", {"Nats-TTL": "never", SUBJECT: f"{topic}.kept"}),
        Sent("", None, marker | {SUBJECT: f"{topic}.gone"}),
    ]


async def fill(url: str, topics: tuple[str, ...]) -> None:
    """Make the streams, and return when what expires in them is replaced."""
    client = await nats.connect(url)
    js = client.jetstream()
    for topic in topics:
        await js.add_stream(
            name=topic,
            subjects=[f"{topic}.>"],
            max_msgs_per_subject=1,
            subject_delete_marker_ttl=3600,
        )
        for name, ttl in (("kept", "never"), ("gone", "1s")):
            headers = {KEY: name, "Nats-TTL": ttl}
            await js.publish(f"{topic}.{name}", name.encode(), headers=headers)
    for topic in topics:

        async def replaced(topic: str = topic) -> bool:
            state = (await js.stream_info(topic)).state
            return state.last_seq == 3 and state.messages == 2

        await until(replaced)
    await client.close()


@dataclass(frozen=True)
class Routers:
    """The router with the topics, and the folder where a backup of it was restored."""

    first: NatsStack
    restored: Path


def router(*words: str, cwd: Path) -> None:
    """Run a command of the router."""
    command = [sys.executable, "-m", "router", *words]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture(scope="module")
def routers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routers]:
    stack = NatsStack(tmp_path_factory.mktemp("expiry"))
    stack.start()
    place = Place(stack, None, None, "")  # type: ignore[arg-type]  # HTTP alone
    for topic in TOPICS:
        place.http(
            "/topics/create",
            b'{"topicName": "%b", "cleanupPolicy": "compact"}' % topic.encode(),
            "application/json",
        )
    asyncio.run(fill(stack.nats_url, TOPICS))
    restored = tmp_path_factory.mktemp("expiry-restored")
    router("backup", str(restored / "backups"), "--data", "data", cwd=stack.folder)
    router("restore", str(restored / "backups"), "--data", "data", cwd=restored)
    yield Routers(stack, restored)
    assert stack.stop() == 0


def plain(message: Sent) -> Sent:
    """Return a message without its time, and the headers as a NATS client wrote them."""
    properties = {name: one for name, one in message.properties.items() if name != WHOLE}
    return replace(message, properties=properties, time=0)


def check(stack: NatsStack, topic: str) -> None:
    """Compare what each dialect reads of a topic with what it holds."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(stack.folder / "pulsar.log"))
    client = pulsar.Client(f"pulsar://{stack.pulsar}", logger=logger)
    with closing(client), closing(Confluent(stack.kafka)) as kafka:
        place = Place(stack, kafka, client, topic)
        for name, reader in READERS.items():
            found = [plain(one) for one in reader.read(place, 2)]
            assert found == [reader.seen(one) for one in left(topic)], name
        page = place.json(f"/topics/{topic}/latest")
        assert [one["key"] for one in page["values"]] == ["kept"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            place.http(f"/topics/{topic}/latest/gone")


def test_each_dialect_reads_the_marker_and_not_what_expired(routers: Routers) -> None:
    check(routers.first, "live")


def test_it_stays_so_when_the_broker_is_killed(routers: Routers) -> None:
    os.kill(routers.first.broker(), signal.SIGKILL)
    routers.first.wait_ready()
    check(routers.first, "killed")


def test_it_stays_so_in_a_backup_that_is_restored(routers: Routers) -> None:
    stack = NatsStack(routers.restored)
    stack.start()
    try:
        check(stack, "restored")
    finally:
        assert stack.stop() == 0
