"""Consumers that polls one after the other may use: acknowledged beside the calls, read ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from router.backends import DeferringConsumer, Start
from router.errors import ConsumerClosedError, FencedError
from router.model import (
    NOT_PARTITIONED,
    ConsumerId,
    Grant,
    PollOutcome,
    Stored,
    Subscription,
    TopicName,
)
from tests.contract.conftest import APACHE, KAFKA, WAIT, Bell, Opened, open_any
from tests.contract.on_kafka import BYTES, publish

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module", params=["embedded", "pulsar", KAFKA, APACHE])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield open_any(request, tmp_path_factory.mktemp("data"), stack)


def numbered(opened: Opened, count: int) -> TopicName:
    """Return a topic of so many messages, each published by itself."""
    topic = opened.new_topic()
    for number in range(count):
        publish(opened, topic, b"%d" % number)
    return topic


def deferring(opened: Opened, topic: TopicName, bell: Bell | None = None) -> DeferringConsumer:
    consumer = opened.consumer(topic, bell=bell)
    assert isinstance(consumer, DeferringConsumer)
    return consumer


def taken(consumer: DeferringConsumer, limit: int = 1) -> list[Stored]:
    return consumer.receive(limit, BYTES, WAIT)


def acknowledged(consumer: DeferringConsumer, limit: int = 1) -> list[int]:
    """Poll and acknowledge; return the numbers of the messages."""
    found = taken(consumer, limit)
    if found:
        assert consumer.acknowledge_soon(found[-1].position)
    consumer.resume()
    return [int(stored.message.value) for stored in found]


def left(opened: Opened, topic: TopicName) -> list[int]:
    """Return what a consumer that is opened now receives."""
    consumer = opened.consumer(topic)
    found: list[int] = []
    while some := consumer.receive(100, BYTES, WAIT):
        found += [int(stored.message.value) for stored in some]
    consumer.close()
    return found


def test_polls_one_after_the_other_take_what_follows_each_once(opened: Opened) -> None:
    topic = numbered(opened, 30)
    consumer = deferring(opened, topic)
    found = [
        number for limit in (1, 1, 1, 7, 1, 100, 100) for number in acknowledged(consumer, limit)
    ]
    assert found == list(range(30))
    consumer.close()
    assert left(opened, topic) == []


def test_what_is_acknowledged_is_so_when_the_consumer_is_closed(opened: Opened) -> None:
    topic = numbered(opened, 10)
    consumer = deferring(opened, topic)
    assert acknowledged(consumer) == [0]
    assert acknowledged(consumer, 3) == [1, 2, 3]
    consumer.close()
    assert left(opened, topic) == [4, 5, 6, 7, 8, 9]


def test_what_was_received_and_not_acknowledged_comes_again(opened: Opened) -> None:
    topic = numbered(opened, 6)
    consumer = deferring(opened, topic)
    assert acknowledged(consumer, 2) == [0, 1]
    assert len(taken(consumer, 2)) == 2
    consumer.close()
    assert left(opened, topic) == [2, 3, 4, 5]


def test_the_next_poll_receives_all_that_is_stored_as_a_new_consumer_would(
    opened: Opened,
) -> None:
    topic, bell = numbered(opened, 1), Bell()
    consumer = deferring(opened, topic, bell)
    assert acknowledged(consumer, 10) == [0]
    assert taken(consumer, 10) == []
    consumer.resume()
    for number in range(1, 8):
        publish(opened, topic, b"%d" % number)
    assert acknowledged(consumer, 10) == list(range(1, 8))
    consumer.close()


def test_a_message_wakes_the_poll_that_goes_on_with_a_consumer(opened: Opened) -> None:
    topic, bell = numbered(opened, 1), Bell()
    consumer = deferring(opened, topic, bell)
    assert acknowledged(consumer) == [0]
    assert taken(consumer) == []
    publish(opened, topic, b"1")
    bell.until(lambda: acknowledged(consumer) == [1])
    consumer.close()


def test_positions_of_before_a_reset_are_not_acknowledged_later(opened: Opened) -> None:
    topic = numbered(opened, 6)
    consumer = deferring(opened, topic)
    assert acknowledged(consumer, 2) == [0, 1]
    last = taken(consumer, 3)[-1].position
    opened.backend.reset(Subscription(topic, "g"), Start.EARLIEST, WAIT)
    until_closed(consumer)
    assert not consumer.acknowledge_soon(last)
    with pytest.raises(FencedError):
        consumer.acknowledge(last, WAIT)
    consumer.close()
    assert left(opened, topic) == [0, 1, 2, 3, 4, 5]


def until_closed(consumer: DeferringConsumer) -> None:
    def poll_on() -> None:
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            taken(consumer)
            consumer.resume()

    with pytest.raises(ConsumerClosedError):
        poll_on()


def test_a_closed_consumer_acknowledges_nothing_later(opened: Opened) -> None:
    topic = numbered(opened, 1)
    consumer = deferring(opened, topic)
    (stored,) = taken(consumer)
    consumer.close()
    assert not consumer.acknowledge_soon(stored.position)
    assert left(opened, topic) == [0]


@pytest.fixture(scope="module", params=["pulsar", KAFKA, APACHE])
def retaining(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """A store whose claims workers retain."""
    with ExitStack() as stack:
        yield open_any(request, tmp_path_factory.mktemp("data"), stack)


@pytest.mark.parametrize("change", ["reset", "unsubscribe", "delete_topic"])
def test_a_change_of_a_group_waits_for_the_claims_that_workers_retain(
    retaining: Opened, change: str
) -> None:
    topic = retaining.new_topic()
    group, bell = Subscription(topic, "g"), Bell()
    publish(retaining, topic, b"1", b"2")
    retaining.backend.subscribe(group, Start.EARLIEST, WAIT)
    claim = retaining.node.claim(ConsumerId(group, "c"), 0, bell, WAIT)
    grant = Grant(group, NOT_PARTITIONED, claim.granted()[NOT_PARTITIONED])
    consumer = retaining.backend.consume(grant, bell, WAIT)
    assert isinstance(consumer, DeferringConsumer)
    assert consumer.acknowledge_soon(consumer.receive(1, BYTES, WAIT)[0].position)
    claim.retain()
    changes: dict[str, Callable[[], None]] = {
        "reset": lambda: retaining.backend.reset(group, Start.EARLIEST, WAIT),
        "unsubscribe": lambda: retaining.backend.unsubscribe(group, WAIT),
        "delete_topic": lambda: retaining.backend.delete_topic(topic, WAIT),
    }
    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(changes[change])
        bell.until(claim.recalled)
        assert not changed.done()
        consumer.close()
        claim.release(PollOutcome.DELIVERED)
        changed.result(WAIT)
    if change == "reset":
        assert left(retaining, topic) == [1, 2]
