"""What the Kafka backend adds where single messages are acknowledged, and where schemas are kept:
turns between workers, notes with a bound, a log that decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from router.backends import Start, kafka
from router.backends.kafka.consumer import KafkaConsumer
from router.backends.kafka.group_progress import CommitProgress
from router.errors import (
    FencedError,
    IncompatibleSchemaError,
    NotSupportedError,
    SubscriptionBusyError,
)
from router.model import NOT_PARTITIONED, Position, Schema, SchemaType, Subscription
from router.node import Node, client
from tests.contract.conftest import WAIT, Bell, Opened, settings_for, stop_broker
from tests.contract.on_kafka import BYTES, eventually, publish, readers, values
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.contract, pytest.mark.java, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def opened(on_kafka: Opened) -> Opened:
    return on_kafka


def beside(opened: Opened, server: Kafka, node: Node) -> Opened:
    """Open a backend of another worker, of this node."""
    backend = kafka.open_backend(f"kafka://{server.address}", opened.settings, node)
    return Opened("kafka", backend, node, opened.settings)


@pytest.fixture
def kafka_server(request: pytest.FixtureRequest) -> Kafka:
    server: Kafka = request.getfixturevalue("kafka")
    return server


def subscribed(opened: Opened, *messages: bytes) -> Subscription:
    """Publish to a new topic that a group reads from its beginning."""
    topic = opened.new_topic()
    publish(opened, topic, *messages)
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, Start.EARLIEST, WAIT)
    return group


def acknowledge(
    opened: Opened, group: Subscription, offsets: Sequence[int], *, cumulative: bool = False
) -> None:
    positions = [Position(0, offset) for offset in offsets]
    opened.backend.acknowledge(group, positions, cumulative, WAIT)


def test_what_was_acknowledged_is_known_to_every_worker(
    opened: Opened, another: Callable[..., Opened]
) -> None:
    group = subscribed(opened, b"0", b"1", b"2", b"3")
    acknowledge(opened, group, [1, 3])
    elsewhere = another()
    assert values(elsewhere, group.topic, "g") == [b"0", b"2"]
    acknowledge(elsewhere, group, [0])
    (state,) = opened.backend.cursors(group, WAIT)
    assert state.mark_delete == Position(0, 1)
    assert state.acknowledged == ((Position(0, 3), Position(0, 3)),)
    (described,) = opened.backend.describe_topic(group.topic, WAIT).subscriptions
    assert described.backlog == state.backlog == 1


def test_messages_that_readers_do_not_see_yet_are_acknowledged(
    opened: Opened, kafka_server: Kafka
) -> None:
    """Those of a transaction whose marker is still to be written, as of a copy's last batch."""
    group = subscribed(opened, b"0")
    name, address = group.topic.local, kafka_server.address
    with KafkaProducer(bootstrap_servers=address, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"1", partition=0).get(WAIT)
        acknowledge(opened, group, [1], cumulative=True)
        (state,) = opened.backend.cursors(group, WAIT)
        producer.abort_transaction()
    assert state.mark_delete == Position(0, 1)


def test_more_gaps_than_a_commit_keeps_are_refused_and_change_nothing(opened: Opened) -> None:
    group = subscribed(opened, *(b"%d" % number for number in range(4_000)))
    acknowledge(opened, group, range(2, 2_002, 2))
    before = opened.backend.cursors(group, WAIT)
    assert before[0].backlog == 3_000
    with pytest.raises(NotSupportedError):
        acknowledge(opened, group, range(2_002, 4_000, 2))
    assert opened.backend.cursors(group, WAIT) == before
    acknowledge(opened, group, [1_999], cumulative=True)
    acknowledge(opened, group, range(2_002, 4_000, 2))
    assert len(values(opened, group.topic, "g")) == 1_000


def test_a_reset_forgets_what_was_acknowledged_apart(opened: Opened) -> None:
    group = subscribed(opened, b"0", b"1", b"2")
    acknowledge(opened, group, [1])
    opened.backend.reset(group, Start.EARLIEST, WAIT)
    assert values(opened, group.topic, "g") == [b"0", b"1", b"2"]


def test_workers_that_acknowledge_at_once_lose_nothing(opened: Opened, kafka_server: Kafka) -> None:
    count = 48
    group = subscribed(opened, *(b"%d" % number for number in range(count)))
    acknowledge(opened, group, [count - 1])  # from now on commits are made in turns
    workers = [opened, *(beside(opened, kafka_server, opened.node) for _ in range(2))]
    consumer = opened.consumer(group.topic)
    received = consumer.receive(8, BYTES, WAIT)

    def poll() -> None:
        for stored in received:
            consumer.acknowledge(stored.position, WAIT)

    def single(which: int) -> None:
        for offset in range(8 + which, 24 + which, 3):
            acknowledge(workers[which], group, [offset])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(poll), *(pool.submit(single, which) for which in range(3))]:
            done.result()
    consumer.close()
    assert [int(value) for value in values(opened, group.topic, "g")] == list(range(26, count - 1))
    for worker in workers[1:]:
        worker.backend.close()


def test_turns_are_dealt_by_the_nodes_broker(
    opened: Opened, kafka_server: Kafka, tmp_path: Path
) -> None:
    group = subscribed(opened, *(b"%d" % number for number in range(9)))
    with ExitStack() as stack:
        stack.callback(stop_broker, tmp_path)
        nodes = [client.open_node(settings_for(tmp_path)) for _ in range(2)]
        workers = [beside(opened, kafka_server, node) for node in nodes]
        for worker in workers:
            stack.callback(worker.node.close)
            stack.callback(worker.backend.close)
        with ThreadPoolExecutor(4) as pool:
            turns = [
                pool.submit(acknowledge, workers[offset % 2], group, [offset])
                for offset in range(1, 8)
            ]
            for turn in turns:
                turn.result()
    assert values(opened, group.topic, "g") == [b"0", b"8"]


@pytest.mark.parametrize("fencing", ["deadline", "transactions"])
def test_the_first_single_acknowledgement_survives_a_poll_that_looked_before(
    another: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch, fencing: str
) -> None:
    here, there = (another(kafka__fencing=fencing) for _ in range(2))
    group = subscribed(here, b"0", b"1", b"2", b"3")
    consumer = there.consumer(group.topic)
    found = consumer.receive(1, BYTES, WAIT)
    looked, told = threading.Event(), threading.Event()
    backend = here.backend
    assert isinstance(backend, kafka.KafkaBackend)
    commit, outlast = KafkaConsumer._commit, backend._groups.outlast
    refused: list[bool] = []

    def late(self: KafkaConsumer, progress: CommitProgress, deadline: float) -> None:
        looked.set()
        assert told.wait(WAIT)
        commit(self, progress, deadline)

    def poll() -> None:
        try:
            consumer.acknowledge(found[0].position, WAIT)
        except FencedError:
            refused.append(True)

    def let_come(*whose: Any) -> None:
        # Kafka fences those who looked before, or they are over: whichever is first.
        if fencing == "transactions":
            outlast(*whose)
        told.set()
        thread.join(WAIT)

    monkeypatch.setattr(KafkaConsumer, "_commit", late)
    monkeypatch.setattr(backend._groups, "outlast", let_come)
    thread = threading.Thread(target=poll)
    thread.start()
    assert looked.wait(WAIT)
    acknowledge(here, group, [2])
    consumer.close()
    assert refused == [True] * (fencing == "transactions")
    assert values(here, group.topic, "g") == [b"0", b"1", b"3"][not refused :]


def test_a_reader_counts_among_the_consumers_and_ends_with_its_thread(
    another: Callable[..., Opened],
) -> None:
    worker = another(kafka__consumers="1")
    topic = worker.new_topic()
    reader = worker.backend.read(topic, NOT_PARTITIONED, Start.EARLIEST, Bell(), WAIT)
    with pytest.raises(SubscriptionBusyError):
        worker.backend.read(topic, NOT_PARTITIONED, Start.EARLIEST, Bell(), WAIT)
    assert readers(topic) == 1
    reader.close()
    eventually(lambda: not readers(topic))
    worker.backend.read(topic, NOT_PARTITIONED, Start.EARLIEST, Bell(), WAIT).close()


def record(*fields: str) -> Schema:
    named = ", ".join(f'{{"name": "{field}", "type": "int", "default": 0}}' for field in fields)
    data = f'{{"type": "record", "name": "R", "fields": [{named}]}}'
    return Schema(SchemaType.AVRO, data.encode())


def test_schemas_that_come_at_once_get_versions_of_their_own(
    opened: Opened, another: Callable[..., Opened]
) -> None:
    topic = opened.new_topic()
    workers = [another() for _ in range(3)]
    given = [record("a", f"b{number}") for number in range(4)]

    def put(worker: Opened, schemas: Sequence[Schema]) -> list[bytes]:
        return [worker.backend.schemas.put(topic, schema, WAIT) for schema in schemas]

    orders = [given, given[::-1], given[2:] + given[:2]]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(put, workers, orders))
    versions = dict(zip((schema.data for schema in given), found[0], strict=True))
    for order, told in zip(orders, found, strict=True):
        assert told == [versions[schema.data] for schema in order]
    assert sorted(versions.values()) == [number.to_bytes(8) for number in range(4)]
    for worker in [opened, *workers]:
        for data, version in versions.items():
            assert worker.backend.schemas.get(topic, version, WAIT).data == data


def test_of_two_schemas_that_do_not_go_together_the_first_in_the_log_stays(
    opened: Opened, another: Callable[..., Opened]
) -> None:
    topic = opened.new_topic()
    kinds = [SchemaType.STRING, SchemaType.INT32]
    workers = [another(), another()]

    def put(worker: Opened, kind: SchemaType) -> SchemaType | None:
        try:
            assert worker.backend.schemas.put(topic, Schema(kind), WAIT) == bytes(8)
        except IncompatibleSchemaError:
            return None
        return kind

    with ThreadPoolExecutor(2) as pool:
        kept = [kind for kind in pool.map(put, workers, kinds) if kind is not None]
    assert kept == [opened.backend.schemas.get(topic, None, WAIT).type]
