"""The Kafka backend while its Kafka dies, stands still, or is cut off: nothing lost, no wait
without end, and no restart of the worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from router.backends import Batch, Start
from router.errors import BackendTimeoutError, BackendUnavailableError
from router.model import NOT_PARTITIONED, Message, Subscription
from tests.contract.conftest import WAIT, Bell, Opened, open_kafka
from tests.contract.publishing import Publishers, check, received
from tests.servers.kafka import Kafka
from tests.servers.proxy import TcpProxy

pytestmark = [pytest.mark.contract, pytest.mark.java, pytest.mark.timeout(180)]

SOON = 1.0
DOWN = (BackendUnavailableError, BackendTimeoutError)


class Faulty:
    """A Kafka of this module's own, and a backend that speaks to it through a proxy."""

    def __init__(self, server: Kafka, proxy: TcpProxy, opened: Opened) -> None:
        self.server = server
        self.proxy = proxy
        self.opened = opened


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("faulty")
    with ExitStack() as stack:
        server = Kafka(folder / "kafka")
        stack.callback(server.close)
        proxy = server.proxied()
        server.start()
        yield Faulty(server, proxy, open_kafka(proxy.address, folder, stack))


def test_broken_connections_lose_and_double_nothing(faulty: Faulty) -> None:
    topic = faulty.opened.new_topic()
    publishers = Publishers(faulty.opened, topic)
    for _ in range(8):
        publishers.more(10)
        faulty.proxy.reset()
    publishers.more()
    publishers.end()
    assert not publishers.failed
    check(publishers, received(faulty.opened, topic))


def test_a_kafka_that_cannot_be_reached_is_told_and_found_again(faulty: Faulty, bell: Bell) -> None:
    opened = faulty.opened
    topic = opened.new_topic()
    consumer = opened.consumer(topic, start=Start.LATEST, bell=bell)
    assert consumer.receive(10, 1000, WAIT) == []
    faulty.proxy.cut()
    assert bell.rang(), "who waits must hear of it"
    began = time.monotonic()
    with pytest.raises(DOWN):
        consumer.receive(10, 1000, SOON)
    with pytest.raises(DOWN):
        opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"1")]), SOON)
    with pytest.raises(DOWN):
        opened.backend.subscribe(Subscription(topic, "other"), Start.LATEST, SOON)
    assert time.monotonic() - began < WAIT
    consumer.close()
    faulty.proxy.heal()
    opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"2")]), WAIT)
    again = opened.consumer(topic)
    assert [stored.message.value for stored in again.receive(10, 1000, WAIT)][-1:] == [b"2"]
    again.close()


def test_a_kafka_that_stands_still_costs_no_more_than_the_deadline(faulty: Faulty) -> None:
    opened = faulty.opened
    topic = opened.new_topic()
    opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"1")]), WAIT)
    consumer = opened.consumer(topic)
    found = consumer.receive(10, 1000, WAIT)
    faulty.server.pause()
    try:
        began = time.monotonic()
        for call in (
            lambda: opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"2")]), SOON),
            lambda: consumer.acknowledge(found[0].position, SOON),
            lambda: opened.backend.partitions(topic, SOON),
            lambda: opened.backend.ready(SOON),
        ):
            with pytest.raises(BackendTimeoutError):
                call()
        assert time.monotonic() - began < WAIT
    finally:
        faulty.server.resume()
    consumer.close()
    opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"3")]), WAIT)
    values = received(opened, topic)
    assert values[0] == b"1"
    assert values[-1] == b"3"
    assert len(values) == len(set(values))


def test_a_killed_kafka_comes_back_and_nothing_acknowledged_is_lost_or_doubled(
    faulty: Faulty, bell: Bell
) -> None:
    opened = faulty.opened
    topic = opened.new_topic()
    publishers = Publishers(opened, topic)
    publishers.more()
    faulty.server.kill()
    time.sleep(SOON)
    faulty.server.start()
    publishers.more()
    publishers.end()
    check(publishers, received(opened, topic))
    # A reader that was warm all the while wakes for what comes now.
    consumer = opened.consumer(topic, group="late", start=Start.LATEST, bell=bell)
    assert consumer.receive(10, 1000, WAIT) == []
    opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"now")]), WAIT)
    assert bell.rang()
    assert [stored.message.value for stored in consumer.receive(10, 1000, WAIT)] == [b"now"]
    consumer.close()
