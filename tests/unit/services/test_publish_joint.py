"""Publishes to several partitions whose appends go together, and how each of them ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Batch, Settled
from router.backends.memory import MemoryBackend
from router.errors import BackendUnavailableError, QuotaExceededError, RouterError
from router.model import NOT_PARTITIONED, Message, TopicName
from router.services.appending import MAX_JOINT_BYTES, MAX_JOINT_PARTITIONS
from router.services.batches import ENTRY_LIMITS, PublishBatch
from router.services.partitioning import partition_of
from router.services.publish import PublishResult
from router.services.topic_metadata import TTL_SECONDS
from tests.unit.services.test_publish import ALICE, TOPIC
from tests.unit.services.test_publish_steps import Crowd, Entered, Meeting, Script, Walker

PARTITIONS = 4
WAIT = 30
KEYS = {partition_of(b"%d" % n, PARTITIONS): b"%d" % n for n in range(50)}


class Joint(Meeting):
    """Stores batches of many partitions at once; of those in `late` the outcome comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: set[int] = set()
        self.joined: list[list[int]] = []
        self.late: set[int] = set()
        self.refused: set[int] = set()
        self.owed: list[Callable[[], None]] = []

    def is_open(self, topic: TopicName, partition: int) -> bool:
        count = MemoryBackend.partitions(self, topic, 1)
        exists = 0 <= partition < count if count else partition == NOT_PARTITIONED
        return exists and partition not in self.closed

    def publish_many(self, batches: Sequence[Batch], timeout: float, settled: Settled) -> None:
        self.joined.append([batch.partition for batch in batches])
        now, self.meanwhile = self.meanwhile, lambda: None
        now()
        self.meanwhile = now
        for place, batch in enumerate(batches):
            if batch.partition in self.late:
                self.owed.append(partial(self._settle, place, batch, timeout, settled))
            else:
                self._settle(place, batch, timeout, settled)

    def pay(self) -> None:
        """Have what came late end."""
        owed, self.owed = self.owed, []
        for settle in owed:
            settle()

    def _settle(self, place: int, batch: Batch, timeout: float, settled: Settled) -> None:
        failure: RouterError | None = None
        try:
            if batch.partition in self.refused:
                raise QuotaExceededError("full")
            self.publish(batch, timeout)
        except RouterError as error:
            failure = error
        settled(place, failure)


class JointCrowd(Crowd):
    """Publishers to chosen partitions of a topic."""

    def __init__(self) -> None:
        self.joint = Joint()
        super().__init__(PARTITIONS, self.joint)

    def to(self, partition: int, *values: bytes) -> Walker:
        """Return a publish of these messages to a partition."""
        sent = [Message(value, KEYS[partition]) for value in values]
        return Walker(self.bench.publisher.publish_steps(TOPIC, sent, ALICE))

    def together(self, *walkers: Walker) -> Walker:
        """Begin all while an append is under way; return its publish."""

        def meanwhile() -> None:
            self.backend.meanwhile = lambda: None
            for walker in walkers:
                assert walker.step() is not None

        self.backend.meanwhile = meanwhile
        first = self.to(0, b"first")
        assert first.step() is None
        return first


@pytest.fixture
def crowd() -> JointCrowd:
    return JointCrowd()


def test_appends_of_many_partitions_go_together(crowd: JointCrowd) -> None:
    walkers = [crowd.to(n % 3, b"%d" % n) for n in range(7)]
    crowd.together(*walkers)
    crowd.finish(walkers)
    assert [walker.result for walker in walkers] == [PublishResult(1)] * 7
    assert crowd.joint.joined == [[0, 1, 2]]
    assert [len(batch.messages) for batch in crowd.backend.batches] == [1, 3, 2, 2]
    assert crowd.accumulators == {}


def test_a_partition_that_fails_fails_no_other(crowd: JointCrowd) -> None:
    walkers = [crowd.to(n % 3, b"%d" % n) for n in range(6)]
    crowd.together(*walkers)
    crowd.joint.refused = {1}
    crowd.finish(walkers)
    failed = [walker for walker in walkers if walker.error is not None]
    assert len(failed) == 2
    assert {type(walker.error) for walker in failed} == {QuotaExceededError}
    assert failed[0].error is not failed[1].error
    assert [walkers.index(walker) % 3 for walker in failed] == [1, 1]
    assert sorted(crowd.backend.held) == [b"0", b"2", b"3", b"5", b"first"]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_partition_that_is_late_holds_up_no_other(crowd: JointCrowd, late: int) -> None:
    """Neither those that went with it nor those that come then; the leader's own among them."""
    walkers = [crowd.to(n, b"%d" % n) for n in range(3)]
    crowd.together(*walkers)
    crowd.joint.late = {late}
    others = [walker for walker in walkers if walker is not walkers[late]]
    while any(not walker.over for walker in others):
        for walker in walkers:
            if walker.ready:
                walker.step()
    assert [walker.result for walker in others] == [PublishResult(1)] * 2
    crowd.joint.late = set()
    following = crowd.to(3, b"next")
    crowd.finish([following])
    assert following.result == PublishResult(1)
    assert not walkers[late].over
    assert not walkers[late].ready
    crowd.joint.pay()
    crowd.finish(walkers)
    assert walkers[late].result == PublishResult(1)


def test_a_late_failure_reaches_those_whose_it_is(crowd: JointCrowd) -> None:
    walkers = [crowd.to(n % 2, b"%d" % n) for n in range(4)]
    crowd.together(*walkers)
    crowd.joint.late = {0}
    for walker in (walkers[0], walkers[0]):
        walker.step()
    crowd.backend.failures = [BackendUnavailableError("gone")]
    crowd.joint.pay()
    crowd.finish(walkers)
    assert [walker.error is None for walker in walkers] == [False, True, False, True]
    assert crowd.accumulators == {}


def test_what_the_store_does_not_have_open_goes_by_itself(crowd: JointCrowd) -> None:
    crowd.joint.closed = {1, 2}
    walkers = [crowd.to(n, b"%d" % n) for n in (1, 2, 1)]

    def meanwhile() -> None:
        crowd.backend.meanwhile = lambda: None
        assert [walker.step() is None for walker in walkers] == [True, True, True]

    crowd.backend.meanwhile = meanwhile
    assert crowd.to(0, b"first").step() is None
    assert [walker.result for walker in walkers] == [PublishResult(1)] * 3
    assert crowd.joint.joined == []


def test_a_large_batch_goes_by_itself_and_what_follows_it_behind_it(crowd: JointCrowd) -> None:
    small = crowd.to(1, b"small")

    def meanwhile() -> None:
        crowd.backend.meanwhile = lambda: None
        assert small.step() is not None
        other = crowd.to(2, b"other")
        assert other.step() is None
        assert other.result == PublishResult(1)

    crowd.backend.meanwhile = meanwhile
    large = crowd.to(1, b"x" * MAX_JOINT_BYTES)
    assert large.step() is None
    crowd.finish([small])
    assert crowd.joint.joined == []
    assert crowd.backend.held[0] == b"other"
    assert crowd.backend.held[-1] == b"small"


def test_as_many_bytes_go_together_as_an_entry_takes(crowd: JointCrowd) -> None:
    value = b"x" * (MAX_JOINT_BYTES // 2)
    walkers = [crowd.to(n % 4, value) for n in range(200)]
    crowd.together(*walkers)
    crowd.finish(walkers)
    sizes: dict[int, int] = {}
    assert len(crowd.joint.joined) > 1
    batches = iter(crowd.backend.batches[1:])
    for number, partitions in enumerate(crowd.joint.joined):
        for _ in partitions:
            messages = next(batches).messages
            sizes[number] = sizes.get(number, 0) + sum(message.size() for message in messages)
    assert max(sizes.values()) <= ENTRY_LIMITS.max_bytes
    assert max(sizes.values()) > ENTRY_LIMITS.max_bytes / 2


def test_as_many_partitions_go_together_as_are_allowed() -> None:
    crowd = JointCrowd()
    names = [TopicName.parse(f"many-{n}") for n in range(MAX_JOINT_PARTITIONS + 1)]
    for name in names:
        crowd.backend.create_on_demand(name, 0, 1)
    walkers = [
        Walker(crowd.bench.publisher.publish_steps(name, [Message(b"v")], ALICE)) for name in names
    ]
    crowd.together(*walkers)
    crowd.finish(walkers)
    assert [len(partitions) for partitions in crowd.joint.joined] == [MAX_JOINT_PARTITIONS]
    assert {walker.result for walker in walkers} == {PublishResult(1)}


def test_a_topic_that_is_open_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = JointCrowd()
    name = TopicName.parse("plain")
    crowd.backend.create_on_demand(name, 0, 1)
    asked: list[TopicName] = []
    count = crowd.backend.partitions

    def partitions(topic: TopicName, timeout: float) -> int:
        asked.append(topic)
        return count(topic, timeout)

    monkeypatch.setattr(crowd.backend, "partitions", partitions)
    for closed, times in ((True, 1), (False, 1), (True, 2)):
        crowd.joint.closed = {NOT_PARTITIONED} if closed else set()
        crowd.bench.clock.advance(6)
        assert crowd.bench.topics.partitions(name) == 0
        assert asked == [name] * times


def test_a_publish_to_a_topic_that_is_open_is_begun_without_steps_at_any_time() -> None:
    crowd = JointCrowd()
    publisher, name = crowd.bench.publisher, TopicName.parse("plain")
    crowd.backend.create_on_demand(name, 0, 1)
    for closed in (False, True, False):
        crowd.joint.closed = {NOT_PARTITIONED} if closed else set()
        crowd.bench.clock.advance(TTL_SECONDS)
        append = Entered(PublishBatch([Message(b"v")]), 0.0)
        assert publisher.enter(name, append) is not closed
        if not closed:
            publisher.leave(append)


def test_a_leader_whose_failure_is_just_being_noted_waits_for_it(
    crowd: JointCrowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With threads the outcome may come while the call returns."""
    noting, returned = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    class SlowError(QuotaExceededError):
        def __str__(self) -> str:
            noting.set()
            assert returned.wait(WAIT)
            return "full"

    def publish_many(_: Sequence[Batch], __: float, settled: Settled) -> None:
        settled(1, None)
        threads.append(threading.Thread(target=settled, args=(0, SlowError("full"))))
        threads[0].start()
        assert noting.wait(WAIT)

    walkers = [crowd.to(0, b"refused"), crowd.to(1, b"stored")]
    crowd.together(*walkers)
    monkeypatch.setattr(crowd.joint, "publish_many", publish_many)
    walkers[0].step()
    walkers[0].step()
    returned.set()
    threads[0].join()
    crowd.finish(walkers)
    assert isinstance(walkers[0].error, QuotaExceededError)
    assert walkers[1].result == PublishResult(1)


class JointScript(Script):
    """Its walkers send to partitions in turn."""

    def __init__(
        self, crowd: JointCrowd, sent: list[list[bytes]], moves: list[tuple[int, str]]
    ) -> None:
        super().__init__(crowd, [], moves, keyed=False)
        self.sent = sent
        self.walkers = [crowd.to(at % PARTITIONS, *values) for at, values in enumerate(self.sent)]


MOST = 10


@given(
    sizes=st.lists(st.integers(1, 2), min_size=1, max_size=MOST),
    told=st.lists(
        st.tuples(st.integers(0, MOST - 1), st.sampled_from(["step"] * 5 + ["close"])), max_size=60
    ),
    meanwhile=st.lists(st.integers(0, 6), max_size=12),
    failing=st.lists(st.booleans(), max_size=8),
    late=st.sets(st.integers(0, PARTITIONS - 1), max_size=2),
    closed=st.sets(st.integers(0, PARTITIONS - 1), max_size=1),
)
def test_each_publish_is_stored_once_in_order_whatever_ends_late_or_fails(
    sizes: list[int],
    told: list[tuple[int, str]],
    meanwhile: list[int],
    failing: list[bool],
    late: set[int],
    closed: set[int],
) -> None:
    crowd = JointCrowd()
    crowd.joint.late, crowd.joint.closed = late, closed
    sent = [[b"%d.%d" % (at, n) for n in range(size)] for at, size in enumerate(sizes)]
    script = JointScript(crowd, sent, told)
    nested = iter(meanwhile)
    crowd.backend.meanwhile = lambda: script.play(next(nested, 0))
    crowd.backend.failures = [BackendUnavailableError("gone") if f else None for f in failing]
    script.play(len(told))
    crowd.joint.late = set()
    crowd.joint.pay()
    script.finish()
    crowd.joint.pay()

    held = crowd.backend.held
    assert len(held) == len(set(held))
    for walker, values in zip(script.walkers, sent, strict=True):
        assert walker.over
        if walker.result is not None:
            assert set(values) <= set(held)
        elif walker.error is not None:
            assert not set(values) & set(held)
    assert crowd.accumulators == {}
