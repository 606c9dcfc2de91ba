"""Claims that a worker retains between polls of an id: what they save, and when they end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from router.backends import Consumer, Start
from router.errors import FencedError, SubscriptionBusyError
from router.model import Grant, Position, Stored, Subscription
from router.node import Mailbox
from router.services.consume import (
    AckMode,
    ConnectedClient,
    ConsumeOptions,
    PollMailbox,
    PollServer,
)
from router.services.consume import retained as module
from router.services.topic_metadata import TopicMetadataCache
from tests.unit.services.polling import GROUP, TOPIC, Bench, until
from tests.unit.web.applications import Troubled


@dataclass(eq=False)
class Deferring:
    """A consumer of the memory backend that acknowledges beside the calls: when it is closed."""

    consumer: Consumer
    partition: int
    due: Position | None = None
    refuses: bool = False
    resumed: int = 0

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        return self.consumer.receive(limit, max_bytes, timeout)

    def acknowledge(self, upto: Position, timeout: float) -> None:
        self.consumer.acknowledge(upto, timeout)

    def acknowledge_soon(self, upto: Position) -> bool:
        if not self.refuses:
            self.due = upto
        return not self.refuses

    def resume(self) -> None:
        self.resumed += 1

    def close(self) -> None:
        if self.due is not None:
            try:
                self.consumer.acknowledge(self.due, 1)
            except FencedError:
                pass
        self.consumer.close()


class Store(Troubled):
    """The memory backend with such consumers."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[Deferring] = []
        self.refuses = False
        self.failure: Callable[[Grant], SubscriptionBusyError | None] = lambda _grant: None

    def consume(self, grant: Grant, mailbox: Mailbox, timeout: float) -> Consumer:  # type: ignore[override] # a wrapper, which is as good
        if (failure := self.failure(grant)) is not None:
            raise failure
        consumer = super().consume(grant, mailbox, timeout)
        self.opened.append(Deferring(consumer, grant.partition, refuses=self.refuses))
        return self.opened[-1]


class Workers(Bench):
    """Two workers of a node over one store; `take` and `poll` are of the first."""

    def __init__(self, partitions: int = 0, *, limit: int = 0) -> None:
        super().__init__(partitions, limit=limit)
        self.store = Store()
        self.store.create_topic(self.backend.describe_topic(TOPIC, 1).info, 1)
        self.backend = self.store
        self.first, self.second = self._worker(), self._worker()
        self.subscriber = self.first

    def _worker(self) -> PollServer:
        directory = TopicMetadataCache(self.store, 0, 1, time.monotonic)
        options = ConsumeOptions(1 << 24, 5, False)
        return PollServer(self.store, self.node, directory, options, self.metrics, time.monotonic)

    def take_at(self, worker: PollServer, **more: object) -> list[bytes]:
        poll = worker.poll(self.request(**more), PollMailbox(), ConnectedClient())
        poll.delivered()
        return [stored.message.value for stored in poll.messages]

    def warm(self, **more: object) -> None:
        """Have the first worker retain the claim of c1, by two polls of one message each."""
        for _ in range(2):
            assert len(self.take(limit=1, **more)) == 1
        assert self.retained()

    def retained(self) -> int:
        return len(self.first.context.retained._claims)


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retain claims for longer than a busy machine stands still."""
    monkeypatch.setattr(module, "RETAIN_SECONDS", 10.0)


@pytest.fixture
def workers() -> Iterator[Workers]:
    yield from made()


@pytest.fixture
def shared() -> Iterator[Workers]:
    """Workers on a topic of two partitions."""
    yield from made(2)


def made(partitions: int = 0) -> Iterator[Workers]:
    workers = Workers(partitions)
    yield workers
    for worker in (workers.first, workers.second):
        worker.stop()
        worker.close()
    workers.pool.shutdown()
    workers.node.close()
    workers.store.close()


def test_polls_of_an_id_one_after_the_other_open_one_consumer(workers: Workers) -> None:
    workers.publish(b"1", b"2", b"3", b"4", b"5")
    assert [workers.take(limit=1) for _ in range(5)] == [[b"%d" % n] for n in range(1, 6)]
    # The first poll of an id releases: the next one may come to another worker.
    assert len(workers.store.opened) == 2
    assert workers.store.opened[1].resumed == 3
    assert workers.polls() == {"delivered": 5}


def test_one_poll_alone_retains_nothing(workers: Workers) -> None:
    workers.publish(b"1")
    assert workers.take() == [b"1"]
    assert not workers.retained()
    assert not workers.node.members(GROUP, 1).leases


def test_another_worker_has_the_next_messages_within_milliseconds(workers: Workers) -> None:
    workers.publish(*(b"%d" % n for n in range(8)))
    workers.warm()
    began = time.monotonic()
    assert workers.take_at(workers.second, limit=2) == [b"2", b"3"]
    assert time.monotonic() - began < module.RETAIN_SECONDS / 2
    assert workers.take(limit=1) == [b"4"]


def test_polls_that_alternate_between_workers_lose_and_repeat_nothing(workers: Workers) -> None:
    workers.publish(*(b"%d" % n for n in range(40)))
    found = []
    for turn in range(40):
        worker = workers.second if turn // 3 % 2 else workers.first
        found += workers.take_at(worker, limit=1)
    assert found == [b"%d" % n for n in range(40)]


def test_a_store_that_is_slow_to_close_one_consumer_holds_up_no_other_claim(
    workers: Workers,
) -> None:
    workers.publish(b"1", b"2", b"3")
    groups = [Subscription(TOPIC, name) for name in "xy"]
    for group in groups:
        for _ in range(2):
            assert workers.take(subscription=group, limit=1)
    slow, go_on = workers.store.opened[1], threading.Event()
    close = slow.close
    slow.close = lambda: (go_on.wait(20), close())  # type: ignore[method-assign, assignment] # waits first
    for group in groups:
        workers.pool.submit(workers.node.recall, TOPIC, group.name, 5)
    until(lambda: not workers.node.members(groups[1], 1).leases)
    assert workers.node.members(groups[0], 1).leases
    go_on.set()
    until(lambda: not workers.node.members(groups[0], 1).leases)


def test_a_claim_that_is_not_used_ends_by_itself(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETAIN_SECONDS", 2.0)
    workers.publish(b"1", b"2", b"3")
    workers.warm()
    assert workers.node.members(GROUP, 1).leases
    until(lambda: not workers.node.members(GROUP, 1).leases)
    assert not workers.retained()
    assert workers.take() == [b"3"]


def test_a_reset_is_honoured_by_the_next_poll(workers: Workers) -> None:
    workers.publish(b"1", b"2", b"3")
    workers.warm()
    workers.node.recall(TOPIC, GROUP.name, 5)
    assert not workers.retained()
    workers.store.reset(GROUP, Start.EARLIEST, 1)
    assert workers.take() == [b"1", b"2", b"3"]


def test_what_is_recalled_is_of_that_group_and_topic_alone(workers: Workers) -> None:
    workers.publish(b"1", b"2", b"3")
    workers.warm()
    workers.node.recall(TOPIC, "another", 5)
    workers.node.recall(GROUP.topic.partition(0), None, 5)
    assert workers.retained() == 1
    workers.node.recall(TOPIC, None, 5)
    assert not workers.retained()


def test_a_recall_does_not_wait_for_a_poll_that_uses_the_claim(workers: Workers) -> None:
    workers.publish(b"1", b"2")
    workers.warm()
    waiting = workers.later(timeout=20)
    began = time.monotonic()
    workers.node.recall(TOPIC, None, 10)
    assert time.monotonic() - began < 5
    workers.publish(b"3")
    poll = waiting.result(30)
    assert [stored.message.value for stored in poll.messages] == [b"3"]
    poll.delivered()
    assert not workers.retained()
    assert not workers.node.members(GROUP, 1).leases


def test_a_partition_that_is_another_ids_now_goes_to_it(shared: Workers) -> None:
    for partition in (0, 1):
        shared.publish(*(b"%d" % n for n in range(10)), partition=partition)
    shared.warm()
    found = shared.take_at(shared.second, consumer="c2", limit=100, timeout=5)
    assert len(found) in {8, 9, 10}
    assert len({*shared.node.members(GROUP, 1).members}) == 2


def test_an_abandoned_poll_of_a_retained_claim_comes_again(workers: Workers) -> None:
    workers.publish(b"1", b"2", b"3", b"4")
    workers.warm()
    workers.poll(limit=1).abandon()
    assert not workers.retained()
    assert workers.take(limit=1) == [b"3"]


def test_what_a_poll_left_to_the_next_is_acknowledged_by_it_alone(workers: Workers) -> None:
    workers.publish(b"1", b"2", b"3", b"4")
    workers.warm(ack=AckMode.NEXT)
    consumer = workers.store.opened[-1]
    before = consumer.due
    assert workers.take(limit=1, ack=AckMode.NEXT) == [b"3"]
    assert consumer.due is not None
    assert consumer.due != before
    # Another worker is handed what the last poll left.
    assert workers.take_at(workers.second, limit=1) == [b"4"]
    assert workers.take_at(workers.second) == []


def test_a_store_that_cannot_acknowledge_later_is_released(workers: Workers) -> None:
    workers.store.refuses = True
    workers.publish(b"1", b"2", b"3")
    assert [workers.take(limit=1) for _ in range(3)] == [[b"1"], [b"2"], [b"3"]]
    assert not workers.retained()


def test_claims_are_bounded_and_the_oldest_makes_room(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RETAINED", 2)
    workers.publish(b"1", b"2", b"3")
    groups = [Subscription(TOPIC, name) for name in "xyz"]
    for group in groups:
        for _ in range(2):
            assert workers.take(subscription=group, limit=1)
    assert workers.retained() == 2
    assert not workers.node.members(groups[0], 1).leases
    assert workers.take(subscription=groups[0]) == [b"3"]


def test_a_store_without_room_for_another_consumer_has_the_oldest_claim_ended(
    workers: Workers,
) -> None:
    workers.publish(b"1", b"2", b"3")
    workers.warm()

    def full(_grant: Grant) -> SubscriptionBusyError | None:
        return SubscriptionBusyError("full", retry_after=1) if workers.retained() else None

    workers.store.failure = full
    assert workers.take(subscription=Subscription(TOPIC, "other")) == [b"1", b"2", b"3"]
    assert not workers.retained()


def test_a_subscription_that_is_read_elsewhere_ends_no_other_claim(workers: Workers) -> None:
    workers.publish(b"1", b"2", b"3")
    workers.warm()
    other = Subscription(TOPIC, "other")
    workers.store.failure = lambda grant: (
        SubscriptionBusyError("read") if grant.subscription == other else None
    )
    with pytest.raises(SubscriptionBusyError):
        workers.take(subscription=other)
    assert workers.retained() == 1


def test_claims_of_many_partitions_count_by_their_consumers(
    shared: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RETAINED", 3)
    for partition in (0, 1):
        shared.publish(b"1", b"2", b"3", partition=partition)
    for name in "xy":
        for _ in range(2):
            assert shared.take(subscription=Subscription(TOPIC, name), limit=1)
        assert shared.retained() == 1


def test_empty_polls_behind_a_delivery_count_from_there(workers: Workers) -> None:
    node = workers.node
    node.limit = 3
    workers.publish(b"1", b"2")
    for _ in range(2):
        assert workers.take(limit=1)
    for _ in range(3):
        assert workers.take() == []


def test_a_worker_that_stops_hands_its_claims_over(workers: Workers) -> None:
    workers.publish(b"1", b"2", b"3")
    workers.warm()
    workers.first.stop()
    workers.first.close()
    assert not workers.node.members(GROUP, 1).leases
    assert workers.take_at(workers.second) == [b"3"]


def test_a_claim_is_not_used_when_the_topic_has_grown(workers: Workers) -> None:
    workers.publish(b"1", b"2", b"3")
    workers.warm()
    (claim,) = workers.first.context.retained._claims.values()
    claim.partitions = 7
    assert workers.take() == [b"3"]
    assert len(workers.store.opened) == 3


GREENLETS = """
import router.services.consume.retained as module
from gevent import monkey
monkey.patch_all()
import threading
retained = module.RetainedClaims()
assert type(retained._lock) is type(threading.Lock()), "greenlets would block the whole worker"
"""


def test_greenlets_of_a_worker_wait_for_the_table_and_do_not_block_each_other() -> None:
    # Workers replace the locks of threading after this module is imported.
    subprocess.run([sys.executable, "-c", GREENLETS], check=True, timeout=60)
