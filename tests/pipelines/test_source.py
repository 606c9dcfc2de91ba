"""The source on real stores: what batches hold, and that they hold it again whatever happened."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from router.backends import Batch
from router.errors import ReadFailedError, TopicNotFoundError
from router.model import NOT_PARTITIONED, Message
from router.model.policies import Policies
from router.pipelines.source.batch_reader import RouterBatchReader
from router.pipelines.source.reading import batches
from tests.contract.conftest import stop_broker
from tests.pipelines.sourcing import WAIT, Source, Store, fill, values
from tests.processes import BrokerProcess, wait_until
from tests.servers.pulsar import Pulsar

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

APACHE = pytest.param("apache", marks=[pytest.mark.java])


@pytest.fixture
def served(broker: BrokerProcess) -> Iterator[tuple[BrokerProcess, Store]]:
    """A broker that the test may kill, and the store of its folder."""
    with ExitStack() as stack:
        yield broker, Store(stack, broker.url)


@pytest.fixture(params=["embedded", "pulsar", APACHE])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Our broker by its folder, ours by its port, and Apache Pulsar."""
    with ExitStack() as stack:
        if request.param == "apache":
            server: Pulsar = request.getfixturevalue("apache_pulsar")
            yield Store(stack, server.backend)
        elif request.param == "pulsar":
            yield Store(stack, request.getfixturevalue("broker").url)
        else:
            folder = request.getfixturevalue("tmp_path") / "data"
            stack.callback(stop_broker, folder)
            yield Store(stack, f"embedded:{folder}", **{"broker.linger": "1s"})


def name() -> str:
    """Return a name that no other test uses."""
    return f"s-{uuid.uuid4().hex[:12]}"


def test_rows_are_all_messages_of_all_partitions_in_order(store: Store) -> None:
    topic = store.create(name(), 3)
    told = fill(store, topic, 12, 5)
    rows = store.source(topics=topic.local).all()
    assert sorted(values(rows)) == sorted(told)
    assert {row["topic"] for row in rows} == {topic.local}
    for partition in range(3):
        mine = [row for row in rows if row["partition"] == partition]
        assert values(mine) == sorted(values(mine))
        if mine[0]["index"] is not None:
            assert [row["index"] for row in mine] == list(range(20))
    assert len({(row["partition"], row["position"]) for row in rows}) == len(rows)


def test_rows_carry_everything_that_a_message_has(store: Store) -> None:
    topic = store.create(name())
    sent = [
        Message(b"plain"),
        Message(b"full", b"\xff\x00", {"a": "1", "b": ""}, 1_700_000_000_123),
        Message(b"", b"gone", null=True),
    ]
    for one in ([sent[0]], sent[1:], [sent[2]]):
        store.backend.publish(Batch(topic, NOT_PARTITIONED, one), WAIT)
    rows = store.source(topics=topic.local).all()
    assert values(rows) == [b"plain", b"full", None, None]
    assert [row["key"] for row in rows] == [None, b"\xff\x00", b"gone", b"gone"]
    assert [dict(row["properties"]) for row in rows] == [{}, {"a": "1", "b": ""}, {}, {}]
    assert [row["event_time"] is None for row in rows] == [True, False, True, True]
    assert rows[1]["event_time"].timestamp() == 1_700_000_000.123
    assert all(row["publish_time"] is not None for row in rows)
    assert [row["position"].count(":") for row in rows] == [1, 2, 2, 1]


def test_bounded_batches_cover_everything_once(store: Store) -> None:
    topic = store.create(name(), 2)
    told = fill(store, topic, 30, 10)
    source, found, sizes = store.source(topics=topic.local), [], []
    start = source.begin()
    while (end := source.end(start, 70)) != start:
        rows = values(source.rows(start, end))
        found += rows
        sizes.append(len(rows))
        start = end
    assert sorted(found) == sorted(told)
    assert max(sizes) <= 70
    assert len(sizes) <= 10


def now_ms() -> int:
    """Return the time in ms since 1970."""
    return int(datetime.now(UTC).timestamp() * 1000)


def frame_rows(store: Store, **texts: str) -> list[bytes]:
    """Return the values of a frame's rows, read as Spark reads it."""
    reader = RouterBatchReader(store.options(**texts).of_reading())
    rows = (b.to_pylist() for part in reader.partitions() for b in reader.read(part))
    return [row["value"] for some in rows for row in some]


def test_frame_begins_and_ends_inside_of_entries(store: Store) -> None:
    topic = store.create(name())
    told = fill(store, topic, 4, 10)
    rows = store.source(topics=topic.local).all()

    def bound(number: int) -> str:
        # A store that does not count messages is told the position instead.
        index, position = rows[number]["index"], rows[number]["position"]
        return json.dumps({topic.local: {"0": position if index is None else index}})

    bounds = {"startingOffsets": bound(13), "endingOffsets": bound(27)}
    assert frame_rows(store, subscribe=topic.local, **bounds) == told[13:27]
    assert frame_rows(store, subscribe=topic.local, endingOffsets=bound(5)) == told[:5]
    at_an_entry = {"startingOffsets": bound(10), "endingOffsets": bound(20)}
    assert frame_rows(store, subscribe=topic.local, **at_an_entry) == told[10:20]
    positions = {
        "startingOffsets": json.dumps({topic.local: {"0": rows[7]["position"]}}),
        "endingOffsets": json.dumps({topic.local: {"0": rows[31]["position"]}}),
    }
    assert frame_rows(store, subscribe=topic.local, **positions) == told[7:31]


def test_start_inside_of_an_entry_is_for_a_new_stream_alone(store: Store) -> None:
    topic = store.create(name())
    told = fill(store, topic, 4, 10)
    places = [row["position"] for row in store.source(topics=topic.local).all()]

    def source(number: int) -> Source:
        bound = json.dumps({topic.local: {"0": places[number]}})
        return store.source(subscribe=topic.local, startingOffsets=bound)

    start = source(13).begin()
    end = source(13).end(start, 10)
    first = values(source(13).rows(start, end))
    # Spark takes a stream up again where its checkpoint says, whatever the option says by then.
    again = source(37)
    assert first + values(again.rows(end, again.end(end))) == told[13:]


def test_frame_begins_and_ends_at_times(store: Store) -> None:
    topic = store.create(name())
    told = fill(store, topic, 2)
    between = now_ms() + 1
    wait_until(lambda: now_ms() > between, WAIT)
    told += fill(store, topic, 2)
    times = {"topics": topic.local, "startingTimestamp": str(between)}
    assert frame_rows(store, **times) == told[2:]
    assert frame_rows(store, topics=topic.local, endingTimestamp=str(between)) == told[:2]
    future = str(now_ms() + 3_600_000)
    assert frame_rows(store, topics=topic.local, starting=future) == []
    assert frame_rows(store, topics=topic.local, ending=future) == told
    by_partition = json.dumps({topic.local: {"0": between}})
    named = {"subscribe": topic.local}
    assert frame_rows(store, **named, startingOffsetsByTimestamp=by_partition) == told[2:]
    assert frame_rows(store, **named, endingOffsetsByTimestamp=by_partition) == told[:2]


def test_partitions_that_are_assigned_are_read_alone(store: Store) -> None:
    topic = store.create(name(), 3)
    fill(store, topic, 9)
    source = store.source(assign=json.dumps({topic.local: [0, 2]}))
    assert {row["partition"] for row in source.all()} == {0, 2}
    start = source.begin()
    end = source.end(start)
    fill(store, topic, 9)
    again = source.rows(end, source.end(end))
    assert sorted(row["partition"] for row in again) == [0] * 3 + [2] * 3
    with pytest.raises(TopicNotFoundError, match="has no partition 3"):
        store.source(assign=json.dumps({topic.local: [3]})).begin()


def test_tasks_that_are_asked_for_divide_partitions(store: Store) -> None:
    topic = store.create(name(), 2)
    told = fill(store, topic, 16, 5)
    source = store.source(topics=topic.local, minPartitions="8")
    start = source.begin()
    tasks = source.planner.tasks(start, source.end(start))
    assert len(tasks) >= 6
    rows = [
        row
        for task in tasks
        for batch in batches(source.options, task)
        for row in batch.to_pylist()
    ]
    assert values(rows) == values(source.all())
    assert sorted(values(rows)) == sorted(told)
    assert [row["index"] for row in rows] == [row["index"] for row in source.all()]


def test_columns_of_kafkas_connector_hold_the_same(store: Store) -> None:
    topic = store.create(name())
    sent = [Message(b"v", b"k", {"a": "1"}), Message(b"", b"gone", null=True)]
    store.backend.publish(Batch(topic, NOT_PARTITIONED, sent), WAIT)
    first, second = store.source(topics=topic.local, columns="kafka").all()
    assert list(first) == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        "headers",
    ]
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"v", topic.local)
    assert first["headers"] == [{"key": "a", "value": b"1"}]
    assert (second["value"], second["headers"], second["partition"]) == (None, None, 0)
    assert [row["offset"] for row in (first, second)] in ([0, 1], [None, None])
    assert first["timestamp"] is not None


def test_target_is_not_passed_by_what_comes_later(store: Store) -> None:
    topic = store.create(name())
    told = fill(store, topic, 4, 2)
    source = store.source(topics=topic.local)
    start, target = source.begin(), source.planner.ends()
    fill(store, topic, 3)
    end = source.end(start, target=target)
    assert values(source.rows(start, end)) == told
    assert source.end(end, target=target) == end


def test_stream_that_starts_at_the_end_reads_what_comes(store: Store) -> None:
    topic = store.create(name())
    fill(store, topic, 3)
    source = store.source(topics=topic.local, starting="latest")
    start = source.begin()
    assert source.end(start) == start
    store.publish(topic, NOT_PARTITIONED, b"new")
    assert values(source.rows(start, source.end(start))) == [b"new"]


def test_stream_that_starts_at_a_time_reads_from_there(store: Store) -> None:
    topic = store.create(name())
    fill(store, topic, 3)
    between = store.source(topics=topic.local).all()[1]["publish_time"].timestamp()
    source = store.source(topics=topic.local, starting=str(round(between * 1000)))
    assert values(source.all())[-1][:6] == b"000002"
    late = store.source(topics=topic.local, starting="4102444800000")
    assert late.all() == []


def test_new_partitions_and_topics_are_read_from_their_beginning(
    served: tuple[BrokerProcess, Store],
) -> None:
    store = served[1]
    first = store.create("orders-a")
    store.create("other")
    store.publish(first, NOT_PARTITIONED, b"1")
    source = store.source(pattern="orders-.*")
    start = source.begin()
    second = store.create("orders-b", 2)
    store.publish(second, 1, b"2")
    end = source.end(start)
    assert sorted(values(source.rows(start, end))) == [b"1", b"2"]
    assert sorted(values(source.rows(start, end))) == [b"1", b"2"]
    store.publish(second, 0, b"3")
    assert values(source.rows(end, source.end(end))) == [b"3"]


def test_missing_topic_is_said(store: Store) -> None:
    with pytest.raises(TopicNotFoundError):
        store.source(topics=name()).begin()


def test_batch_has_the_same_rows_after_the_broker_was_killed(
    served: tuple[BrokerProcess, Store],
) -> None:
    broker, store = served
    topic = store.create(name(), 2)
    fill(store, topic, 20, 3)
    source = store.source(topics=topic.local)
    start = source.begin()
    end = source.end(start, 30)
    before = source.rows(start, end)
    broker.kill()
    broker.start()
    fill(store, topic, 5)
    assert source.rows(start, end) == before


def test_reading_goes_on_where_it_was_when_the_broker_comes_back(
    served: tuple[BrokerProcess, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, store = served
    monkeypatch.setattr("router.pipelines.source.reading.BATCH_ROWS", 100)
    # Few messages on their way, so that most of them are not when the broker dies.
    monkeypatch.setattr("router.backends.pulsar.entry_stream.MAX_PERMITS", 100)
    monkeypatch.setattr("router.backends.pulsar.entry_stream.FIRST_PERMITS", 100)
    topic = store.create(name())
    told = fill(store, topic, 40, 50)
    source = store.source(topics=topic.local)
    start = source.begin()
    (wanted,) = source.planner.ranges(start, source.end(start))
    reading = batches(source.options, [wanted])
    rows = next(reading).to_pylist()
    broker.kill()
    starting = threading.Timer(1.0, broker.start)
    starting.start()
    for batch in reading:
        rows += batch.to_pylist()
    starting.join()
    assert values(rows) == told
    assert [row["index"] for row in rows] == list(range(len(told)))


def test_reading_that_is_given_up_leaves_no_reader(served: tuple[BrokerProcess, Store]) -> None:
    _, store = served
    topic = store.create(name())
    fill(store, topic, 40, 300)
    source = store.source(topics=topic.local)
    start = source.begin()
    (wanted,) = source.planner.ranges(start, source.end(start))
    reading = batches(source.options, [wanted])
    next(reading)
    threads = threading.active_count()
    reading.close()
    wait_until(lambda: threading.active_count() < threads, WAIT)
    wait_until(lambda: not store.backend.describe_topic(topic, WAIT).subscriptions, WAIT)


def test_damaged_entry_ends_the_reading_and_is_named(
    served: tuple[BrokerProcess, Store],
) -> None:
    broker, store = served
    topic = store.create(name(), 0, Policies())
    fill(store, topic, 10, 4, wide=100)
    source = store.source(topics=topic.local)
    start = source.begin()
    end = source.end(start)
    broker.stop()
    (segment,) = Path(broker.folder).glob("ledgers/*/*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    broker.start()
    with pytest.raises(ReadFailedError, match=f"{topic.local}.*1:5"):
        source.rows(start, end)
