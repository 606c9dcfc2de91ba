"""Groups that are copied between any two stores go on where they were."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from router.backends import Batch, Start
from router.errors import SubscriptionBusyError, SubscriptionNotFoundError
from router.model import Grant, Message, Stored, Subscription
from tests.contract.conftest import APACHE, KAFKA, WAIT, Bell, Opened, open_any, open_with_node
from tests.contract.copied import BYTES, Copy, left, opened_state, stored, values
from tests.contract.on_kafka import eventually

pytestmark = pytest.mark.contract

KINDS = ["memory", "embedded", KAFKA, APACHE]
FEW = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("foreign"), st.integers(1, 3)),
        st.tuples(st.just("copy"), st.integers(1, 6)),
        st.tuples(st.just("acknowledge"), st.lists(st.integers(0, 30), min_size=1, max_size=4)),
        st.tuples(st.just("upto"), st.integers(0, 30)),
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("sync"), st.just(0)),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def folder_of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


@pytest.fixture(scope="module", params=KINDS)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield open_any(request, tmp_path_factory.mktemp("target"), stack)


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Opened, Opened]]:
    folder = tmp_path_factory.mktemp("memory")
    with ExitStack() as stack:
        yield open_with_node("memory", folder, stack), open_with_node("memory", folder, stack)


class Story:
    """A copy to which things happen in any order, and what each group must still receive."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.done: set[bytes] = set()
        self.taken: set[bytes] = set()
        self.foreign: list[bytes] = []
        self._group = Subscription(copy.topic, "g")
        self._numbers = iter(range(1_000))
        copy.source.backend.subscribe(self._group, Start.EARLIEST, WAIT)

    def happen(self, what: str, how: object) -> None:
        getattr(self, f"_{what}")(how)

    def _publish(self, count: int) -> None:
        self.copy.publish(self.copy.source, [b"%d" % next(self._numbers) for _ in range(count)])

    def _foreign(self, count: int) -> None:
        news = [b"new-%d" % next(self._numbers) for _ in range(count)]
        self.copy.publish(self.copy.target, news)
        self.foreign += news

    def _copy(self, count: int) -> None:
        self.copy.copy(count)

    def _acknowledge(self, places: list[int]) -> None:
        self._acknowledged(places, cumulative=False)

    def _upto(self, place: int) -> None:
        self._acknowledged([place], cumulative=True)

    def _acknowledged(self, places: list[int], *, cumulative: bool) -> None:
        held = stored(self.copy.source, self.copy.topic)
        some = [held[place].position for place in places if place < len(held)]
        if some:
            self.copy.source.backend.acknowledge(self._group, some, cumulative, WAIT)

    def _take(self, count: int) -> None:
        """A subscriber of the target takes messages, as a poll does: up to the last one."""
        group = Subscription(self.copy.to, "g")
        self.copy.target.backend.subscribe(group, Start.EARLIEST, WAIT)
        found = left(self.copy.target, group)[:count]
        if found:
            upto = [found[-1].position]
            self.copy.target.backend.acknowledge(group, upto, True, WAIT)
            self.taken.update(values(found))

    def _sync(self, _: int) -> None:
        report = self.copy.sync()
        assert not report.failures

    def finish(self) -> None:
        while self.copy.copy(100):
            pass
        self._sync(0)


def check(source: Opened, target: Opened, folder: Path, steps: list[tuple[str, object]]) -> None:
    """Let steps happen; a subscriber of the target receives what the source would still give."""
    with opened_state(folder) as state:
        copy = Copy(source, target, state)
        story = Story(copy)
        for what, how in [("publish", 3), *steps]:
            story.happen(what, how)
        story.finish()
        here = stored(target, copy.to)
        kept = copy.left(source, "g")
        owed = {*kept, *story.foreign} - story.taken
        found = copy.left(target, "g")
        if "apache" in {source.kind, target.kind}:
            # It does not say which parts of an entry are acknowledged, and may keep none: then the
            # rest of an entry comes with what is left of it.
            repeated = beside(owed, stored(source, copy.topic)) | beside(owed, here)
            assert owed <= set(found) <= owed | repeated
            owed = set(found)
        assert found == [value for value in values(here) if value in owed]
        (cursor,) = target.backend.cursors(Subscription(copy.to, "g"), WAIT)
        # Kafka has a marker behind a transaction: the copy moves a group past it, and what a
        # subscriber acknowledges ends at a message.
        level = not (kept if target.kind == "kafka" else owed)
        if level and not story.foreign and target.kind != "apache":
            assert cursor.backlog == 0


def beside(some: set[bytes], held: list[Stored]) -> set[bytes]:
    """Return what lies in one entry with some of these values."""
    entries: dict[tuple[int, int], set[bytes]] = {}
    for one in held:
        place = one.position.ledger, one.position.entry
        entries.setdefault(place, set()).add(one.message.value)
    return set().union(*(entry for entry in entries.values() if entry & some))


@FEW
@example(steps=[("copy", 3), ("take", 3)])
@example(steps=[("take", 2), ("copy", 3), ("upto", 2)])
@given(steps=STEPS)
def test_a_subscriber_of_the_target_receives_what_the_source_would_give(
    source_and_target: tuple[Opened, Opened],
    folder_of_all: Path,
    steps: list[tuple[str, object]],
) -> None:
    check(*source_and_target, folder_of_all, steps)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_whatever_happens_in_whatever_order(
    in_memory: tuple[Opened, Opened], folder_of_all: Path, steps: list[tuple[str, object]]
) -> None:
    check(*in_memory, folder_of_all, steps)


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_group_that_is_level_has_nothing_left(
    in_memory: tuple[Opened, Opened], target: Opened, tmp_path: Path, partitions: int
) -> None:
    source, _ = in_memory
    with opened_state(tmp_path) as state:
        copy = Copy(source, target, state, partitions)
        group = Subscription(copy.topic, "g")
        source.backend.subscribe(group, Start.EARLIEST, WAIT)
        for partition in copy.partitions:
            for value in (b"a", b"b", b"c"):
                copy.publish(source, [value, value], partition)
                copy.copy(4, partition)
            copy.copy(100, partition)
            last = stored(source, copy.topic, partition)[-1].position
            source.backend.acknowledge(group, [last], True, WAIT)
        report = copy.sync()
        assert (report.groups, report.synced, report.waiting, report.failures) == (1, 1, 0, [])
        states = target.backend.cursors(Subscription(copy.to, "g"), WAIT)
        assert [state.backlog for state in states] == [0] * len(copy.partitions)
        assert copy.sync().synced == 0


def test_a_group_behind_the_marker_of_a_transaction_is_not_ahead_of_the_copy(
    in_memory: tuple[Opened, Opened], on_kafka: Opened, tmp_path: Path
) -> None:
    with opened_state(tmp_path) as state:
        copy = Copy(on_kafka, in_memory[1], state)
        batch = Batch(copy.topic, -1, [Message(b"a"), Message(b"b")], "named")
        on_kafka.backend.publish(batch, WAIT)
        # Only then does the partition end behind the marker.
        eventually(lambda: len(stored(on_kafka, copy.topic)) == 2)
        on_kafka.backend.subscribe(Subscription(copy.topic, "g"), Start.LATEST, WAIT)
        copy.copy(1)
        assert copy.sync(last=True).waiting == 1
        copy.copy(1)
        report = copy.sync(last=True)
        assert (report.waiting, report.failures) == (0, [])
        assert copy.left(copy.target, "g") == []


class Taker(threading.Thread):
    """A subscriber of the target that takes what there is, and acknowledges all that it took."""

    def __init__(self, copy: Copy) -> None:
        super().__init__()
        self.received: list[bytes] = []
        self.ends = threading.Event()
        self._copy = copy

    def run(self) -> None:
        while not self.ends.is_set():
            self.take()

    def take(self) -> None:
        group = Subscription(self._copy.to, "g")
        try:
            consumer = self._copy.target.backend.consume(Grant(group, -1, 1), Bell(), WAIT)
        except (SubscriptionBusyError, SubscriptionNotFoundError):
            return
        with closing(consumer):
            found = consumer.receive(3, BYTES, WAIT)
            if found:
                consumer.acknowledge(found[-1].position, WAIT)
                self.received += values(found)
        time.sleep(0.005)


@pytest.mark.timeout(120)
def test_a_subscriber_that_moved_already_is_never_moved_back_and_misses_nothing(
    in_memory: tuple[Opened, Opened], target: Opened, tmp_path: Path
) -> None:
    source, _ = in_memory
    with opened_state(tmp_path) as state:
        copy = Copy(source, target, state)
        group = Subscription(copy.topic, "g")
        source.backend.subscribe(group, Start.EARLIEST, WAIT)
        copy.sync()
        taker = Taker(copy)
        taker.start()
        done = set()
        try:
            for number in range(12):
                copy.publish(source, [b"%d" % number])
                if number % 3 == 0:
                    # Done at the source before it is copied: it may come or not.
                    upto = stored(source, copy.topic)[-1].position
                    source.backend.acknowledge(group, [upto], False, WAIT)
                    done.add(b"%d" % number)
                copy.publish(target, [b"new-%d" % number])
                copy.copy(2)
                assert not copy.sync().failures or target.kind == "apache"
        finally:
            taker.ends.set()
            taker.join()
        copy.sync(last=True)
        while copy.left(target, "g"):
            taker.take()
        assert len(taker.received) == len(set(taker.received))
        assert set(values(stored(target, copy.to))) - done <= set(taker.received)
