"""Messages that went before they were read: the exact range, and the end or a count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.backends.pulsar.extents import EntryPosition
from router.model import NOT_PARTITIONED, TopicName
from router.model.policies import Policies
from router.pipelines.source.losses import MessagesLostError
from router.pipelines.source.ranges import Range
from router.pipelines.source.reading import batches
from tests.pipelines.sourcing import WAIT, EagerBroker, Store, fill, values
from tests.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def store(tmp_path: Path, free_port: int) -> Iterator[Store]:
    broker = EagerBroker(tmp_path / "data", free_port)
    broker.start()
    with ExitStack() as stack:
        stack.callback(broker.stop)
        yield Store(stack, broker.url)


def short(store: Store, topic: TopicName) -> int:
    """Publish until retention took the first entries; return the first that is kept."""

    def taken() -> bool:
        fill(store, topic, 20, 10, wide=200)
        return first() > 0

    def first() -> int:
        return store.backend.describe_topic(topic, WAIT).partitions[0].first_entry

    wait_until(taken, WAIT)
    return first()


def test_messages_that_retention_took_are_named_exactly(store: Store) -> None:
    topic = store.create("t", 0, Policies(retention_bytes=100_000))
    fill(store, topic, 3, 10)
    source = store.source(topics="t")
    start = source.begin()
    end = source.end(start, 10)
    ledger = next(iter(end.next.values())).ledger
    short(store, topic)
    with pytest.raises(MessagesLostError) as raised:
        source.end(end)
    said = re.search(
        rf"{topic}, from {ledger}:1 to before {ledger}:(\d+): (\d+)", str(raised.value)
    )
    assert said is not None
    # Each entry had ten messages; the first one was read.
    assert int(said[2]) == 10 * (int(said[1]) - 1)


def test_messages_that_retention_took_are_skipped_and_counted(store: Store) -> None:
    topic = store.create("t", 0, Policies(retention_bytes=100_000))
    fill(store, topic, 3, 10)
    source = store.source(topics="t", on_loss="skip")
    start = source.begin()
    end = source.end(start, 10)
    short(store, topic)
    after = source.end(end)
    rows = source.rows(end, after)
    assert after.losses == 1
    assert rows[0]["index"] == 10 + after.lost
    assert [row["index"] for row in rows] == list(range(rows[0]["index"], rows[-1]["index"] + 1))
    assert source.end(after).lost >= after.lost


def test_planned_batch_that_retention_took_is_a_loss(store: Store) -> None:
    topic = store.create("t", 0, Policies(retention_bytes=100_000))
    fill(store, topic, 3, 10)
    source = store.source(topics="t")
    start = source.begin()
    end = source.end(start)
    short(store, topic)
    with pytest.raises(MessagesLostError, match="retention"):
        source.rows(start, end)
    assert store.source(topics="t", on_loss="skip").rows(start, end) == []


@pytest.mark.parametrize("partitions", [0, 2])
def test_topic_that_was_made_anew_is_a_loss(store: Store, partitions: int) -> None:
    topic = store.create("t", partitions)
    fill(store, topic, 4)
    source = store.source(topics="t")
    end = source.end(source.begin())
    store.backend.delete_topic(topic, WAIT)
    store.create("t", partitions)
    told = fill(store, topic, 6)
    with pytest.raises(MessagesLostError, match="created again"):
        source.end(end)
    skipping = store.source(topics="t", on_loss="skip")
    after = skipping.end(end)
    assert sorted(values(skipping.rows(end, after))) == sorted(told)
    assert after.losses == max(1, partitions)


def test_topic_that_was_deleted_is_a_loss(store: Store) -> None:
    first, second = store.create("a-1"), store.create("a-2")
    fill(store, first, 2)
    source, skipping = store.source(pattern="a-.*"), store.source(pattern="a-.*", on_loss="skip")
    end = source.end(source.begin())
    store.backend.delete_topic(first, WAIT)
    store.publish(second, NOT_PARTITIONED, b"x")
    with pytest.raises(MessagesLostError, match="deleted"):
        source.end(end)
    after = skipping.end(end)
    assert values(skipping.rows(end, after)) == [b"x"]
    assert {part.topic for part in after.next} == {str(second)}


def test_entries_that_vanish_while_they_are_read_are_a_loss(store: Store) -> None:
    topic = store.create("t", 0, Policies(retention_bytes=100_000))
    fill(store, topic, 3, 10)
    source, skipping = store.source(topics="t"), store.source(topics="t", on_loss="skip")
    start = source.begin()
    first = short(store, topic)
    # Planned before, read after: as when retention comes between the driver and its workers.
    (part,) = start.next
    ledger = start.next[part].ledger
    last, behind = EntryPosition(ledger, first + 2), EntryPosition(ledger, first + 3)
    wanted = Range(part, EntryPosition(ledger, 0), last, behind, ((ledger, first + 3),), True, 0)
    with pytest.raises(MessagesLostError, match=f"from {ledger}:0"):
        list(batches(source.options, [wanted]))
    rows = [row for batch in batches(skipping.options, [wanted]) for row in batch.to_pylist()]
    assert {row["position"].split(":")[1] for row in rows} <= {
        str(entry) for entry in range(first, first + 3)
    }
    assert all(row["index"] // 10 == int(row["position"].split(":")[1]) for row in rows)
