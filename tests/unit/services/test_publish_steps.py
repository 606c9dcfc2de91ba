"""Publishing in steps: who leads, who waits, and who gives up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Batch, Receipt
from router.clocks.steps import YIELD_TO_LOOP, Steps, Wait
from router.errors import BackendTimeoutError, BackendUnavailableError, RouterError
from router.model import Message
from router.services.appending import MAX_BATCH_DELAY_SECONDS, Append
from router.services.batches import ENTRY_LIMITS, PublishBatch
from router.services.publish import PublishResult
from tests.unit.services.test_publish import ALICE, TOPIC, Bench, Recorded


class Meeting(Recorded):
    """Lets others go on while an append is under way, and keeps what it stored."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None
        self.under_way: set[int] = set()
        self.held: list[bytes] = []
        self.timeouts: list[float] = []

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        self.timeouts.append(timeout)
        assert batch.partition not in self.under_way, "two appends at once"
        self.under_way.add(batch.partition)
        self.batches.append(batch)
        try:
            self.meanwhile()
            if self.failures and (failure := self.failures.pop(0)) is not None:
                raise failure
            self.batches.remove(batch)
            receipt = super().publish(batch, timeout)
        finally:
            self.under_way.remove(batch.partition)
        self.held += [message.value for message in batch.messages]
        return receipt


class Walker:
    """A publish whose steps are taken by hand, no earlier than a server takes them."""

    def __init__(self, steps: Steps[PublishResult]) -> None:
        self.steps = steps
        self.begun = self.over = self.running = False
        self.wait: Wait | None = None
        self.woken = True
        self.result: PublishResult | None = None
        self.error: RouterError | None = None

    @property
    def ready(self) -> bool:
        """Whether it would be stepped now."""
        return self.woken and not self.running and not self.over

    def step(self) -> Wait | None:
        """Take the next step; return what it waits for, None: nothing any more."""
        assert self.ready
        self.begun, self.woken, self.running = True, False, True
        if self.wait is not None:
            self.wait[0].clear()
        try:
            self.wait = next(self.steps)
        except StopIteration as stop:
            self.result, self.over, self.wait = stop.value, True, None
        except RouterError as error:
            self.error, self.over, self.wait = error, True, None
        else:
            self.wait[0].call(self._wake)
        finally:
            self.running = False
        return self.wait

    def _wake(self) -> None:
        self.woken = True

    def close(self) -> None:
        """Give up."""
        assert not self.running
        if self.wait is not None:
            self.wait[0].clear()
        self.over = True
        self.steps.close()


@dataclass
class Crowd:
    """Publishers whose steps are taken by hand."""

    partitions: int = 0
    backend: Meeting = field(default_factory=Meeting)

    def __post_init__(self) -> None:
        self.bench = Bench(self.partitions, backend=self.backend)
        self.accumulators = self.bench.publisher._appender._accumulators

    def walker(self, *values: bytes, keyed: bool = False) -> Walker:
        """Return a publish of these messages; each its own key, or all together."""
        sent = [Message(value, value if keyed else None) for value in values]
        return Walker(self.bench.publisher.publish_steps(TOPIC, sent, ALICE))

    def while_first_appends(self, *values: bytes) -> list[Walker]:
        """Have publishes begin while another's append is under way; return them."""
        walkers = [self.walker(value) for value in values]

        def meanwhile() -> None:
            self.backend.meanwhile = lambda: None
            for walker in walkers:
                assert walker.step() is not None

        self.backend.meanwhile = meanwhile
        first = self.walker(b"first")
        assert first.step() is None
        assert first.result == PublishResult(1)
        return walkers

    def finish(self, walkers: list[Walker]) -> None:
        """Take the steps of all until none is left."""
        while left := [walker for walker in walkers if not walker.over]:
            ready = [walker for walker in left if walker.ready]
            assert ready, "all wait for one another"
            for walker in ready:
                if walker.ready:
                    walker.step()


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def test_lone_publisher_waits_for_nobody(crowd: Crowd) -> None:
    for _ in range(3):
        walker = crowd.walker(b"x")
        assert walker.step() is None
        assert walker.result == PublishResult(1)
    assert crowd.accumulators == {}


def test_others_wait_until_woken_when_one_leads(crowd: Crowd) -> None:
    others = crowd.while_first_appends(b"a", b"b", b"c")
    # Each waits for a wake-up of its own, as long as it takes; the first is told to lead.
    assert len({id(other.wait[0]) for other in others if other.wait}) == 3
    assert [other.wait and other.wait[1] for other in others] == [None] * 3
    assert [other.ready for other in others] == [True, False, False]
    assert crowd.backend.held == [b"first"]


def test_others_are_done_when_the_next_leader_finished(crowd: Crowd) -> None:
    leader, *others = crowd.while_first_appends(b"a", b"b", b"c")
    assert leader.step() == (YIELD_TO_LOOP, MAX_BATCH_DELAY_SECONDS)
    assert leader.step() is None
    assert [other.ready for other in others] == [True, True]
    assert [other.step() for other in others] == [None, None]
    assert [walker.result for walker in (leader, *others)] == [PublishResult(1)] * 3
    assert crowd.backend.held == [b"first", b"a", b"b", b"c"]
    assert len(crowd.backend.batches) == 2
    assert crowd.accumulators == {}


def test_leader_with_others_behind_it_takes_those_that_come_in_the_lull(
    crowd: Crowd,
) -> None:
    leader, behind = crowd.while_first_appends(b"a", b"b")
    assert leader.step() == (YIELD_TO_LOOP, MAX_BATCH_DELAY_SECONDS)
    late = crowd.walker(b"c")
    assert late.step() is not None
    assert leader.step() is None
    crowd.finish([behind, late])
    assert [len(batch.messages) for batch in crowd.backend.batches] == [1, 3]
    assert crowd.backend.held == [b"first", b"a", b"b", b"c"]


def test_first_of_the_next_round_lets_the_others_in_when_the_last_append_was_joined(
    crowd: Crowd,
) -> None:
    crowd.finish(crowd.while_first_appends(b"a", b"b"))
    leader, other = crowd.walker(b"c"), crowd.walker(b"d")
    assert leader.step() == (YIELD_TO_LOOP, MAX_BATCH_DELAY_SECONDS)
    assert other.step() is not None
    assert leader.step() is None
    assert other.step() is None
    assert crowd.backend.held[-2:] == [b"c", b"d"]
    assert len(crowd.backend.batches) == 3


def test_lull_is_not_waited_for_again_when_nobody_came(crowd: Crowd) -> None:
    crowd.finish(crowd.while_first_appends(b"a", b"b"))
    walker = crowd.walker(b"c")
    assert walker.step() == (YIELD_TO_LOOP, MAX_BATCH_DELAY_SECONDS)
    assert walker.step() is None
    assert crowd.walker(b"d").step() is None


def test_nothing_is_stored_of_one_that_gives_up_in_the_queue(crowd: Crowd) -> None:
    leader, leaver, other = crowd.while_first_appends(b"a", b"b", b"c")
    leaver.close()
    crowd.finish([leader, other])
    assert crowd.backend.held == [b"first", b"a", b"c"]
    assert crowd.accumulators == {}


def test_next_leads_when_one_gives_up_that_was_told_to(crowd: Crowd) -> None:
    leaver, *others = crowd.while_first_appends(b"a", b"b", b"c")
    assert leaver.ready
    leaver.close()
    assert [other.ready for other in others] == [True, False]
    crowd.finish(others)
    assert crowd.backend.held == [b"first", b"b", b"c"]
    assert crowd.accumulators == {}


def test_next_leads_when_the_leader_gives_up_in_the_lull(crowd: Crowd) -> None:
    leaver, *others = crowd.while_first_appends(b"a", b"b", b"c")
    assert leaver.step() == (YIELD_TO_LOOP, MAX_BATCH_DELAY_SECONDS)
    leaver.close()
    crowd.finish(others)
    assert crowd.backend.held == [b"first", b"b", b"c"]
    assert crowd.accumulators == {}


def test_lane_is_gone_when_all_give_up(crowd: Crowd) -> None:
    for walker in crowd.while_first_appends(b"a", b"b", b"c"):
        walker.close()
    assert crowd.accumulators == {}
    assert crowd.walker(b"after").step() is None
    assert crowd.backend.held == [b"first", b"after"]


def test_others_are_not_told_twice_when_one_gives_up_whose_append_is_under_way(
    crowd: Crowd,
) -> None:
    leader, leaver, other = crowd.while_first_appends(b"a", b"b", b"c")
    crowd.backend.meanwhile = leaver.close
    crowd.finish([leader, other])
    assert crowd.backend.held == [b"first", b"a", b"b", b"c"]
    assert crowd.accumulators == {}


def test_steps_that_were_never_taken_leave_nothing(crowd: Crowd) -> None:
    crowd.walker(b"x").close()
    assert (crowd.backend.batches, crowd.accumulators) == ([], {})


def test_failure_is_told_to_all_who_wait_for_the_append(crowd: Crowd) -> None:
    walkers = crowd.while_first_appends(b"a", b"b", b"c")
    crowd.backend.failures = [BackendUnavailableError("gone")]
    crowd.finish(walkers)
    assert [type(walker.error) for walker in walkers] == [BackendUnavailableError] * 3
    assert crowd.accumulators == {}


def test_who_waited_too_long_leads_nobody_and_hands_on(crowd: Crowd) -> None:
    leader, late = crowd.while_first_appends(b"a", b"b")
    crowd.bench.clock.advance(crowd.bench.timeout)
    fresh = crowd.walker(b"c")
    assert fresh.step() is not None
    crowd.finish([leader, late, fresh])
    assert isinstance(leader.error, BackendTimeoutError)
    assert isinstance(late.error, BackendTimeoutError)
    assert fresh.result == PublishResult(1)
    assert crowd.backend.held == [b"first", b"c"]


@pytest.mark.parametrize("more", [0, 1])
def test_as_many_messages_are_joined_as_an_entry_takes_and_not_one_more(
    crowd: Crowd, more: int
) -> None:
    large = [Message(b"")] * (ENTRY_LIMITS.max_messages - 1)
    check_joined(crowd, large, [Message(b"")] * (1 + more), joined=not more)


@pytest.mark.parametrize("more", [0, 1])
def test_as_many_bytes_are_joined_as_an_entry_takes_and_not_one_more(
    crowd: Crowd, more: int
) -> None:
    # Each message weighs more in an entry than its value.
    weight = PublishBatch([Message(b"")]).weight
    values = [900_000] * 4 + [ENTRY_LIMITS.max_bytes - 4 * 900_000 - 6 * weight - 100]
    large = [Message(bytes(size)) for size in values]
    check_joined(crowd, large, [Message(bytes(100 + more))], joined=not more)


def check_joined(
    crowd: Crowd, first: list[Message], second: list[Message], *, joined: bool
) -> None:
    """Publish both while another's append is under way; they go in one append or in two."""
    publishing = crowd.bench.publisher.publish_steps
    walkers = [Walker(publishing(TOPIC, sent, ALICE)) for sent in (first, second)]

    def meanwhile() -> None:
        crowd.backend.meanwhile = lambda: None
        for walker in walkers:
            assert walker.step() is not None

    crowd.backend.meanwhile = meanwhile
    assert crowd.walker(b"alone").step() is None
    crowd.finish(walkers)
    assert [walker.result for walker in walkers] == [
        PublishResult(len(first)),
        PublishResult(len(second)),
    ]
    sizes = [len(first) + len(second)] if joined else [len(first), len(second)]
    assert [len(batch.messages) for batch in crowd.backend.batches] == [1, *sizes]


def test_joined_append_has_until_the_latest_of_its_deadlines(crowd: Crowd) -> None:
    """One that came early must not take the time away that the others have."""
    leader, early = crowd.while_first_appends(b"a", b"b")
    assert leader.step() == (YIELD_TO_LOOP, MAX_BATCH_DELAY_SECONDS)
    crowd.bench.clock.advance(crowd.bench.timeout - 1)
    late = crowd.walker(b"c")
    assert late.step() is not None
    crowd.finish([leader, early, late])
    assert [len(batch.messages) for batch in crowd.backend.batches] == [1, 3]
    assert crowd.backend.timeouts == [crowd.bench.timeout] * 2


class Entered(Append):
    """What is entered without steps."""

    def called(self) -> None:
        """Ignore it."""


def test_request_that_one_append_does_not_take_leaves_its_turn_to_its_steps() -> None:
    bench = Bench(2)
    bench.topics.partitions(TOPIC)
    sent = [Message(b"turn"), *(Message(b"keyed", b"%d" % n) for n in range(9))]
    for _ in range(4):
        assert not bench.publisher.enter(TOPIC, Entered(PublishBatch(sent), 0.0))
        bench.publish(sent)
    stored = [
        (batch.partition, message) for batch in bench.backend.batches for message in batch.messages
    ]
    assert [at for at, message in stored if message.key is None] == [0, 1, 0, 1]


MOST = 6
moves = st.lists(
    st.tuples(st.integers(0, MOST - 1), st.sampled_from(["step"] * 4 + ["close"])), max_size=40
)


class Script:
    """Does what it is told to a crowd's walkers, some of it while appends are under way."""

    def __init__(
        self,
        crowd: Crowd,
        sent: list[list[bytes]],
        moves: list[tuple[int, str]],
        keyed: bool,
    ) -> None:
        self.crowd = crowd
        self.sent = sent
        self.moves = deque(moves)
        self.walkers = [crowd.walker(*values, keyed=keyed) for values in sent]
        self.order: list[int] = []
        self.unsent: set[bytes] = set()

    def play(self, most: int) -> None:
        """Make so many of the moves that are left."""
        for _ in range(min(most, len(self.moves))):
            if not self.moves:  # made while one of these was
                return
            at, what = self.moves.popleft()
            if at >= len(self.walkers) or self.walkers[at].running or self.walkers[at].over:
                continue
            if what == "close":
                self.close(at)
            elif self.walkers[at].ready:
                self.step(at)

    def step(self, at: int) -> None:
        """Take the next step of one."""
        if not self.walkers[at].begun:
            self.order.append(at)
        self.walkers[at].step()

    def close(self, at: int) -> None:
        """Have one give up: what is in no append yet shall never be in one."""
        taken = {m.value for batch in self.crowd.backend.batches for m in batch.messages}
        self.unsent |= set(self.sent[at]) - taken
        self.walkers[at].close()

    def finish(self) -> None:
        """Have all come to their end that did not give up."""
        for at, walker in enumerate(self.walkers):
            if not walker.begun and not walker.over:
                self.step(at)
        self.crowd.finish(self.walkers)


@pytest.mark.no_cover
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=MOST),
    told=moves,
    meanwhile=st.lists(st.integers(0, 4), max_size=10),
    failing=st.lists(st.booleans(), max_size=4),
    partitions=st.sampled_from([0, 2]),
)
def test_each_publish_is_stored_once_in_order_when_others_give_up_anywhere(
    sizes: list[int],
    told: list[tuple[int, str]],
    meanwhile: list[int],
    failing: list[bool],
    partitions: int,
) -> None:
    crowd = Crowd(partitions)
    sent = [[b"%d.%d" % (at, n) for n in range(size)] for at, size in enumerate(sizes)]
    script = Script(crowd, sent, told, keyed=partitions > 0)
    nested = iter(meanwhile)
    crowd.backend.meanwhile = lambda: script.play(next(nested, 0))
    crowd.backend.failures = [BackendUnavailableError("gone") if f else None for f in failing]
    script.play(len(told))
    script.finish()

    held = crowd.backend.held
    assert len(held) == len(set(held))
    assert not script.unsent & set(held)
    for walker, values in zip(script.walkers, sent, strict=True):
        if walker.result is not None:
            assert walker.result == PublishResult(len(values))
            assert set(values) <= set(held)
        elif walker.error is not None and not partitions:
            assert not set(values) & set(held)
    if not partitions:
        assert held == [value for at in script.order for value in sent[at] if value in held]
    assert crowd.accumulators == {}
