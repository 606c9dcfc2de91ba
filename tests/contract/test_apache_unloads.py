"""Apache Pulsar closes consumers when it unloads a topic: readers and polls go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from router.app import create_app
from router.backends import Batch, Reader, Start
from router.model import NOT_PARTITIONED, Message, Position, Stored, TopicName
from tests.contract.conftest import ON_APACHE, WAIT, Bell, Opened, open_apache
from tests.servers.pulsar import Pulsar

pytestmark = [pytest.mark.contract, *ON_APACHE]

MANY = 1000
BYTES = 1 << 20


@pytest.fixture(scope="module")
def opened(apache_pulsar: Pulsar, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield open_apache(apache_pulsar, tmp_path_factory.mktemp("data"), stack)


def unload(server: Pulsar, topic: TopicName) -> None:
    server.ask("PUT", f"persistent/public/default/{topic.local}/unload")


def publish(opened: Opened, topic: TopicName, *values: bytes) -> None:
    batch = Batch(topic, NOT_PARTITIONED, [Message(value) for value in values])
    opened.backend.publish(batch, WAIT)


def drained(reader: Reader) -> list[Stored]:
    found: list[Stored] = []
    while some := reader.receive(MANY, BYTES, WAIT):
        found += some
    return found


def values(stored: Sequence[Stored]) -> list[bytes]:
    return [one.message.value for one in stored]


STARTS: dict[str, Callable[[list[Stored]], Start | int | Position]] = {
    "earliest": lambda _stored: Start.EARLIEST,
    "latest": lambda _stored: Start.LATEST,
    "position": lambda stored: stored[2].position,
    "time": lambda stored: stored[-1].publish_time,
}


@pytest.mark.parametrize(
    ("start", "empty"),
    [*((start, False) for start in STARTS), ("earliest", True), ("latest", True)],
)
def test_a_reader_goes_on_where_it_was_when_its_topic_is_unloaded(
    opened: Opened, apache_pulsar: Pulsar, start: str, empty: bool
) -> None:
    topic, stored = opened.new_topic(), list[Stored]()
    if not empty:
        publish(opened, topic, b"1", b"2", b"3")
        publish(opened, topic, b"4")
        before = opened.backend.read(topic, NOT_PARTITIONED, Start.EARLIEST, Bell(), WAIT)
        stored = drained(before)
        before.close()
    begin = STARTS[start](stored)
    expected = {
        "earliest": values(stored),
        "latest": [],
        "position": [b"3", b"4"],
        "time": values([one for one in stored if one.publish_time >= begin])
        if isinstance(begin, int) and not isinstance(begin, Start)
        else [],
    }[start]
    reader = opened.backend.read(topic, NOT_PARTITIONED, begin, Bell(), WAIT)
    for number in range(2):
        unload(apache_pulsar, topic)
        # Of a batch, the reader returns the first message before the next unload.
        publish(opened, topic, b"%d-a" % number, b"%d-b" % number)
        expected += [b"%d-a" % number, b"%d-b" % number]
        first = reader.receive(1, BYTES, WAIT)
        assert values(first) == expected[:1]
        unload(apache_pulsar, topic)
        assert values(drained(reader)) == expected[1:]
        expected = []
    reader.close()


def test_a_waiting_poll_gets_what_comes_after_its_topic_is_unloaded(
    opened: Opened, apache_pulsar: Pulsar
) -> None:
    topic = opened.new_topic()
    path = f"persistent/public/default/{topic.local}"
    app = create_app(opened.settings, opened.backend, opened.node)
    with ThreadPoolExecutor(1) as pool:
        url = f"/events/{topic.local}/g/c?timeout=60000"
        poll = pool.submit(lambda: app.test_client().get(url).get_json())
        end = time.monotonic() + WAIT
        while not any(
            one["consumers"]
            for one in apache_pulsar.ask("GET", f"{path}/stats")["subscriptions"].values()
        ):
            assert time.monotonic() < end
            time.sleep(0.02)
        unload(apache_pulsar, topic)
        publish(opened, topic, b'"1"')
        assert poll.result(WAIT) == ['"1"']
    app.extensions["router.close"]()
