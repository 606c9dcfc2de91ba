"""What the Kafka backend adds: positions that move, fences, readers that stay warm, partial
failures, keys of repeated requests, and greenlets."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition

from router.backends import Batch, Start
from router.backends.kafka import KafkaBackend
from router.backends.kafka.consumer import KafkaConsumer
from router.backends.kafka.group_progress import CommitProgress
from router.backends.kafka.transactions import KafkaTransactions
from router.errors import (
    BackendUnavailableError,
    ConsumerClosedError,
    FencedError,
    OutcomeUnknownError,
    PartialPublishError,
    PublishRefusedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import NOT_PARTITIONED, Grant, Message, Subscription, TopicInfo
from router.model.policies import Policies
from tests.contract.conftest import WAIT, Bell, Opened
from tests.contract.on_kafka import BYTES, MANY, eventually, publish, readers, values
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.contract, pytest.mark.java, pytest.mark.timeout(120)]

BEFORE_KAFKA = 15.0
"""Before Kafka ends a transaction of a worker that is gone."""


@pytest.fixture(scope="module")
def opened(on_kafka: Opened) -> Opened:
    return on_kafka


def test_a_group_begins_and_is_reset_where_it_is_told(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1")
    time.sleep(0.02)
    middle = time.time_ns() // 1_000_000
    publish(opened, topic, b"2")
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, middle, WAIT)
    assert values(opened, topic, "g") == [b"2"]
    for to, expected in (
        (Start.EARLIEST, [b"1", b"2"]),
        (middle, [b"2"]),
        (Start.LATEST, []),
        (0, [b"1", b"2"]),
        (middle + 3_600_000, []),
    ):
        opened.backend.reset(group, to, WAIT)
        assert values(opened, topic, "g") == expected


def test_resetting_what_is_not_there_is_refused(opened: Opened) -> None:
    with pytest.raises(TopicNotFoundError):
        opened.backend.reset(Subscription(opened.new_name(), "g"), Start.LATEST, WAIT)
    with pytest.raises(SubscriptionNotFoundError):
        opened.backend.reset(Subscription(opened.new_topic(), "g"), Start.LATEST, WAIT)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_was_received_before_a_reset_is_not_acknowledged(
    opened: Opened, another: Callable[..., Opened], elsewhere: bool
) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2")
    consumer = opened.consumer(topic)
    found = consumer.receive(1, BYTES, WAIT)
    consumer.acknowledge(found[0].position, WAIT)
    found = consumer.receive(1, BYTES, WAIT)
    worker = another() if elsewhere else opened
    worker.backend.reset(Subscription(topic, "g"), Start.EARLIEST, WAIT)
    with pytest.raises(FencedError):
        consumer.acknowledge(found[0].position, WAIT)
    consumer.close()
    assert values(opened, topic, "g") == [b"1", b"2"]


def test_a_waiting_consumer_is_closed_by_a_reset_and_another_follows(
    opened: Opened, bell: Bell
) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1")
    consumer = opened.consumer(topic, start=Start.LATEST, bell=bell)
    assert consumer.receive(MANY, BYTES, WAIT) == []
    opened.backend.reset(Subscription(topic, "g"), Start.EARLIEST, WAIT)
    assert bell.rang()
    with pytest.raises(ConsumerClosedError):
        consumer.receive(MANY, BYTES, WAIT)
    consumer.close()
    consumer = opened.consumer(topic, bell=bell)
    found = consumer.receive(MANY, BYTES, WAIT)
    consumer.acknowledge(found[0].position, WAIT)
    consumer.close()
    assert values(opened, topic, "g") == []


@pytest.mark.parametrize("fencing", ["deadline", "transactions"])
def test_an_acknowledgement_of_another_worker_during_a_reset_does_not_undo_it(
    another: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch, fencing: str
) -> None:
    here, there = (another(kafka__fencing=fencing) for _ in range(2))
    topic = here.new_topic()
    publish(here, topic, b"1", b"2")
    consumer = there.consumer(topic)
    found = consumer.receive(MANY, BYTES, WAIT)
    looked, reset = threading.Event(), threading.Event()
    commit = KafkaConsumer._commit

    def late(self: KafkaConsumer, progress: CommitProgress, deadline: float) -> None:
        looked.set()
        assert reset.wait(WAIT)
        commit(self, progress, deadline)

    def let_come(*whose: object) -> None:
        reset.set()
        thread.join(WAIT)

    monkeypatch.setattr(KafkaConsumer, "_commit", late)
    ends: list[type[Exception]] = []

    def acknowledge() -> None:
        try:
            consumer.acknowledge(found[-1].position, WAIT)
        except FencedError:
            ends.append(FencedError)

    thread = threading.Thread(target=acknowledge)
    thread.start()
    assert looked.wait(WAIT)
    if fencing == "deadline":
        assert isinstance(here.backend, KafkaBackend)
        monkeypatch.setattr(here.backend._groups, "outlast", let_come)
    here.backend.reset(Subscription(topic, "g"), Start.EARLIEST, WAIT)
    let_come()
    consumer.close()
    assert ends == ([FencedError] if fencing == "transactions" else [])
    assert values(here, topic, "g") == [b"1", b"2"]


def test_what_was_received_before_somebody_elses_tool_moved_the_group_is_not_acknowledged(
    opened: Opened, admin: Any
) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2", b"3")
    consumer = opened.consumer(topic)
    first, *_, last = consumer.receive(MANY, BYTES, WAIT)
    consumer.acknowledge(first.position, WAIT)
    consumer.close()
    moved = OffsetAndMetadata(0, "", -1)
    admin.alter_group_offsets("g", {TopicPartition(topic.local, 0): moved})
    consumer = opened.consumer(topic)
    with pytest.raises(FencedError):
        consumer.acknowledge(last.position, WAIT)  # as a poll does with what `ack=next` left
    found = consumer.receive(MANY, BYTES, WAIT)
    consumer.acknowledge(found[1].position, WAIT)
    consumer.close()
    assert values(opened, topic, "g") == [b"3"]


def test_nothing_is_committed_when_the_node_does_not_confirm(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1")
    consumer = opened.consumer(topic)
    found = consumer.receive(MANY, BYTES, WAIT)
    asked = []

    def confirm(*claim: object) -> None:
        asked.append(claim[0])
        raise FencedError

    with monkeypatch.context() as patched:
        patched.setattr(opened.node, "confirm", confirm)
        with pytest.raises(FencedError):
            consumer.acknowledge(found[0].position, WAIT)
    consumer.close()
    assert asked == [Grant(Subscription(topic, "g"), NOT_PARTITIONED, 1)]
    assert values(opened, topic, "g") == [b"1"]


def test_a_commit_of_another_holder_is_not_undone(
    opened: Opened, another: Callable[..., Opened]
) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2", b"3")
    late, newer = opened.consumer(topic), another().consumer(topic)
    found = late.receive(1, BYTES, WAIT)
    newer.acknowledge(newer.receive(2, BYTES, WAIT)[-1].position, WAIT)
    with pytest.raises(FencedError):
        late.acknowledge(found[0].position, WAIT)
    late.close()
    newer.close()
    assert values(opened, topic, "g") == [b"3"]


def test_kafka_itself_fences_where_it_is_told_to(another: Callable[..., Opened]) -> None:
    old, new = (another(kafka__fencing="transactions") for _ in range(2))
    topic = old.new_topic()
    publish(old, topic, b"1", b"2")
    late = old.consumer(topic)
    found = late.receive(MANY, BYTES, WAIT)
    newer = new.consumer(topic)
    with pytest.raises(FencedError):
        late.acknowledge(found[-1].position, WAIT)
    newer.acknowledge(newer.receive(1, BYTES, WAIT)[0].position, WAIT)
    newer.acknowledge(newer.receive(1, BYTES, WAIT)[0].position, WAIT)
    late.close()
    newer.close()
    assert values(new, topic, "g") == []


def test_a_commit_that_a_killed_worker_left_open_is_not_waited_for(
    another: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch, bell: Bell
) -> None:
    """Kafka itself ends what is open after twenty seconds or more."""
    old, new = (another(kafka__fencing="transactions") for _ in range(2))
    topic = old.new_topic()
    publish(old, topic, b"1", b"2")
    group = Subscription(topic, "g")

    def leave_open() -> None:
        killed = old.consumer(topic)
        first = killed.receive(MANY, BYTES, WAIT)[0]
        with monkeypatch.context() as patched:
            patched.setattr(KafkaTransactions, "end", unavailable)
            with pytest.raises(BackendUnavailableError):
                killed.acknowledge(first.position, WAIT)
        killed.close()

    leave_open()
    new.backend.subscribe(group, Start.EARLIEST, BEFORE_KAFKA)
    (state,) = new.backend.describe_topic(topic, BEFORE_KAFKA).subscriptions
    assert state.backlog == 2
    with closing(
        new.backend.consume(Grant(group, NOT_PARTITIONED, 1), bell, BEFORE_KAFKA)
    ) as next_:
        assert [one.message.value for one in next_.receive(MANY, BYTES, WAIT)] == [b"1", b"2"]
    leave_open()
    new.backend.reset(group, Start.LATEST, BEFORE_KAFKA)
    assert values(new, topic, "g") == []


def test_a_try_that_a_killed_worker_left_open_is_not_waited_for(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = opened.new_topic()
    batch = Batch(topic, NOT_PARTITIONED, [Message(b"1"), Message(b"2")], "key", 0)
    with monkeypatch.context() as patched:
        patched.setattr(KafkaTransactions, "end", unavailable)
        with pytest.raises(OutcomeUnknownError):
            opened.backend.publish(batch, WAIT)
    assert not opened.backend.publish(batch, BEFORE_KAFKA).duplicate
    assert values(opened, topic) == [b"1", b"2"]


def unavailable(*_: Any, **__: Any) -> None:
    raise BackendUnavailableError("killed")


def test_a_reader_stays_warm_and_an_abandoned_poll_comes_again(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2", b"3")
    for _ in range(2):
        consumer = opened.consumer(topic)
        assert len(consumer.receive(2, BYTES, WAIT)) == 2
        consumer.close()
    for wanted in (b"1", b"2", b"3"):
        consumer = opened.consumer(topic)
        (found,) = consumer.receive(1, BYTES, WAIT)
        consumer.acknowledge(found.position, WAIT)
        consumer.close()
        assert found.message.value == wanted
        assert readers(topic) == 1


def test_readers_are_bounded_and_end_when_they_are_idle(another: Callable[..., Opened]) -> None:
    worker = another(kafka__consumers="2", kafka__consumer_idle="300ms")
    topic = worker.new_topic(3)
    first, second = (worker.consumer(topic, partition=p) for p in range(2))
    with pytest.raises(SubscriptionBusyError, match=r"kafka\.consumers"):
        worker.consumer(topic, partition=2)
    first.close()
    third = worker.consumer(topic, partition=2)
    second.close()
    eventually(lambda: readers(topic) == 1)
    third.close()
    eventually(lambda: readers(topic) == 0)
    worker.consumer(topic, partition=2).close()


def test_closing_the_backend_ends_its_threads(another: Callable[..., Opened], bell: Bell) -> None:
    worker = another()
    topic = worker.new_topic()
    consumer = worker.consumer(topic, bell=bell)
    assert consumer.receive(MANY, BYTES, WAIT) == []
    worker.backend.close()
    assert bell.rang()
    assert readers(topic) == 0
    with pytest.raises(BackendUnavailableError):
        consumer.receive(MANY, BYTES, WAIT)
    with pytest.raises(BackendUnavailableError):
        worker.backend.ready(WAIT)


def test_a_partial_failure_tells_how_many_messages_are_stored(opened: Opened, admin: Any) -> None:
    topic = opened.new_name()
    admin.create_topics({topic.local: {"configs": {"max.message.bytes": "20000"}}})
    eventually(lambda: opened.is_there(topic))
    with pytest.raises(PartialPublishError) as refused:
        publish(opened, topic, b"1", b"2", bytes(30_000), b"4")
    assert refused.value.stored == 2
    with pytest.raises(PublishRefusedError):
        publish(opened, topic, bytes(30_000))
    publish(opened, topic, *(bytes(9_000) for _ in range(10)))
    assert [len(value) for value in values(opened, topic)] == [1, 1] + [9_000] * 10


def test_tries_of_one_key_at_once_store_it_once(opened: Opened) -> None:
    topic = opened.new_topic()
    batch = Batch(topic, NOT_PARTITIONED, [Message(b"1"), Message(b"2")], "key", 0)
    fresh: list[bool] = []

    def attempt() -> None:
        try:
            fresh.append(not opened.backend.publish(batch, WAIT).duplicate)
        except (PublishRefusedError, OutcomeUnknownError):
            # Kafka answers UNKNOWN_SERVER_ERROR to a commit while another try fences it.
            fresh.append(False)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert opened.backend.publish(batch, WAIT).stored == 2
    assert sum(fresh) <= 1
    assert values(opened, topic) == [b"1", b"2"]
    names = {s.name for s in opened.backend.describe_topic(topic, WAIT).subscriptions}
    assert names == {"reader"}


def test_greenlets_publish_and_consume(kafka: Kafka) -> None:
    program = Path(__file__).with_name("kafka_greenlets.py")
    done = subprocess.run(
        [sys.executable, program, kafka.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ok"]


def test_replicas_asked_for_are_made_as_far_as_there_are_brokers(on_kafka: Opened) -> None:
    topic = on_kafka.new_name()
    on_kafka.backend.create_topic(TopicInfo(topic, 0, Policies(replicas=3)), WAIT)
    assert on_kafka.backend.describe_topic(topic, WAIT).info.policies.replicas == 1


def test_a_topic_is_compacted_by_kafka(on_kafka: Opened) -> None:
    topic, plain = on_kafka.new_name(), on_kafka.new_name()
    policies = Policies(cleanup_policy="compact")
    on_kafka.backend.create_topic(TopicInfo(topic, 0, policies), WAIT)
    on_kafka.backend.create_topic(TopicInfo(plain, 0), WAIT)
    found = [
        on_kafka.backend.describe_topic(name, WAIT).info.policies.cleanup_policy
        for name in (topic, plain)
    ]
    assert found == ["compact", None]


def test_a_message_of_an_added_partition_is_acknowledged_beside_a_first_commit(
    another: Callable[..., Opened],
    admin: KafkaAdminClient,
    monkeypatch: pytest.MonkeyPatch,
    bell: Bell,
) -> None:
    here, there = (another(kafka__fencing="transactions") for _ in range(2))
    topic = here.new_topic(2)
    group = Subscription(topic, "g")
    here.backend.subscribe(group, Start.EARLIEST, WAIT)
    admin.create_partitions({topic.local: 3})
    eventually(lambda: {w.backend.partitions(topic, WAIT) for w in (here, there)} == {3})
    added = Batch(topic, 2, [Message(b"1"), Message(b"2"), Message(b"3")])
    here.backend.publish(added, WAIT)
    end, ends, goes_on = KafkaTransactions.end, threading.Event(), threading.Event()

    def late(*arguments: Any, **named: Any) -> None:
        ends.set()
        assert goes_on.wait(WAIT)
        end(*arguments, **named)

    with closing(there.backend.consume(Grant(group, 2, 1), bell, WAIT)) as consumer:
        first, _, last = consumer.receive(MANY, BYTES, WAIT)
        with monkeypatch.context() as patched, ThreadPoolExecutor(2) as pool:
            patched.setattr(KafkaTransactions, "end", late)
            commit = pool.submit(consumer.acknowledge, first.position, WAIT)
            assert ends.wait(WAIT)
            positions = [last.position]
            beside = pool.submit(here.backend.acknowledge, group, positions, False, WAIT)
            time.sleep(1.0)
            goes_on.set()
            beside.result(WAIT)
            commit.result(WAIT)
    with closing(here.backend.consume(Grant(group, 2, 2), bell, WAIT)) as consumer:
        found = consumer.receive(MANY, BYTES, WAIT)
        assert [one.message.value for one in found] == [b"2"]
