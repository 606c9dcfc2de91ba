"""A consumer's acknowledgements and what it receives, on a Kafka in memory: no JVM, no network."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from router.backends.kafka import offsets
from router.backends.kafka.acknowledging import GroupTopic, SharedCommits, commit_turn
from router.backends.kafka.committing import CommitQueue
from router.backends.kafka.consumer import KafkaConsumer
from router.backends.kafka.group_progress import CommitProgress
from router.backends.kafka.offsets import (
    LATEST,
    CommittedOffset,
    GroupPartition,
    Offsets,
    epoch_of,
    new_epoch,
    note_of,
)
from router.backends.kafka.reader import REFRESH_SECONDS, PartitionNumbers, PrefetchingReader
from router.clocks import deadline_in
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    ConsumerClosedError,
    FencedError,
    NotSupportedError,
    ReadFailedError,
)
from router.model import (
    NOT_PARTITIONED,
    ConsumerId,
    Grant,
    PollOutcome,
    Position,
    Subscription,
    TopicName,
)
from router.node.memory import MemoryClaim, MemoryNode
from tests.processes import wait_until
from tests.unit.backends.kafka.fake_kafka import FakeKafka

WAIT = 10.0
SOON = 0.05
BYTES = 1 << 20
TOPIC = TopicName.parse("t")
GROUP = Subscription(TOPIC, "g")
WHOLE = GroupTopic(TOPIC, "g", "t", 1)


class Silent:
    """A mailbox that is not waited at."""

    def wake(self) -> None:
        """Do nothing."""


@dataclass
class Bench:
    """A group on a topic with one partition."""

    kafka: FakeKafka = field(default_factory=FakeKafka)
    node: MemoryNode = field(default_factory=MemoryNode)
    readers: list[PrefetchingReader] = field(default_factory=list)
    outlasted: int = 0

    def __post_init__(self) -> None:
        self.offsets = Offsets(self.kafka)
        self.together = SharedCommits(self.offsets, self.node, self._outlast)
        self.commits = CommitQueue(self.node, self.offsets)
        self.epoch = new_epoch()
        self.kafka.commits["g", "t", 0] = CommittedOffset(0, note_of(self.epoch))

    def _outlast(self, of: GroupPartition, deadline: float) -> None:
        self.outlasted += 1

    def claim(self) -> MemoryClaim:
        """Have the partition dealt to a poll."""
        return self.node.claim(ConsumerId(GROUP, "c1"), 0, Silent(), WAIT)

    def reader(self) -> PrefetchingReader:
        """Return a reader of the topic, which noted a commit just now."""
        reader = PrefetchingReader(
            self.kafka, self.offsets, "t", PartitionNumbers(0, NOT_PARTITIONED), WAIT
        )
        reader.refreshed()
        self.readers.append(reader)
        return reader

    def consumer(
        self, claim: MemoryClaim, reader: PrefetchingReader | None = None
    ) -> KafkaConsumer:
        """Open a consumer under a claim."""
        reader = reader or self.reader()
        (generation,) = claim.granted().values()
        grant = Grant(GROUP, NOT_PARTITIONED, generation)
        parts = self.node, self.together, self.commits
        consumer = KafkaConsumer(*parts, grant, "g", reader, lambda: None)
        commit = self.commit()
        consumer.start(Silent(), commit.offset, commit, None, time.monotonic() + WAIT)
        return consumer

    def commit(self) -> CommittedOffset:
        """Return what the group committed."""
        found = self.kafka.commit_of("g", "t")
        assert found is not None
        return found

    def acknowledge(self, *offsets: int, cumulative: bool = False) -> None:
        """Acknowledge single messages, as another worker does."""
        positions = [Position(0, offset) for offset in offsets]
        deadline = time.monotonic() + WAIT
        self.together.acknowledge(WHOLE, positions, cumulative, deadline)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.kafka.store("t", *(b"%d" % number for number in range(10)))
    yield bench
    for reader in bench.readers:
        reader.end(BackendUnavailableError("the test is over"))
        reader.join(WAIT)
    bench.node.close()


def received(consumer: KafkaConsumer, limit: int = 100, max_bytes: int = BYTES) -> list[int]:
    """Return the values of what a poll gets."""
    return [int(stored.message.value) for stored in consumer.receive(limit, max_bytes, WAIT)]


def test_acknowledging_commits_the_offset_behind_the_message_and_hands_the_epoch_on(
    bench: Bench,
) -> None:
    consumer = bench.consumer(bench.claim())
    assert received(consumer) == list(range(10))
    consumer.acknowledge(Position(0, 3), WAIT)
    assert bench.commit() == CommittedOffset(4, note_of(bench.epoch))
    consumer.acknowledge(Position(0, 9, epoch=bench.epoch), WAIT)
    assert bench.commit().offset == 10


def test_acknowledging_again_or_what_came_before_commits_nothing(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    consumer.acknowledge(Position(0, 5), WAIT)
    for offset in (5, 2):
        consumer.acknowledge(Position(0, offset), WAIT)
    assert (bench.commit().offset, bench.kafka.committed) == (6, 1)


def test_nothing_is_committed_under_a_claim_that_another_poll_has_since(bench: Bench) -> None:
    claim = bench.claim()
    consumer = bench.consumer(claim)
    claim.release(PollOutcome.DELIVERED)
    bench.claim()
    with pytest.raises(FencedError):
        consumer.acknowledge(Position(0, 5), WAIT)
    assert (bench.commit().offset, bench.kafka.committed) == (0, 0)


def test_nothing_is_committed_in_turns_under_a_claim_that_another_poll_has_since(
    bench: Bench,
) -> None:
    bench.acknowledge(7)
    claim = bench.claim()
    consumer = bench.consumer(claim)
    before = bench.commit()
    claim.release(PollOutcome.DELIVERED)
    bench.claim()
    with pytest.raises(FencedError):
        consumer.acknowledge(Position(0, 5), WAIT)
    assert bench.commit() == before


def test_nothing_is_committed_when_the_claim_was_lost_while_it_waited_for_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.acknowledge(7)
    claim, of = bench.claim(), GroupPartition(TOPIC, "g", "t", 0)
    consumer, before = bench.consumer(claim), bench.commit()
    looked, fenced = threading.Event(), list[bool]()
    committed = bench.together.committed

    def look(of: GroupPartition, deadline: float) -> CommittedOffset | None:
        looked.set()
        return committed(of, deadline)

    def acknowledge() -> None:
        try:
            consumer.acknowledge(Position(0, 5), WAIT)
        except FencedError:
            fenced.append(True)

    thread = threading.Thread(target=acknowledge)
    with commit_turn(bench.node, of, time.monotonic() + WAIT):
        monkeypatch.setattr(bench.together, "committed", look)
        thread.start()
        assert looked.wait(WAIT)  # it has confirmed its claim, and queues for the turn
        claim.release(PollOutcome.DELIVERED)
        bench.claim()
    thread.join(WAIT)
    assert (fenced, bench.commit()) == ([True], before)


@pytest.mark.parametrize(
    "moved",
    [
        CommittedOffset(3, note_of(new_epoch())),
        CommittedOffset(5, "another client"),
        CommittedOffset(0),
    ],
)
def test_a_position_that_was_moved_meanwhile_is_not_undone(
    bench: Bench, moved: CommittedOffset
) -> None:
    consumer = bench.consumer(bench.claim())
    bench.kafka.commits["g", "t", 0] = moved
    with pytest.raises(FencedError):
        consumer.acknowledge(Position(0, 5), WAIT)
    assert bench.commit() == moved


def test_a_commit_of_this_epoch_that_the_consumer_did_not_make_is_not_undone(
    bench: Bench,
) -> None:
    consumer = bench.consumer(bench.claim())
    consumer.acknowledge(Position(0, 1), WAIT)
    bench.kafka.commits["g", "t", 0] = moved = CommittedOffset(7, note_of(bench.epoch))
    with pytest.raises(FencedError):
        consumer.acknowledge(Position(0, 8), WAIT)
    assert bench.commit() == moved


def test_a_message_of_before_a_reset_is_not_acknowledged(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    with pytest.raises(FencedError):
        consumer.acknowledge(Position(0, 5, epoch=bench.epoch - 1), WAIT)
    assert bench.kafka.committed == 0


def test_a_commit_whose_answer_was_lost_is_known_as_its_own(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    bench.kafka.lost_answers = 10**6
    with pytest.raises(BackendUnavailableError):
        consumer.acknowledge(Position(0, 3), SOON)
    bench.kafka.lost_answers = 0
    assert bench.commit().offset == 4
    consumer.acknowledge(Position(0, 6), WAIT)
    assert bench.commit().offset == 7


def test_an_acknowledgement_under_way_is_over_before_the_consumer_has_ended(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    under_way, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        under_way.set()
        assert go_on.wait(WAIT)

    def end() -> None:
        consumer.end(time.monotonic() + WAIT)
        ended.set()

    bench.kafka.before_commit = hold
    first = threading.Thread(target=consumer.acknowledge, args=(Position(0, 3), WAIT))
    first.start()
    assert under_way.wait(WAIT)
    second = threading.Thread(target=end)
    second.start()
    assert not ended.wait(SOON)
    go_on.set()
    for thread in (first, second):
        thread.join(WAIT)
    assert (bench.commit().offset, ended.is_set()) == (4, True)
    with pytest.raises(FencedError):
        consumer.acknowledge(Position(0, 5), WAIT)
    with pytest.raises(ConsumerClosedError):
        consumer.receive(1, BYTES, WAIT)


def test_receiving_stops_at_its_bounds_but_not_before_the_first_message(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    assert received(consumer, limit=3) == [0, 1, 2]
    assert received(consumer, max_bytes=2) == [3, 4]
    assert received(consumer, max_bytes=0) == [5]
    assert received(consumer) == [6, 7, 8, 9]
    assert received(consumer) == []


def test_a_poll_gets_all_that_is_stored_in_however_many_fetches(bench: Bench) -> None:
    for number in range(10, 15):
        bench.kafka.store("t", b"%d" % number)
    consumer = bench.consumer(bench.claim())
    assert received(consumer) == list(range(15))
    assert received(consumer) == []
    bench.kafka.store("t", b"15")
    assert received(consumer) == [15]


def test_what_stands_before_damage_is_received_and_the_damage_is_told_again_and_again(
    bench: Bench,
) -> None:
    bench.kafka.store("t", b"10", damaged=True)
    bench.kafka.store("t", b"11")
    consumer = bench.consumer(bench.claim())
    assert received(consumer) == list(range(10))
    for _ in range(2):
        with pytest.raises(ReadFailedError):
            consumer.receive(100, BYTES, WAIT)
    consumer.acknowledge(Position(0, 10), WAIT)
    assert received(consumer) == [11]


def test_the_next_consumer_of_a_reader_begins_behind_what_is_acknowledged(bench: Bench) -> None:
    claim = bench.claim()
    first = bench.consumer(claim)
    (reader,) = bench.readers
    assert received(first) == list(range(10))
    for offset in (5, 8):
        first.acknowledge(Position(0, offset), WAIT)
        reader.detach()
        first = bench.consumer(claim, reader)
        assert received(first) == list(range(offset + 1, 10))


def test_what_was_fetched_before_a_reset_is_not_handed_out_after_it(bench: Bench) -> None:
    claim = bench.claim()
    bench.consumer(claim)
    (reader,) = bench.readers
    wait_until(lambda: bool(reader._chunks))
    reader.detach()
    epoch = new_epoch()  # to the same place, which is another one
    bench.kafka.commits["g", "t", 0] = CommittedOffset(0, note_of(epoch))
    consumer = bench.consumer(claim, reader)
    found = consumer.receive(100, BYTES, WAIT)
    assert [stored.position.entry for stored in found] == list(range(10))
    assert {stored.position.epoch for stored in found} == {epoch}


def test_an_answer_that_comes_when_it_is_not_wanted_any_more_is_dropped(bench: Bench) -> None:
    reader = bench.reader()
    bench.kafka.before_answer = lambda: reader.skip(5)
    assert received(bench.consumer(bench.claim(), reader)) == [5, 6, 7, 8, 9]


def test_what_was_acknowledged_is_not_handed_out_any_more(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    assert received(consumer, limit=2) == [0, 1]
    consumer.acknowledge(Position(0, 5), WAIT)
    assert received(consumer) == [6, 7, 8, 9]


@pytest.mark.parametrize("shared", [False, True])
def test_a_commit_behind_the_end_is_moved_back_by_what_is_acknowledged(
    bench: Bench, shared: bool
) -> None:
    note = note_of(bench.epoch, CommitProgress(100, shared=True) if shared else None)
    bench.kafka.commits["g", "t", 0] = CommittedOffset(100, note)
    consumer, found = bench.consumer(bench.claim()), list[int]()

    def all_came() -> bool:
        found.extend(received(consumer))
        return len(found) >= 10

    wait_until(all_came, WAIT)
    assert found == list(range(10))
    consumer.acknowledge(Position(0, 6, epoch=bench.epoch), WAIT)
    assert bench.commit().offset == 7
    consumer.acknowledge(Position(0, 4, epoch=bench.epoch), WAIT)
    assert bench.commit().offset == 7
    consumer.acknowledge(Position(0, 9, epoch=bench.epoch), WAIT)
    assert bench.commit().offset == 10


def test_messages_that_retention_took_are_passed_over(bench: Bench) -> None:
    bench.kafka.remove("t", 4)
    consumer = bench.consumer(bench.claim())
    bench.kafka.store("t", b"10")
    assert received(consumer)[-1] == 10


def test_what_was_acknowledged_apart_is_not_received(bench: Bench) -> None:
    bench.acknowledge(0, 2, 3)
    bench.acknowledge(9)
    consumer = bench.consumer(bench.claim())
    assert received(consumer, limit=4) == [1, 4, 5, 6]
    assert received(consumer) == [7, 8]
    consumer.acknowledge(Position(0, 7), WAIT)
    assert bench.commit().progress() == CommitProgress(8, ((9, 10),), shared=True)
    assert epoch_of(bench.commit()) == bench.epoch
    consumer.acknowledge(Position(0, 8), WAIT)
    assert bench.commit().progress() == CommitProgress(10, (), shared=True)


def test_the_first_single_acknowledgement_waits_for_those_that_looked_before(bench: Bench) -> None:
    bench.acknowledge(2)
    assert (bench.outlasted, bench.kafka.committed) == (1, 2)
    bench.acknowledge(4)
    assert (bench.outlasted, bench.kafka.committed) == (1, 3)
    assert bench.commit().progress().apart == ((2, 3), (4, 5))


def test_a_single_acknowledgement_that_was_overwritten_is_made_once_more(bench: Bench) -> None:
    def overwrite(of: GroupPartition, deadline: float) -> None:
        if bench.commit().progress().shared and not bench.outlasted:
            bench.outlasted += 1
            bench.kafka.commits["g", "t", 0] = CommittedOffset(1, note_of(bench.epoch))

    bench.together = SharedCommits(bench.offsets, bench.node, overwrite)
    bench.acknowledge(5)
    assert bench.commit().progress() == CommitProgress(1, ((5, 6),), shared=True)


def test_all_up_to_a_message_is_acknowledged_together(bench: Bench) -> None:
    bench.acknowledge(2, 6)
    bench.acknowledge(4, cumulative=True)
    assert bench.commit().progress() == CommitProgress(5, ((6, 7),), shared=True)
    bench.acknowledge(3, cumulative=True)
    assert bench.commit().progress() == CommitProgress(5, ((6, 7),), shared=True)
    (state,) = bench.together.states(WHOLE, time.monotonic() + WAIT)
    assert state.mark_delete == Position(0, 4)
    assert state.acknowledged == ((Position(0, 6), Position(0, 6)),)
    assert state.backlog == 4
    bench.kafka.remove("t", 8)  # retention goes beyond what the group has
    (state,) = bench.together.states(WHOLE, time.monotonic() + WAIT)
    assert (state.mark_delete, state.backlog) == (None, 2)


def test_nothing_is_changed_of_a_group_that_was_reset_meanwhile(bench: Bench) -> None:
    of, made = GroupPartition(TOPIC, "g", "t", 0), list[CommitProgress]()
    with pytest.raises(FencedError):
        bench.together.change(
            of, bench.epoch - 1, lambda progress: progress, made.append, time.monotonic() + WAIT
        )
    assert made == []


def test_nothing_is_committed_when_the_turn_was_lost_meanwhile(bench: Bench) -> None:
    of, made = GroupPartition(TOPIC, "g", "t", 0), list[CommitProgress]()

    def change(progress: CommitProgress) -> CommitProgress:
        bench.node.close()  # the node's broker goes: another node may have the turn by now
        return progress.acknowledge((5, 6))

    with pytest.raises(BackendUnavailableError):
        bench.together.change(of, bench.epoch, change, made.append, time.monotonic() + WAIT)
    assert made == []


def test_turns_of_a_group_on_a_partition_come_one_after_the_other(bench: Bench) -> None:
    of, inside = GroupPartition(TOPIC, "g", "t", 0), threading.Event()
    go_on, order = threading.Event(), list[str]()

    def slow(progress: CommitProgress) -> CommitProgress:
        inside.set()
        assert go_on.wait(WAIT)
        return progress.acknowledge((1, 2))

    def commit(progress: CommitProgress) -> None:
        order.append("slow")
        deadline = time.monotonic() + WAIT
        bench.offsets.commit(
            "g", "t", {0: progress.offset}, note_of(bench.epoch, progress), deadline
        )

    def second() -> None:
        bench.acknowledge(3)
        order.append("second")

    bench.acknowledge(8)
    deadline = time.monotonic() + WAIT
    threads = [
        threading.Thread(
            target=bench.together.change, args=(of, bench.epoch, slow, commit, deadline)
        ),
        threading.Thread(target=second),
    ]
    threads[0].start()
    assert inside.wait(WAIT)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(WAIT)
    assert order == ["slow", "second"]
    assert bench.commit().progress().apart == ((1, 2), (3, 4), (8, 9))


def test_too_many_gaps_are_refused_before_anything_is_committed(bench: Bench) -> None:
    bench.kafka.store("t", *[b"x"] * 6_000)
    with pytest.raises(NotSupportedError):
        bench.acknowledge(*range(1, 6_000, 2))
    assert bench.kafka.committed == 0


def test_a_single_acknowledgement_of_before_a_reset_is_refused(bench: Bench) -> None:
    with pytest.raises(FencedError):
        bench.together.acknowledge(
            WHOLE,
            [Position(0, 5, epoch=bench.epoch - 1)],
            False,
            time.monotonic() + WAIT,
        )
    assert bench.kafka.committed == 0


def test_acknowledging_what_the_topic_never_had_is_refused_with_all_beside_it(
    bench: Bench,
) -> None:
    for entries in ((10,), (2, 10)):
        with pytest.raises(BadRequestError):
            bench.acknowledge(*entries)
    assert bench.kafka.committed == 0
    bench.acknowledge(2)
    assert bench.commit().progress() == CommitProgress(0, ((2, 3),), shared=True)


def test_what_readers_do_not_see_yet_is_acknowledged(bench: Bench) -> None:
    """Kafka confirms a transaction, as of a copy's batch, before its messages are readable."""
    bench.kafka.unmarked["t", 0] = 10
    bench.acknowledge(0, 1, 9)
    assert bench.commit().progress() == CommitProgress(2, ((9, 10),), shared=True)
    # All else goes by where readers get to, not by the log's end.
    deadline = deadline_in(WAIT)
    assert bench.offsets.end("t", 0, deadline) == 0
    assert bench.offsets.at("t", (0,), LATEST, deadline) == {0: 0}


def test_reader_waits_for_what_is_committed_to_be_marked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.kafka.unmarked["t", 0] = 10
    monkeypatch.setattr(offsets, "MARKER_SECONDS", 0.05)
    assert bench.offsets.settled_end("t", 0, deadline_in(WAIT)) == 0
    monkeypatch.setattr(offsets, "MARKER_SECONDS", WAIT)
    marking = threading.Timer(SOON, bench.kafka.unmarked.clear)
    marking.start()
    assert bench.offsets.settled_end("t", 0, deadline_in(WAIT)) == 10
    marking.join()


def test_a_position_that_did_not_move_for_long_is_committed_again_and_then_not_soon(
    bench: Bench,
) -> None:
    claim, reader = bench.claim(), bench.reader()
    bench.consumer(claim, reader)
    assert bench.kafka.committed == 0
    reader._refreshed = time.monotonic() - REFRESH_SECONDS
    for _ in range(2):
        bench.consumer(claim, reader)
        assert (bench.kafka.committed, bench.commit()) == (
            1,
            CommittedOffset(0, note_of(bench.epoch)),
        )


def test_a_position_is_not_committed_again_under_a_claim_that_another_poll_has_since(
    bench: Bench,
) -> None:
    claim, reader = bench.claim(), bench.reader()
    reader._refreshed = time.monotonic() - REFRESH_SECONDS
    grant = Grant(GROUP, NOT_PARTITIONED, claim.granted()[NOT_PARTITIONED])
    parts = bench.node, bench.together, bench.commits
    consumer = KafkaConsumer(*parts, grant, "g", reader, lambda: None)
    claim.release(PollOutcome.DELIVERED)
    bench.claim()
    consumer.start(Silent(), 0, bench.commit(), None, time.monotonic() + WAIT)
    assert bench.kafka.committed == 0
