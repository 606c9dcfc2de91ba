"""The time of storing: all dialects show one, and find messages by the time that they show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import nats
import pulsar
import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy

from tests.kafka.clients.confluent import Confluent
from tests.nats.conftest import NatsStack
from tests.nats.dialects import MILLISECONDS, SECONDS, WRITERS, Place, Sent

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def milliseconds(text: str) -> int:
    """Return a time in RFC 3339 as milliseconds since 1970."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _lines(place: Place, query: str) -> list[Any]:
    group = uuid4().hex
    path = f"/events/{place.topic}/{group}/c?limit=100&timeout={MILLISECONDS}&{query}"
    request = Request(place.stack.url + path, headers={"Accept": "application/x-ndjson"})
    with urlopen(request, timeout=2 * SECONDS) as answer:
        page = answer.read()
    return [json.loads(line) for line in page.splitlines()]


def _ndjson(place: Place) -> list[int]:
    return [one["publish_time"] for one in _lines(place, "from=earliest")]


def _pip64(place: Place) -> list[int]:
    path = f"/topics/public/default/{place.topic}/partitions/0/messages?max_messages=100"
    return [one["publishTime"] for one in place.json(path)["messages"]]


def _kafka(place: Place) -> list[int]:
    return [one.record.timestamp for one in place.kafka.read(place.topic, 0, len(WRITERS))]


def _jetstream_http(place: Place) -> list[int]:
    call = f"/jetstream/api/STREAM.MSG.GET.{place.topic}"
    found = [place.json(call, {"seq": 1 + number})["message"] for number in range(len(WRITERS))]
    return [milliseconds(one["time"]) for one in found]


def _nats(place: Place) -> list[int]:
    async def read() -> list[int]:
        nc = await nats.connect(place.stack.nats_url)
        pull = await nc.jetstream().pull_subscribe("", uuid4().hex, place.topic)
        found = await pull.fetch(len(WRITERS), timeout=SECONDS)
        await nc.close()
        return [round(one.metadata.timestamp.timestamp() * 1000) for one in found]

    return asyncio.run(read())


@dataclass(frozen=True)
class Log:
    """A topic with a message of each writer, and the times that readers show."""

    place: Place
    times: list[int]


@pytest.fixture(scope="module")
def log(nats_stack: NatsStack) -> Iterator[Log]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(nats_stack.folder / "times.log"))
    client = pulsar.Client(f"pulsar://{nats_stack.pulsar}", logger=logger)
    topic = f"times-{uuid4().hex[:8]}"
    with closing(client), closing(Confluent(nats_stack.kafka)) as kafka:
        place = Place(nats_stack, kafka, client, topic)
        config = {"name": topic, "subjects": [topic, f"{topic}.>"]}
        assert "error" not in place.json(f"/jetstream/api/STREAM.CREATE.{topic}", config)
        for writer in WRITERS.values():
            writer.write(place, Sent("{}"))
        yield Log(place, _nats(place))


@pytest.mark.parametrize("read", [_ndjson, _pip64, _kafka, _jetstream_http])
def test_readers_of_all_dialects_show_one_time_of_storing(
    log: Log, read: Callable[[Place], list[int]]
) -> None:
    expected, seen = list(log.times), read(log.place)
    if read is _kafka:
        # A Kafka producer gives its records a time of their own, which Kafka clients read.
        place = list(WRITERS).index("Kafka")
        expected[place] = seen[place]
    assert seen == expected


def _poll(place: Place, time: int) -> int:
    return len(_lines(place, f"from={time}"))


def _deliver(place: Place, time: int) -> int:
    async def read() -> int:
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=datetime.fromtimestamp(time / 1000, UTC),
        )
        nc = await nats.connect(place.stack.nats_url)
        js = nc.jetstream()
        pull = await js.pull_subscribe("", uuid4().hex, place.topic, config=config)
        pending = (await pull.consumer_info()).num_pending
        await nc.close()
        return pending or 0

    return asyncio.run(read())


def later(times: Sequence[int], time: int) -> int:
    """Return how many messages stand from the first one with a time or a later one on."""
    return len(times) - next((n for n, one in enumerate(times) if one >= time), len(times))


@pytest.mark.parametrize("count", [_poll, _deliver])
def test_messages_are_found_by_the_time_that_is_shown(
    log: Log, count: Callable[[Place, int], int]
) -> None:
    for time in (log.times[0], log.times[4], log.times[-1]):
        assert count(log.place, time) == later(log.times, time)


def test_a_pulsar_client_finds_messages_by_the_time_of_storing(log: Log) -> None:
    consumer = log.place.pulsar.subscribe(log.place.topic, "by-time")
    for time in (log.times[0], log.times[4], log.times[-1]):
        consumer.seek(time)
        found = [consumer.receive(MILLISECONDS) for _ in range(later(log.times, time))]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
        assert len(found) == later(log.times, time)
    consumer.close()
