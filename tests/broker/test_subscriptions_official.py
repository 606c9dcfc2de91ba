"""Subscriptions of every kind, as the official Pulsar client sees them on a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pulsar
import pytest

from router.wire.node import node_pb2 as npb
from tests.broker.conftest import official_client
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until

SOON = 10_000
NOTHING = 300
SETTLED = 3_000
"""After so long a consumer has what it gets, where a test cannot know how much that is."""
KEY_SHARED = pulsar.ConsumerType.KeyShared
SHARED = pulsar.ConsumerType.Shared
AUTO_SPLIT = pulsar.KeySharedMode.AutoSplit
STICKY = pulsar.KeySharedMode.Sticky
AT_ONCE = {"negative_ack_redelivery_delay_ms": 50}


def now() -> float:
    return time.time()  # noqa: TID251 - deliver_at is a time of day


def send(client: pulsar.Client, topic: str, values: list[str], **fields: object) -> None:
    """Send values one by one; of `k:v` the part before the colon is the key."""
    producer = client.create_producer(topic, batching_enabled=False)
    for value in values:
        key, colon, _ = value.partition(":")
        producer.send(value.encode(), partition_key=key if colon else None, **fields)
    producer.close()


def taken(consumer: pulsar.Consumer, count: int = 1_000, wait: int = NOTHING) -> list[str]:
    """What a consumer gets until nothing comes any more, all of it acknowledged."""
    return values_of(held(consumer, count, wait, ack=True))


def values_of(messages: Sequence[pulsar.Message]) -> list[str]:
    return [message.data().decode() for message in messages]


def held(
    consumer: pulsar.Consumer, count: int = 1_000, wait: int = NOTHING, *, ack: bool = False
) -> list[pulsar.Message]:
    found: list[pulsar.Message] = []
    while len(found) < count:
        try:
            message = consumer.receive(SOON if count < 1_000 else wait)
        except pulsar.Timeout:
            break
        found.append(message)
        if ack:
            consumer.acknowledge(message)
    return found


def shared_out(consumers: Sequence[pulsar.Consumer], count: int) -> list[list[pulsar.Message]]:
    """What each consumer gets until so many messages have come to all; none is acknowledged."""
    found: list[list[pulsar.Message]] = [[] for _ in consumers]

    def take() -> bool:
        for part, consumer in zip(found, consumers, strict=True):
            with suppress(pulsar.Timeout):
                while True:
                    part.append(consumer.receive(50))
        return sum(map(len, found)) >= count

    wait_until(take)
    return found


def of_key(values: list[str], key: str) -> list[str]:
    return [value for value in values if value.startswith(f"{key}:")]


def test_each_key_has_one_consumer_and_its_order_when_key_shared(
    client: pulsar.Client, topic: str
) -> None:
    first, second = (
        client.subscribe(topic, "s", KEY_SHARED, consumer_name=name) for name in ("one", "two")
    )
    keys = [f"key{n}" for n in range(20)]
    values = [f"{key}:{n}" for n in range(5) for key in keys]
    send(client, topic, values)
    got = [values_of(part) for part in shared_out((first, second), len(values))]
    assert all(got)
    assert sorted(got[0] + got[1]) == sorted(values)
    for key in keys:
        parts = [of_key(part, key) for part in got if of_key(part, key)]
        assert parts == [[f"{key}:{n}" for n in range(5)]]


def test_key_that_changes_hands_waits_until_its_messages_are_acknowledged(
    client: pulsar.Client, topic: str
) -> None:
    first = client.subscribe(topic, "s", KEY_SHARED, consumer_name="one")
    keys = [f"key{n}" for n in range(20)]
    send(client, topic, [f"{key}:0" for key in keys])
    before = held(first, 20)
    second = client.subscribe(topic, "s", KEY_SHARED, consumer_name="two")
    send(client, topic, [f"{key}:1" for key in keys])
    stayed = taken(first, wait=SETTLED)
    assert 0 < len(stayed) < 20
    assert taken(second) == []
    for message in before:
        first.acknowledge(message)
    moved = taken(second, 20 - len(stayed))
    assert sorted(stayed + moved) == sorted(f"{key}:1" for key in keys)


def test_messages_of_a_key_go_to_the_other_in_order_when_its_consumer_leaves(
    client: pulsar.Client, topic: str
) -> None:
    first, second = (
        client.subscribe(topic, "s", KEY_SHARED, consumer_name=name) for name in ("one", "two")
    )
    keys = [f"key{n}" for n in range(10)]
    values = [f"{key}:{n}" for n in range(3) for key in keys]
    send(client, topic, values)
    _, of_second = shared_out((first, second), len(values))
    for message in of_second:
        second.acknowledge(message)
    kept = values_of(of_second)
    first.close()
    rest = taken(second, len(values) - len(kept))
    assert rest == [value for value in values if value not in kept]


def test_sticky_ranges_are_kept_and_must_not_overlap(client: pulsar.Client, topic: str) -> None:
    def consumer(*ranges: tuple[int, int]) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(STICKY, False, list(ranges))
        return client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=policy)

    low = consumer((0, 32_767))
    with pytest.raises(pulsar.ConsumerAssignError):
        consumer((32_767, 40_000))
    # Nobody has the upper half yet: what falls there waits.
    values = [f"key{n}:{n}" for n in range(30)]
    send(client, topic, values)
    got = taken(low, wait=SETTLED)
    assert 0 < len(got) < 30
    high = consumer((32_768, 65_535))
    assert taken(high, 30 - len(got)) == [value for value in values if value not in got]


def test_key_shared_consumers_of_another_mode_are_refused(
    client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "s", KEY_SHARED)
    for mode, loose, ranges in [(STICKY, False, [(0, 1)]), (AUTO_SPLIT, True, None)]:
        policy = pulsar.ConsumerKeySharedPolicy(mode, loose, ranges)
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=policy)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_refused_messages_end_in_the_dead_letter_topic(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "init-sub")
    consumer = client.subscribe(topic, "s", kind, dead_letter_policy=policy, **AT_ONCE)
    send(client, topic, ["k:0"])
    for count in range(3):
        message = consumer.receive(SOON)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    dead = client.subscribe(f"{topic}-dead", "init-sub")
    assert taken(dead, 1) == ["k:0"]
    assert taken(consumer) == []


def test_messages_come_again_counted_when_the_ack_timeout_passes(
    client: pulsar.Client, topic: str
) -> None:
    # Ten seconds are the least that the client takes.
    consumer = client.subscribe(topic, "s", SHARED, unacked_messages_timeout_ms=10_000)
    send(client, topic, ["v"])
    assert consumer.receive(SOON).redelivery_count() == 0
    assert consumer.receive(25_000).redelivery_count() == 1


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_delayed_messages_come_at_their_time_and_hold_up_no_others(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind)
    due = now() + 5
    send(client, topic, ["late"], deliver_at=round(due * 1000))
    send(client, topic, ["next"])
    assert taken(consumer, 1) == ["next"]
    assert now() < due
    assert taken(consumer, 1) == ["late"]
    assert now() >= due - 0.001


def test_delayed_messages_come_at_once_when_exclusive(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send(client, topic, ["late"], deliver_at=round((now() + 60) * 1000))
    assert taken(consumer, 1) == ["late"]


@pytest.fixture
def restartable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("restart") / "data", free_port())
    process.start()
    yield process
    process.stop()


@pytest.mark.slow
def test_delayed_messages_stay_delayed_when_the_broker_was_killed(
    restartable: BrokerProcess,
) -> None:
    client = official_client(restartable.url)
    consumer = client.subscribe("later", "s", SHARED)
    producer = client.create_producer("later", batching_enabled=False)
    producer.send(b"late", deliver_at=round((now() + 600) * 1000))
    restartable.kill()
    restartable.start()
    producer.send(b"next")
    assert taken(consumer, 1) == ["next"]
    assert taken(consumer) == []
    consumer.close()
    # It is there: one who waits for no time gets it.
    assert taken(client.subscribe("later", "s"), 1) == ["late"]
    client.close()


def test_rest_of_a_batch_comes_again_to_shared_consumers_when_it_is_refused(
    client: pulsar.Client, raw: RawClient, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True, **AT_ONCE)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=1_000
    )
    for n in range(4):
        producer.send_async(b"m%d" % n, None)
    producer.flush()
    messages = held(consumer, 4)
    consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[2])
    # Acknowledgements are gathered by the client, and must have arrived first.
    asked = npb.DescribeCursors(topic=topic, subscription="s")

    def left() -> list[list[int]]:
        (cursor,) = raw.ask("ADMIN", "ADMIN_RESPONSE", describe_cursors=asked).cursors
        return [list(partial.ack_set) for partial in cursor.partial]

    wait_until(lambda: left() == [[0b1001]])
    # One of them: a second refusal could be sent apart from the first, and ask for both once more.
    consumer.negative_acknowledge(messages[0])
    again = held(consumer, 2)
    assert [message.data() for message in again] == [b"m0", b"m3"]
    assert [message.redelivery_count() for message in again] == [1, 1]
    assert taken(consumer) == []


def test_chunks_of_a_message_go_to_one_shared_consumer(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", SHARED) for _ in range(2)]
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    value = bytes(range(256)) * (5 << 13)
    for _ in range(3):
        producer.send(value)
    found = [message.data() for part in shared_out(consumers, 3) for message in part]
    assert found == [value] * 3


def test_shared_consumers_take_turns(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", SHARED) for _ in range(3)]
    send(client, topic, [str(n) for n in range(30)])
    got = [values_of(part) for part in shared_out(consumers, 30)]
    assert [len(part) for part in got] == [10, 10, 10]
    assert sorted(int(value) for part in got for value in part) == list(range(30))


def test_shared_subscription_goes_back_to_a_message_when_it_seeks(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", SHARED, start_message_id_inclusive=True)
    send(client, topic, ["0", "1", "2"])
    messages = held(consumer, 3, ack=True)
    consumer.seek(messages[1].message_id())
    assert taken(consumer, 2, SOON) == ["1", "2"]


def test_seek_into_a_batch_gives_what_is_left_of_it(
    client: pulsar.Client, topic: str, raw: RawClient
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for value in (b"0", b"1", b"2"):
        producer.send_async(value, lambda *_: None)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    place = reader.read_next(SOON).message_id()
    fields = {"topic": topic, "subscription": "s", "subType": 1, "consumer_id": 7}
    raw.ask("SUBSCRIBE", "SUCCESS", **fields)
    # The official Java client names what is left of a batch.
    to = {"ledgerId": place.ledger_id(), "entryId": place.entry_id(), "ack_set": [0b110]}
    raw.send("SEEK", consumer_id=7, request_id=99, message_id=to)
    raw.expect("CLOSE_CONSUMER")
    raw.expect("SUCCESS")
    raw.ask("SUBSCRIBE", "SUCCESS", **fields)
    raw.send("FLOW", consumer_id=7, messagePermits=10)
    assert list(raw.expect("MESSAGE").ack_set) == [0b110]
    assert raw.ask("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=7).msgBacklog == 2


@pytest.mark.parametrize(
    ("kind", "refused"),
    [(0, False), (1, True), (2, False), (3, True)],
    ids=["exclusive", "shared", "failover", "key-shared"],
)
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_compacted_topic_is_read_in_order_only(
    topic: str, raw: RawClient, kind: int, refused: bool, domain: str
) -> None:
    name = f"{domain}{topic.removeprefix('persistent')}"
    fields = {"topic": name, "subscription": "s", "subType": kind, "consumer_id": 7}
    if refused or domain == "non-persistent":
        answer = raw.ask("SUBSCRIBE", "ERROR", **fields, read_compacted=True)
        assert "readCompacted only" in answer.message
    else:
        raw.ask("SUBSCRIBE", "SUCCESS", **fields, read_compacted=True)


def test_stats_of_a_consumer_are_true(
    client: pulsar.Client, shared_broker: BrokerProcess, topic: str, raw: RawClient
) -> None:
    raw.ask(
        "SUBSCRIBE", "SUCCESS", topic=topic, subscription="s", subType=1, consumer_id=7,
        consumer_name="me",
    )  # fmt: skip
    raw.send("FLOW", consumer_id=7, messagePermits=10)
    send(client, topic, ["0", "1", "2"])
    for _ in range(3):
        raw.expect("MESSAGE")
    stats = raw.ask("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=7)
    assert (stats.consumerName, stats.type) == ("me", "Shared")
    assert (stats.availablePermits, stats.unackedMessages, stats.msgBacklog) == (7, 3, 3)
    assert stats.msgRateOut > 0
    assert stats.msgThroughputOut > 0
    assert stats.address.startswith("/127.0.0.1:")
    assert stats.connectedSince.endswith("Z")


def test_stats_of_an_unknown_consumer_are_an_error_and_no_more(raw: RawClient) -> None:
    answer = raw.ask("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=99)
    assert answer.HasField("error_code")
    raw.send("PING")
    raw.expect("PONG")


def test_backlog_waits_for_nobody_when_a_consumer_of_some_keys_is_slow(
    client: pulsar.Client, topic: str
) -> None:
    slow = client.subscribe(topic, "s", KEY_SHARED, consumer_name="slow", receiver_queue_size=1)
    quick = client.subscribe(topic, "s", KEY_SHARED, consumer_name="quick")
    values = [f"key{n % 40}:{n}" for n in range(400)]
    send(client, topic, values)
    got = taken(quick, wait=SETTLED)
    mine = {value.partition(":")[0] for value in got}
    assert got == [value for value in values if value.partition(":")[0] in mine]
    rest = taken(slow, 400 - len(got))
    assert len(got) + len(rest) == 400
