"""A compacted topic says the last value of each key in every dialect, through kills of the broker.

The model is a dict. What one dialect publishes each reads; see `dialects` for what they can say.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import quote

import pulsar
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.kafka.clients.confluent import Confluent
from tests.nats.conftest import NatsStack
from tests.nats.dialects import READERS, SECONDS, WRITERS, Place, Sent

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

TOPIC: Final = "compacted"
KEYS: Final = [f"k{n}" for n in range(6)]
ROUNDS: Final = 2
MESSAGES: Final = 60
SETTINGS: Final = {"storage_journal": "24K", "storage_segment": "24K", "storage_reserve": "0"}
WITH_KEYS: Final = [name for name, one in WRITERS.items() if "key" in one.carried]
METRIC: Final = "router_compaction_last_run_time_seconds"


def publish(place: Place, random: Random, last: dict[str, str]) -> None:
    """Publish messages of all keys by all dialects; `last` is what they say in the end."""
    for number in range(MESSAGES):
        key, name = random.choice(KEYS), random.choice(WITH_KEYS)
        gone = "null" in WRITERS[name].carried and random.random() < 0.2
        text = json.dumps({"n": f"{key}-{number}-{'x' * 800}"})
        WRITERS[name].write(place, Sent(None if gone else text, key))
        if gone:
            last.pop(key, None)
        else:
            last[key] = text


def fold(messages: Iterable[Sent]) -> dict[str, str]:
    """Return the last value of each key; a message without one deletes it."""
    found: dict[str, str] = {}
    for one in messages:
        assert one.key is not None
        if one.value:
            found[one.key] = one.value
        else:
            found.pop(one.key, None)
    return found


def compact(place: Place) -> None:
    """Request compaction, and return when it is done."""
    path = f"/admin/v2/persistent/public/default/{TOPIC}/compaction"
    asked = urllib.request.Request(place.stack.url + path, method="PUT")
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
        assert answer.status == 204
    until = time.monotonic() + SECONDS
    while place.json(path)["status"] != "SUCCESS":
        assert time.monotonic() < until
        time.sleep(0.02)


def wait_cleaned(place: Place) -> None:
    """Return when the cleaner has looked at all topics since the broker started."""
    until = time.monotonic() + SECONDS
    while not any(
        line.startswith(METRIC) and float(line.split()[1])
        for line in place.http("/metrics").decode().splitlines()
    ):
        assert time.monotonic() < until
        time.sleep(0.02)


def compacted(place: Place) -> list[Sent]:
    """Return what a reader gets that asks for the compacted topic."""
    reader = place.pulsar.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        one = reader.read_next(SECONDS * 1000)
        found.append(Sent(one.data().decode(), one.partition_key() or None))
    reader.close()
    return found


def table(place: Place) -> dict[str, str]:
    """Return the table view, page by page; values are JSON objects there."""
    found: dict[str, str] = {}
    after = ""
    while True:
        page = place.json(f"/topics/{TOPIC}/latest?limit=4&after={quote(after)}")
        found |= {one["key"]: json.dumps(one["value"]) for one in page["values"]}
        if page["next"] is None:
            return found
        after = page["next"]


def create(place: Place) -> None:
    """Make a stream, and its topic a compacted one that is always cleaned."""
    config = {"name": TOPIC, "subjects": [TOPIC, f"{TOPIC}.>"]}
    assert "error" not in place.json(f"/jetstream/api/STREAM.CREATE.{TOPIC}", config)
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0"))
    ]
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
    for changed in place.kafka.admin.incremental_alter_configs([resource]).values():
        changed.result(SECONDS)


@pytest.fixture
def stack(folder: Path) -> Iterator[NatsStack]:
    found = NatsStack(folder, **SETTINGS)
    found.start()
    yield found
    assert found.stop() == 0


def test_compacted_topic_says_the_last_value_of_each_key_in_every_dialect(
    stack: NatsStack,
) -> None:
    random, last = Random(29), dict[str, str]()
    for turn in range(ROUNDS):
        with opened(stack) as place:
            if not turn:
                create(place)
            publish(place, random, last)
            compact(place)
            # The cleaner is at work.
            os.kill(stack.broker(), signal.SIGKILL)
            stack.wait_ready()
            assert fold(compacted(place)) == table(place) == last
    assert stack.stop() == 0
    stack.start()
    with opened(stack) as place:
        compact(place)
        wait_cleaned(place)
        assert table(place) == last
        assert {one.key: one.value for one in compacted(place)} == last
        check_readers(place, last)


def check_readers(place: Place, last: dict[str, str]) -> None:
    """Check what each dialect reads of the cleaned topic."""
    stats = place.json(f"/admin/v2/persistent/public/default/{TOPIC}/stats")
    count = stats["msgInCounter"]
    assert len(last) <= count < ROUNDS * MESSAGES
    for name, reader in READERS.items():
        found: list[Sent] = []
        while len(found) < count:
            # An answer may end where a segment ends.
            page = reader.read(place, count - len(found))
            assert page, f"{name}: {len(found)} of {count} messages came"
            found += page
        if "key" in reader.shown:
            assert fold(found) == last, name
        else:
            assert {one.value for one in found} >= set(last.values()), name


@contextmanager
def opened(stack: NatsStack) -> Iterator[Place]:
    """Clients of all dialects."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(stack.folder / "pulsar.log"))
    client = pulsar.Client(f"pulsar://{stack.pulsar}", logger=logger)
    with closing(client), closing(Confluent(stack.kafka)) as kafka:
        yield Place(stack, kafka, client, TOPIC)
