"""What every backend promises of cursors, readers and all that a message carries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.backends import Batch, Reader, Start
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    FencedError,
    NotSupportedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    CursorState,
    Grant,
    Message,
    Position,
    Stored,
    Subscription,
    TopicName,
)
from tests.contract.conftest import WAIT, Bell, Opened

pytestmark = pytest.mark.contract

MANY = 100_000
BYTES = 1 << 30
FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def publish(opened: Opened, topic: TopicName, *values: bytes, partition: int = -1) -> Position:
    batch = Batch(topic, partition, [Message(value) for value in values])
    return opened.backend.publish(batch, WAIT).position


def fill(opened: Opened, topic: TopicName, sizes: Sequence[int]) -> list[Stored]:
    """Publish batches of these sizes; return all messages as they are stored."""
    numbers = iter(range(MANY))
    for size in sizes:
        publish(opened, topic, *(b"%d" % next(numbers) for _ in range(size)))
    return drained(opened, topic, Start.EARLIEST)


def drained(
    opened: Opened, topic: TopicName, start: Start | int | Position, partition: int = -1
) -> list[Stored]:
    reader = opened.backend.read(topic, partition, start, Bell(), WAIT)
    found = all_of(reader)
    reader.close()
    return found


def all_of(reader: Reader) -> list[Stored]:
    found: list[Stored] = []
    while some := reader.receive(MANY, BYTES, WAIT):
        found += some
    return found


def left(opened: Opened, group: Subscription, partition: int = -1) -> list[bytes]:
    """Return what a group has not acknowledged."""
    consumer = opened.backend.consume(Grant(group, partition, 1), Bell(), WAIT)
    found: list[bytes] = []
    while some := consumer.receive(MANY, BYTES, WAIT):
        found += values(some)
    consumer.close()
    return found


def values(received: Iterable[Stored]) -> list[bytes]:
    return [stored.message.value for stored in received]


def covers(state: CursorState, position: Position) -> bool:
    """Say whether a cursor tells that a message is acknowledged."""

    def before(a: Position, b: Position) -> bool:
        """Positions without an index are their whole entry."""
        if (a.ledger, a.entry) != (b.ledger, b.entry):
            return (a.ledger, a.entry) < (b.ledger, b.entry)
        return -1 in {a.batch_index, b.batch_index} or a.batch_index <= b.batch_index

    if state.mark_delete is not None and before(position, state.mark_delete):
        return True
    return any(before(a, position) and before(position, b) for a, b in state.acknowledged)


@FEW
@given(sizes=SIZES, data=st.data())
def test_acknowledging_in_any_order_leaves_the_rest(
    opened: Opened, sizes: list[int], data: st.DataObject
) -> None:
    topic = opened.new_topic()
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, Start.EARLIEST, WAIT)
    if opened.kind == "apache":
        sizes = [1 for _ in sizes]  # parts of a batch only with a setting of the broker
    stored = fill(opened, topic, sizes)
    done: set[int] = set()
    places = st.lists(st.integers(0, len(stored) - 1), max_size=4)
    for some, cumulative in data.draw(st.lists(st.tuples(places, st.booleans()), max_size=4)):
        positions = [stored[place].position for place in some]
        opened.backend.acknowledge(group, positions, cumulative, WAIT)
        done.update(*(range(place + 1) for place in some) if cumulative else [some])
        (state,) = opened.backend.cursors(group, WAIT)
        assert {i for i, one in enumerate(stored) if covers(state, one.position)} == done
        assert state.backlog == len(stored) - len(done)
    rest = [one.message.value for place, one in enumerate(stored) if place not in done]
    assert left(opened, group) == rest


def test_acknowledging_is_taken_while_a_consumer_reads_and_twice(opened: Opened) -> None:
    topic = opened.new_topic()
    stored = fill(opened, topic, [1] * 4)
    group = Subscription(topic, "g")
    consumer = opened.consumer(topic)
    received = consumer.receive(1, BYTES, WAIT)
    if opened.kind == "apache":
        # It lets nobody acknowledge beside an exclusive consumer: there it waits for its end.
        with pytest.raises(SubscriptionBusyError):
            opened.backend.acknowledge(group, [stored[2].position], False, 2.0)
        consumer.acknowledge(received[0].position, WAIT)
        consumer.close()
    for _ in range(2):
        opened.backend.acknowledge(group, [stored[2].position], False, WAIT)
    if opened.kind != "apache":
        consumer.acknowledge(received[0].position, WAIT)
        consumer.close()
    assert left(opened, group) == [b"1", b"3"]
    opened.backend.acknowledge(group, [stored[1].position], True, WAIT)
    assert left(opened, group) == [b"3"]


def test_a_poll_steps_over_what_was_acknowledged_and_keeps_what_is_above(opened: Opened) -> None:
    topic = opened.new_topic()
    stored = fill(opened, topic, [1] * 6)
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, Start.EARLIEST, WAIT)
    opened.backend.acknowledge(group, [stored[1].position, stored[4].position], False, WAIT)
    consumer = opened.consumer(topic)
    received = consumer.receive(2, BYTES, WAIT)
    assert values(received) == [b"0", b"2"]
    consumer.acknowledge(received[-1].position, WAIT)
    consumer.close()
    assert left(opened, group) == [b"3", b"5"]


def test_positions_of_several_partitions_are_acknowledged_together(opened: Opened) -> None:
    topic = opened.new_topic(partitions=2)
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, Start.EARLIEST, WAIT)
    for partition in (0, 1):
        for value in (b"a", b"b"):
            publish(opened, topic, value, partition=partition)
    first, second = (drained(opened, topic, Start.EARLIEST, p) for p in (0, 1))
    opened.backend.acknowledge(group, [first[0].position, second[1].position], False, WAIT)
    assert [left(opened, group, partition) for partition in (0, 1)] == [[b"b"], [b"a"]]
    states = opened.backend.cursors(group, WAIT)
    assert [(state.partition, state.backlog) for state in states] == [(0, 1), (1, 1)]


def test_positions_that_the_topic_never_had_are_refused(opened: Opened) -> None:
    topic, other = opened.new_topic(), opened.new_topic()
    (stored,) = fill(opened, topic, [1])
    *_, foreign = fill(opened, other, [1, 1])
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, Start.EARLIEST, WAIT)
    at = stored.position
    elsewhere = [Position(at.ledger, at.entry + 7), Position(at.ledger + 9, 0), foreign.position]
    for position, cumulative in product(elsewhere, (False, True)):
        with pytest.raises(BadRequestError):
            opened.backend.acknowledge(group, [at, position], cumulative, WAIT)
    publish(opened, topic, b"next")
    assert left(opened, group) == [b"0", b"next"]


def test_cursors_of_nothing_are_refused(opened: Opened) -> None:
    topic = opened.new_topic()
    for group, error in (
        (Subscription(opened.new_name(), "g"), TopicNotFoundError),
        (Subscription(topic, "g"), SubscriptionNotFoundError),
    ):
        with pytest.raises(error):
            opened.backend.cursors(group, WAIT)
        with pytest.raises(error):
            opened.backend.acknowledge(group, [Position(0, 0)], False, WAIT)


def test_what_was_received_before_a_reset_is_not_acknowledged(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1")
    consumer = opened.consumer(topic)
    (stored,) = consumer.receive(1, BYTES, WAIT)
    consumer.close()
    group = Subscription(topic, "g")
    opened.backend.reset(group, Start.EARLIEST, WAIT)
    if opened.kind == "apache":
        # It tells no epochs: what is acknowledged after a reset is acknowledged.
        opened.backend.acknowledge(group, [stored.position], True, WAIT)
        assert left(opened, group) == []
        return
    with pytest.raises(FencedError):
        opened.backend.acknowledge(group, [stored.position], True, WAIT)
    assert left(opened, group) == [b"1"]


@FEW
@given(sizes=SIZES, data=st.data())
def test_a_reader_gives_all_from_its_position_on(
    opened: Opened, sizes: list[int], data: st.DataObject
) -> None:
    topic = opened.new_topic()
    stored = fill(opened, topic, sizes)
    place = data.draw(st.integers(0, len(stored) - 1))
    reader = opened.backend.read(topic, NOT_PARTITIONED, stored[place].position, Bell(), WAIT)
    found = all_of(reader)
    assert [(s.position, s.message) for s in found] == [
        (s.position, s.message) for s in stored[place:]
    ]
    publish(opened, topic, b"news")
    assert values(all_of(reader)) == [b"news"]
    reader.close()


def test_a_reader_begins_at_an_end_or_a_time(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"0")
    (first,) = drained(opened, topic, 0)
    while True:
        publish(opened, topic, b"1")
        stored = drained(opened, topic, Start.EARLIEST)
        if stored[-1].publish_time > first.publish_time:
            break
    later = [one for one in stored if one.publish_time >= stored[-1].publish_time]
    assert values(drained(opened, topic, stored[-1].publish_time)) == values(later)
    assert drained(opened, topic, Start.LATEST) == []
    assert drained(opened, topic, stored[-1].publish_time + 3_600_000) == []


def test_a_reader_behind_the_end_waits_for_its_position(opened: Opened) -> None:
    topic = opened.new_topic()
    (stored,) = fill(opened, topic, [1])
    at = stored.position
    ahead = Position(at.ledger, at.entry + 2)
    reader = opened.backend.read(topic, NOT_PARTITIONED, ahead, Bell(), WAIT)
    assert reader.receive(MANY, BYTES, WAIT) == []
    publish(opened, topic, b"1")
    assert reader.receive(MANY, BYTES, WAIT) == []
    for value in (b"2", b"3"):
        publish(opened, topic, value)
    assert values(all_of(reader)) == [b"2", b"3"]
    reader.close()


def test_an_arrival_wakes_a_readers_mailbox(opened: Opened, bell: Bell) -> None:
    topic = opened.new_topic()
    reader = opened.backend.read(topic, NOT_PARTITIONED, Start.LATEST, bell, WAIT)
    for number in range(10):
        assert reader.receive(1, BYTES, WAIT) == []
        publish(opened, topic, b"%d" % number)
        assert bell.rang()
        assert values(reader.receive(1, BYTES, WAIT)) == [b"%d" % number]
    reader.close()


def test_readers_read_by_themselves_and_leave_nothing(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2")
    publish(opened, topic, b"3")
    readers = [
        opened.backend.read(topic, NOT_PARTITIONED, Start.EARLIEST, Bell(), WAIT) for _ in range(3)
    ]
    for limit, reader in enumerate(readers, 1):
        assert len(reader.receive(limit, BYTES, WAIT)) == limit
    for reader in readers:
        reader.close()
        reader.close()
        with pytest.raises(BackendUnavailableError):
            reader.receive(1, BYTES, WAIT)
    assert opened.backend.describe_topic(topic, WAIT).subscriptions == ()


def test_what_a_reader_received_can_be_acknowledged(opened: Opened) -> None:
    topic = opened.new_topic()
    stored = fill(opened, topic, [1, 1])
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, Start.EARLIEST, WAIT)
    opened.backend.acknowledge(group, [stored[0].position], True, WAIT)
    assert left(opened, group) == [b"1"]


def test_readers_of_nothing_are_refused(opened: Opened) -> None:
    topic = opened.new_topic()
    with pytest.raises(TopicNotFoundError):
        opened.backend.read(opened.new_name(), NOT_PARTITIONED, Start.EARLIEST, Bell(), WAIT)
    for nowhere in (Position(0, 0, 3), Position(-1, 0), Position(0, -2)):
        with pytest.raises(BadRequestError):
            opened.backend.read(topic, NOT_PARTITIONED, nowhere, Bell(), WAIT)


def test_deleting_a_topic_ends_its_readers(opened: Opened, bell: Bell) -> None:
    topic = opened.new_topic()
    reader = opened.backend.read(topic, NOT_PARTITIONED, Start.EARLIEST, bell, WAIT)
    assert reader.receive(MANY, BYTES, WAIT) == []
    opened.backend.delete_topic(topic, WAIT)
    assert bell.rang()
    with pytest.raises((BackendUnavailableError, TopicNotFoundError)):
        reader.receive(MANY, BYTES, WAIT)
    reader.close()


@FEW
@given(
    data=st.lists(
        st.tuples(
            st.none() | st.just(1_000),
            st.none() | st.integers(0, 2**62),
            st.sampled_from([b"", bytes(8), bytes(7) + b"\1"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_messages_carry_all_that_they_were_given(
    opened: Opened, data: list[tuple[int | None, int | None, bytes, bool]]
) -> None:
    topic = opened.new_topic()
    messages = [
        Message(
            b"" if null else b"%d" % number,
            b"k",
            {"p": "v"} if number % 2 else {},
            deliver_at=None if opened.kind == "kafka" else deliver_at,
            sequence=sequence,
            schema_version=version,
            null=null,
        )
        for number, (deliver_at, sequence, version, null) in enumerate(data)
    ]
    receipt = opened.backend.publish(Batch(topic, NOT_PARTITIONED, messages), WAIT)
    stored = drained(opened, topic, Start.EARLIEST)
    assert [one.message for one in stored] == messages
    assert [receipt.at(place) for place in range(receipt.stored)] == [s.position for s in stored]


def test_messages_of_another_time_are_refused_where_they_would_come_at_once(
    opened: Opened,
) -> None:
    topic = opened.new_topic()
    messages = [Message(b"now"), Message(b"later", deliver_at=2**41)]
    batch = Batch(topic, NOT_PARTITIONED, messages)
    if opened.kind == "kafka":
        with pytest.raises(NotSupportedError):
            opened.backend.publish(batch, WAIT)
        messages = []
    else:
        opened.backend.publish(batch, WAIT)
    assert [one.message for one in drained(opened, topic, Start.EARLIEST)] == messages
