"""What a copy must neither lose nor store twice, where stores and operators do the unexpected."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from router.backends import Batch, NullMailbox, Receipt, Start
from router.backends.memory.store import MemoryBackend
from router.clocks import wall_ms
from router.errors import (
    BackendUnavailableError,
    ConflictError,
    EntryTooLargeError,
    NotAllowedError,
    PublishRefusedError,
    SubscriptionBusyError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    CursorState,
    Message,
    Position,
    Schema,
    SchemaType,
    Stored,
    Subscription,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.services.copying import context, copier
from router.services.copying.context import SourceGoneError, StoppedError
from router.services.copying.fidelity import StoreKind
from router.services.copying.groups import GroupSync
from router.services.copying.partition import (
    KAFKA_REMEMBERS_MS,
    PERHAPS_TWICE,
    PRODUCER,
    PartitionCopy,
)
from router.services.copying.places import runs_of
from router.services.copying.plan import SOURCE, TARGET, CopyPlanner, TopicIdentity, note
from router.services.copying.reading import DELETED, PartitionReading
from router.services.copying.state import CopiedBatch, CopiedTopic
from tests.unit.services.copying.bench import (
    MOST,
    TIMEOUT,
    TOPIC,
    Bench,
    copy_of,
    copy_until_killed,
    read_all,
)

OTHER = TopicName.parse("other")
WAIT = 30


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, batch_messages=3)
    yield bench
    bench.close()


def numbered(count: int) -> list[Message]:
    return [Message(b"%d" % number) for number in range(count)]


def begun(bench: Bench) -> CopiedTopic:
    """Make the topic at both ends, as a copy does."""
    topic = CopiedTopic(TOPIC, TOPIC, 0, done=True)
    bench.source.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.state.put_topic(topic)
    return topic


def test_a_copy_that_is_stopped_while_the_target_is_away_loses_nothing(tmp_path: Path) -> None:
    """What is in flight is settled by the next run: nothing behind it is begun by this one."""
    bench = Bench(tmp_path, batch_messages=1, follow=True, workers=1)
    try:
        begun(bench)
        for message in numbered(6):
            bench.publish([message])
        bench.target.faults = [(False, BackendUnavailableError("no connection"))] * 50
        ticks = []

        def meanwhile(level: bool) -> None:
            """As looking for topics does, which takes some time after the copy was stopped."""
            assert not level
            ticks.append(len(bench.target.faults))
            bench.stop.set()
            threading.Event().wait(0.1)

        copies = bench.copier()
        copies.run(meanwhile, 0.05)
        assert ticks
        assert not copies.level
        newest = bench.state.newest(TOPIC, NOT_PARTITIONED)
        assert newest is not None
        assert newest.sequence == 0
        bench.target.faults = []
        bench.stop.clear()
        bench.options = replace(bench.options, follow=False)
        bench.reopen()
        assert bench.run().level
        bench.assert_whole()
    finally:
        bench.close()


def test_a_full_disk_under_the_state_ends_the_copy_and_loses_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch_messages=1, workers=1)
    try:
        for message in numbered(100):
            bench.publish([message])
        pages = bench.state._connection.execute("PRAGMA page_count").fetchone()[0]
        bench.state._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        (failure,) = bench.run().failures
        assert isinstance(failure, BackendUnavailableError)
        assert "copy.db cannot be used" in str(failure)
        assert 0 < len(bench.copied()) < 100
        bench.reopen()
        assert bench.run().level
        bench.assert_whole()
    finally:
        bench.close()


def count_calls(
    monkeypatch: pytest.MonkeyPatch, store: MemoryBackend, *names: str
) -> list[list[Any]]:
    """Return a list for each method, which gets what its calls are given."""
    counts: list[list[Any]] = [[] for _ in names]

    def counting(call: Any, calls: list[Any], *given: Any) -> Any:
        calls.append(given)
        return call(*given)

    for name, calls in zip(names, counts, strict=True):
        monkeypatch.setattr(store, name, partial(counting, getattr(store, name), calls))
    return counts


def following(bench: Bench, partitions: int) -> copier.PartitionCopier:
    """Return what copies the empty partitions of the topic."""
    bench.source.create_topic(TopicInfo(TOPIC, partitions), TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC, partitions), TIMEOUT)
    bench.state.put_topic(CopiedTopic(TOPIC, TOPIC, partitions, done=True))
    return bench.copier()


@pytest.mark.parametrize("readers", [1, 3])
def test_what_came_for_partitions_without_a_reader_is_copied_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    monkeypatch.setattr(copier, "MAX_WAITING_READERS", readers)
    monkeypatch.setattr(copier, "PARKED_SECONDS", 1_000.0)
    monkeypatch.setattr(copier, "END_SECONDS", WAIT)
    bench = Bench(tmp_path, follow=True)
    try:
        copies = following(bench, 3)

        def meanwhile(at_end: bool) -> None:
            if at_end:
                for partition in range(3):
                    bench.publish(numbered(2), partition)
                bench.stop.set()

        copies.run(meanwhile, 0.05)
        assert copies.level
        bench.assert_whole(range(3))
    finally:
        bench.close()


def test_partitions_without_a_reader_are_read_when_something_came_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One description of the topic says that, however many partitions it has."""
    monkeypatch.setattr(copier, "MAX_WAITING_READERS", 1)
    monkeypatch.setattr(copier, "PARKED_SECONDS", 0.0)
    monkeypatch.setattr(copier, "PARKED_SHARE", 0)
    bench = Bench(tmp_path, follow=True)
    try:
        copies = following(bench, 8)
        reads, described = count_calls(monkeypatch, bench.source, "read", "describe_topic")
        published: list[int] = []

        def meanwhile(at_end: bool) -> None:
            if len(described) > 10 and not published:
                published.extend((5, 6))
                for partition in published:
                    bench.publish(numbered(1), partition)
            elif published and all(map(bench.copied, published)):
                bench.stop.set()

        copies.run(meanwhile, 0.01)
        assert copies.level
        assert len(reads) <= 8 + 7 + 2  # at first, once each without a reader, and what came
        bench.assert_whole(range(8))
    finally:
        bench.close()


@pytest.mark.parametrize("done", [True, False], ids=["copied", "begun"])
def test_a_topic_whose_only_partition_got_a_number_is_not_copied_again(
    bench: Bench, done: bool
) -> None:
    """Kafka's topics of one partition have none in the router, until they grow."""
    bench.state.put_topic(CopiedTopic(TOPIC, TOPIC, 0, done=done))
    bench.source.create_topic(TopicInfo(TOPIC, 3), TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC, 3), TIMEOUT)
    with pytest.raises(ConflictError, match="had one without a number when it was copied"):
        bench.plan()


def test_a_topic_that_was_created_again_at_the_target_is_refused(bench: Bench) -> None:
    """Else what was copied before would be missing there, without a word."""
    bench.publish(numbered(2))
    bench.run()
    bench.target.delete_topic(TOPIC, TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC), TIMEOUT)
    topic = bench.target._topics[TOPIC]
    topic.info = replace(topic.info, created_ms=topic.info.created_ms + 1)
    with pytest.raises(ConflictError, match="deleted and created again at the target"):
        bench.plan()


@pytest.mark.parametrize("end", [SOURCE, TARGET])
def test_what_an_earlier_release_did_not_note_is_no_difference(bench: Bench, end: str) -> None:
    bench.publish(numbered(2))
    bench.run()
    note(bench.state, end, TOPIC, TopicIdentity())
    bench.publish([Message(b"later")])
    assert bench.run().level
    bench.assert_whole()


def test_topics_are_told_apart_by_their_ids_first() -> None:
    """Nodes may have noted other times for one topic; a topic without an id has a time only."""
    assert not TopicIdentity(1, "a").differs(TopicIdentity(2, "a"))
    assert TopicIdentity(1, "a").differs(TopicIdentity(1, "b"))
    assert TopicIdentity(1).differs(TopicIdentity(2, "a"))
    assert not TopicIdentity(0, "a").differs(TopicIdentity(2))
    assert not TopicIdentity(1).differs(TopicIdentity(1))


def test_a_target_that_cannot_grow_is_refused_until_it_can(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_growth(*given: Any) -> None:
        raise NotAllowedError("Kafka's own tools add partitions")

    bench.source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
    bench.run()
    bench.source.grow_topic(TOPIC, 3, TIMEOUT)
    planner = CopyPlanner(bench.source, bench.target, bench.state, TIMEOUT, kind=StoreKind.MEMORY)
    (planned,) = planner.plan(bench.source.list_topics(TIMEOUT))
    monkeypatch.setattr(bench.target, "grow_topic", no_growth)
    with pytest.raises(ConflictError, match="has 3 partitions at the source now, and 2"):
        planner.make(bench.context(), planned)
    monkeypatch.undo()
    planner.refused[TOPIC] = "it cannot grow"
    assert planner.make(bench.context(), planned).partitions == 3
    assert planner.refused == {}


def test_what_a_protocol_keeps_for_itself_is_no_group_at_the_target(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, kept = begun(bench), Subscription(TOPIC, "kept")
    for name in ("kept", "group"):
        bench.source.subscribe(Subscription(TOPIC, name), Start.EARLIEST, TIMEOUT)
    cursors = bench.source.cursors

    def owned(subscription: Subscription, timeout: float) -> list[CursorState]:
        owner = "JetStream consumer" if subscription == kept else ""
        return [replace(state, owner=owner) for state in cursors(subscription, timeout)]

    monkeypatch.setattr(bench.source, "cursors", owned)
    report = GroupSync(bench.source, bench.target, bench.state, lambda: [topic], TIMEOUT).sync()
    assert not report.failures
    stats = bench.target.describe_topic(TOPIC, TIMEOUT)
    assert {one.name for one in stats.subscriptions} == {"group"}


def test_a_group_with_consumers_at_the_target_says_what_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*given: Any) -> None:
        raise SubscriptionBusyError("The group has active consumers.")

    topic = begun(bench)
    bench.publish(numbered(3))
    group = Subscription(TOPIC, "g")
    bench.source.subscribe(group, Start.EARLIEST, TIMEOUT)
    bench.run()
    last = read_all(bench.source, TOPIC, NOT_PARTITIONED)[-1].position
    bench.source.acknowledge(group, [last], True, TIMEOUT)
    monkeypatch.setattr(bench.target, "acknowledge", busy)
    sync = GroupSync(bench.source, bench.target, bench.state, lambda: [topic], TIMEOUT)
    assert sync.sync(last=True).failures == [
        "group g of topic orders: The group has active consumers. Stop its consumers at the target,"
        " and run the command again."
    ]


def test_a_copy_that_fails_waits_for_the_batch_that_is_read_ahead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows closes the reader, which the other thread uses."""
    begun(bench)
    for message in numbered(7):
        bench.publish([message])
    copy = copy_of(bench.context())
    read, steps = copy._reading.batch, list[str]()
    began, refused = threading.Event(), threading.Event()

    def batch() -> list[Stored]:
        if threading.current_thread() is not threading.main_thread():
            began.set()
            assert refused.wait(WAIT)
            time.sleep(0.2)  # for a copy that would not wait
            steps.append("read")
        return read()

    def publish(batch: Batch, timeout: float) -> Receipt:
        del batch, timeout
        assert began.wait(WAIT)
        refused.set()
        raise EntryTooLargeError("no")

    monkeypatch.setattr(copy._reading, "batch", batch)
    monkeypatch.setattr(bench.target, "publish", publish)
    with pytest.raises(EntryTooLargeError):
        copy.turn()
    steps.append("failed")
    copy.close()
    assert steps == ["read", "failed"]


@pytest.mark.parametrize("reopened", [True, False], ids=["next run", "same run"])
def test_messages_that_are_deleted_before_they_are_copied_are_said(
    bench: Bench, reopened: bool
) -> None:
    """Retention of the source overtakes the copy: the operator learns of it."""
    begun(bench)
    for message in numbered(3):
        bench.publish([message])
    with_figures = bench.context()
    copy = copy_of(with_figures)
    assert not copy.turn()
    for message in numbered(6)[3:]:
        bench.publish([message])
    bench.source.deleted = {b"0", b"1", b"2", b"3"}
    if reopened:
        copy.close()
        copy = copy_of(with_figures)
    assert not copy.turn()
    copy.close()
    assert with_figures.figures.losses == {DELETED: 1}
    (sentence,) = bench.said
    assert "topic orders, partition 0: the source deleted messages between 1:2 and 1:4" in sentence
    assert [message.value for message in bench.copied()] == [b"0", b"1", b"2", b"4", b"5"]


def test_gaps_between_messages_are_no_loss_by_themselves(bench: Bench) -> None:
    """Markers of Kafka and what it compacted: the messages before them are kept."""
    begun(bench)
    for message in numbered(9):
        bench.publish([message])
    bench.source.deleted = {b"1", b"4", b"5", b"7"}
    copies = bench.copier()
    copies.run(lambda level: None, 0.05)
    assert copies.context.figures.losses == {}
    assert bench.said == []
    assert len(bench.copied()) == 5


def test_a_topic_that_is_gone_at_the_target_is_a_failure(bench: Bench) -> None:
    """It is not taken for one that was deleted at the source, whose copy is complete."""
    begun(bench)
    bench.publish([Message(b"a", schema_version=bytes(8))])
    bench.source.schemas.put(TOPIC, Schema(SchemaType.STRING, b""), TIMEOUT)
    copies = bench.copier()
    bench.target.delete_topic(TOPIC, TIMEOUT)
    copies.run(lambda level: None, 0.05)
    (failure,) = copies.failures
    assert isinstance(failure, TopicNotFoundError)
    assert not copies.level


def test_a_topic_that_is_gone_at_the_source_is_none(bench: Bench) -> None:
    begun(bench)
    copies = bench.copier()
    bench.source.delete_topic(TOPIC, TIMEOUT)
    copies.run(lambda level: None, 0.05)
    assert copies.failures == []
    assert bench.said == ["topic orders was deleted at the source"]


def test_the_schema_of_a_topic_that_is_gone_at_the_source_is_none(bench: Bench) -> None:
    topic = begun(bench)
    bench.source.delete_topic(TOPIC, TIMEOUT)
    with pytest.raises(SourceGoneError):
        bench.context().schemas(topic).get(bytes(8))


def test_schemas_are_waited_for_as_messages_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(bench)
    schema = Schema(SchemaType.STRING, b"")
    bench.publish([Message(b"a", schema_version=bench.source.schemas.put(TOPIC, schema, TIMEOUT))])
    put, failures = bench.target.schemas.put, [BackendUnavailableError("no connection")] * 2

    def failing(*given: Any) -> bytes:
        if failures:
            raise failures.pop()
        return put(*given)

    monkeypatch.setattr(bench.target.schemas, "put", failing)
    copies = bench.copier()
    copies.run(lambda level: None, 0.05)
    assert copies.failures == []
    (copied,) = bench.copied()
    assert bench.target.schemas.get(TOPIC, copied.schema_version, TIMEOUT).type == schema.type


@pytest.mark.parametrize(
    ("kind", "age_ms", "stored", "said"),
    [
        (StoreKind.KAFKA, KAFKA_REMEMBERS_MS + 60_000, False, True),
        (StoreKind.KAFKA, KAFKA_REMEMBERS_MS + 60_000, True, False),
        (StoreKind.KAFKA, KAFKA_REMEMBERS_MS - 60_000, False, False),
        (StoreKind.KAFKA, -60_000, False, False),
        (StoreKind.MEMORY, KAFKA_REMEMBERS_MS + 60_000, False, False),
    ],
    ids=["unknown", "known", "young", "the clock went back", "not Kafka"],
)
def test_a_batch_in_flight_for_longer_than_kafka_remembers_is_said(
    bench: Bench, kind: StoreKind, age_ms: int, stored: bool, said: bool
) -> None:
    begun(bench)
    bench.publish(numbered(3))
    copy_until_killed(bench, "publish", after=stored, later=0)
    newest = bench.state.newest(TOPIC, NOT_PARTITIONED)
    assert newest is not None
    bench.state.replace(TOPIC, replace(newest, started_ms=wall_ms() - age_ms))
    bench.reopen()
    copies = bench.copier(kind)
    copies.run(lambda level: None, 0.05)
    assert copies.failures == []
    assert copies.context.figures.losses == ({PERHAPS_TWICE: 3} if said else {})
    bench.assert_whole()


class Shown:
    """What a target says that shows who sent what it stores."""

    def __init__(self, bench: Bench) -> None:
        self.asked: list[tuple[Position | None, float]] = []
        bench.target.find_batch = self.find_batch  # type: ignore[attr-defined]
        bench.target.publish = self.publish  # type: ignore[method-assign]
        self._target = bench.target
        self.places: dict[tuple[str, int], Receipt] = {}

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        """Store it, and do not say where."""
        assert batch.producer is not None
        receipt = MemoryBackend.publish(self._target, batch, timeout)
        self.places[batch.producer, batch.sequence] = receipt
        return replace(receipt, position=Position(-1, -1))

    def find_batch(
        self,
        topic: TopicName,
        partition: int,
        named: tuple[str, int],
        after: Position | None,
        timeout: float,
    ) -> Receipt | None:
        """Say where it is."""
        self.asked.append((after, timeout))
        return self.places.get(named)


def test_a_batch_is_looked_for_behind_the_last_one_for_as_long_as_may_be(bench: Bench) -> None:
    """All that others published meanwhile is read: more than one call's time may do."""
    begun(bench)
    bench.publish(numbered(7))
    shown = Shown(bench)
    # Killed behind the second one; afterwards the target says by itself where it stores a batch.
    copy_until_killed(bench, "publish", after=True, later=1)
    bench.reopen()
    assert bench.run(into_existing=True).level
    bench.assert_whole()
    first = next(bench.state.batches(TOPIC, NOT_PARTITIONED))
    assert [after for after, _ in shown.asked] == [None, list(first.targets())[-1]]
    assert {timeout for _, timeout in shown.asked} == {bench.options.retry_seconds}


def test_waiting_ends_when_the_copy_is_stopped(bench: Bench) -> None:
    bench.stop.set()
    failures: Sequence[BaseException] = [BackendUnavailableError("away")]

    def attempt() -> None:
        raise failures[0]

    with pytest.raises(StoppedError):
        bench.context().persist("target", attempt)


def test_what_comes_while_a_partition_is_copied_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that comes behind the last look and before the wait wakes nothing later."""
    bench = Bench(tmp_path, follow=True)
    turn, late = PartitionCopy.turn, [Message(b"late")]

    def interrupted(copy: PartitionCopy) -> bool:
        found = turn(copy)
        if not found and late:
            bench.publish([late.pop()])
        return found

    monkeypatch.setattr(PartitionCopy, "turn", interrupted)
    try:
        begun(bench)
        bench.publish([Message(b"first")])
        copies = bench.copier()
        watch = threading.Timer(TIMEOUT, bench.stop.set)
        watch.start()

        def meanwhile(at_end: bool) -> None:
            if len(bench.copied()) == 2:
                bench.stop.set()

        copies.run(meanwhile, 0.05)
        watch.cancel()
        assert [message.value for message in bench.copied()] == [b"first", b"late"]
    finally:
        bench.close()


def test_partitions_that_are_copied_already_are_not_added_again(bench: Bench) -> None:
    """Two copies of one partition would store its messages twice."""
    bench.source.create_topic(TopicInfo(TOPIC, 3), TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC, 3), TIMEOUT)
    topic = CopiedTopic(TOPIC, TOPIC, 3, done=True)
    bench.state.put_topic(topic)
    for partition in range(3):
        bench.publish([Message(b"x")], partition)
    copies = copier.PartitionCopier(bench.context(), MOST)
    copies.add(topic, {}, 2)
    copies.run(lambda level: None, 0.05)
    assert [len(bench.copied(partition)) for partition in range(3)] == [0, 0, 1]


def test_a_message_larger_than_a_batch_may_be_goes_alone(bench: Bench) -> None:
    """Taken for the end of the partition, it would hide all that follows."""
    sizes = [10, MOST + 1, MOST * 2 // 3, MOST * 2 // 3]
    for size in sizes:
        bench.publish([Message(b"x" * size)])
    assert bench.run().level
    bench.assert_whole()
    rows = list(bench.state.batches(TOPIC, NOT_PARTITIONED))
    assert [row.size for row in rows] == sizes


def test_a_batch_of_which_a_part_is_stored_is_published_again(bench: Bench) -> None:
    begun(bench)
    bench.publish(numbered(3))
    copy_until_killed(bench, "publish", after=False, later=0)
    bench.reopen()
    shown = Shown(bench)
    del bench.target.publish
    producer = f"{PRODUCER}{bench.state.id}"
    shown.places[producer, 0] = Receipt(Position(1, 0), 2)
    assert bench.run().level
    assert shown.asked
    bench.assert_whole()


def test_a_target_that_refuses_is_not_waited_for_as_one_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "REFUSED_SECONDS", 0.2)
    bench = Bench(tmp_path, retry_seconds=600.0)
    try:
        bench.publish(numbered(1))
        bench.target.faults = [(False, PublishRefusedError("its disk is full"))] * 1_000
        (failure,) = bench.run().failures
        assert "its disk is full Run the same command again" in str(failure)
    finally:
        bench.close()


@pytest.mark.parametrize(("entry", "refused"), [(0, False), (1, True)])
def test_a_source_that_ends_before_the_last_copied_message_is_another_one(
    bench: Bench, entry: int, refused: bool
) -> None:
    """As one that is restored from a backup, or deleted and created again without any id."""
    begun(bench)
    bench.publish(numbered(1))
    ledger = bench.source.describe_topic(TOPIC, TIMEOUT).partitions[0].ledger
    runs = runs_of([Position(ledger, entry)])
    bench.state.begin(TOPIC, CopiedBatch(NOT_PARTITIONED, 0, runs, 1, 1, b"", 0))
    if not refused:
        assert bench.plan()
        return
    with pytest.raises(ConflictError, match="deleted and created again at the source"):
        bench.plan()


@pytest.mark.parametrize(
    ("end", "grown"),
    [("source", False), ("source", True), ("target", True)],
    ids=["read on", "grown at the source", "grown at the target"],
)
def test_a_topic_that_is_copied_on_while_it_is_described_is_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, end: str, grown: bool
) -> None:
    """The description of a store is older than what the threads of other partitions note."""
    store = bench.source if end == "source" else bench.target
    describe = store.describe_topic
    bench.source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
    bench.publish(numbered(2), 0)
    bench.publish(numbered(2), 1)
    bench.run()
    topic = CopiedTopic(TOPIC, TOPIC, 2, done=True)
    first, second = (
        PartitionCopy(PartitionReading(bench.context(), topic, number, NullMailbox(), MOST))
        for number in (0, 1)
    )
    assert not first.turn()
    assert not second.turn()
    described = []

    def describe_slowly(*given: Any) -> TopicStats:
        stats = describe(*given)
        described.append(stats)
        bench.publish(numbered(7), 1)
        while second.turn():
            pass
        return stats

    monkeypatch.setattr(store, "describe_topic", describe_slowly)
    if grown:
        bench.source.grow_topic(TOPIC, 3, TIMEOUT)
        bench.plan()
    else:
        bench.publish(numbered(1), 0)
        bench.source.failures = 1
        assert not first.turn()
    assert described
    bench.assert_whole((0, 1))


def test_a_target_that_got_more_partitions_than_the_source_is_refused(bench: Bench) -> None:
    """Its publishers' keys would go to other partitions than the copied ones."""
    bench.source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
    bench.run()
    bench.target.grow_topic(TOPIC, 4, TIMEOUT)
    with pytest.raises(ConflictError, match="has 2 partitions at the source and 4 partitions"):
        bench.plan()


@pytest.mark.parametrize("allowed", [True, False])
def test_a_target_that_has_to_be_asked_drops_repeats(bench: Bench, allowed: bool) -> None:
    """Without that, a copy that is interrupted would store a batch twice."""
    asked: list[TopicName] = []

    def deduplicate(topic: TopicName, timeout: float) -> None:
        if not allowed:
            raise NotAllowedError("no administration")
        asked.append(topic)

    bench.source.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.target.deduplicate = deduplicate  # type: ignore[attr-defined]
    bench.target.deduplicates = lambda *given: allowed  # type: ignore[attr-defined]
    if allowed:
        bench.run()
        assert asked == [TOPIC]
        return
    with pytest.raises(NotAllowedError, match="would store messages twice"):
        bench.run()
