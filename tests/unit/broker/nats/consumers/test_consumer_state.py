"""The state machine of a consumer against a plain model, over all that clients and time do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from router.broker.consume.cursor.pending import MAX_PENDING, UNLIMITED, AckScope, DeliveryRules
from router.broker.nats.consumers.state import ConsumerState, DeliveryPosition

SECOND = 1_000_000_000
WAIT = 30 * SECOND


class Modelled(RuleBasedStateMachine):
    """A consumer; the model keeps, of each message, everything in the plainest form.

    `due` are messages that wait for another delivery, `deadlines` the others that are pending;
    `settled` messages were acknowledged or terminated, `exhausted` ones were delivered too often.
    """

    policy = AckScope.EXPLICIT

    @initialize(
        start=st.integers(1, 4),
        backoff=st.lists(st.integers(1, 20), max_size=3),
        max_deliver=st.sampled_from([UNLIMITED, 1, 2, 4]),
        limit=st.sampled_from([MAX_PENDING, 1, 3]),
    )
    def begin(self, start: int, backoff: list[int], max_deliver: int, limit: int) -> None:
        self.ack_rules = DeliveryRules(
            self.policy,
            WAIT,
            tuple(one * SECOND for one in backoff),
            max_deliver,
            limit,
            keeps_exhausted=True,
        )
        self.state = ConsumerState(self.ack_rules, start)
        self.start, self.now = start, 1_000 * SECOND
        self.first, self.last, self.next = 1, start - 1, start
        self.deliveries = 0
        self.counts: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.deadlines: dict[int, int] = {}
        self.due: list[int] = []
        self.settled: set[int] = set()
        self.exhausted: set[int] = set()
        self.note = self.state.dump()

    @property
    def pending(self) -> list[int]:
        return sorted([*self.deadlines, *self.due])

    def wait(self, sequence: int) -> int:
        times = self.ack_rules.backoff or (WAIT,)
        return times[min(self.counts[sequence], len(times)) - 1]

    def forget(self, sequence: int) -> None:
        self.deadlines.pop(sequence, None)
        if sequence in self.due:
            self.due.remove(sequence)

    def expire(self, sequence: int) -> None:
        if 0 < self.ack_rules.max_deliver <= self.counts[sequence]:
            self.forget(sequence)
            self.exhausted.add(sequence)
        elif sequence not in self.due:
            self.forget(sequence)
            self.due.append(sequence)

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        self.last += count

    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        for _ in range(count):
            again = self.state.next_redelivery()
            assert again == (self.due[0] if self.due else None)
            sequence = self.next if again is None else again
            if again is None:
                limit = self.ack_rules.max_pending
                allowed = len(self.pending) < limit
                assert self.state.may_deliver_new is allowed
                if not allowed or sequence > self.last:
                    return
                self.next += 1
                # The cursor has acknowledgements that the note did not know of.
                if sequence in self.settled:
                    self.state.pass_over(sequence, acknowledged=True)
                    continue
            self.deliveries += 1
            self.counts[sequence] = self.counts.get(sequence, 0) + 1
            self.state.deliver(sequence, self.now)
            assert self.state.delivered.consumer == self.deliveries
            self.forget(sequence)
            if self.policy is not AckScope.NONE:
                self.numbers.setdefault(sequence, self.deliveries)
                self.deadlines[sequence] = self.now + self.wait(sequence)

    @precondition(lambda self: not self.due)
    @rule(count=st.integers(1, 4))
    def deliver_run(self, count: int) -> None:
        """Several new messages at once are as many, one after the other."""
        one_by_one = ConsumerState.load(self.ack_rules, self.state.dump())
        limit = self.ack_rules.max_pending
        if self.policy is not AckScope.NONE:
            assert self.state.num_deliverable == max(0, limit - len(self.pending))
        count = min(count, self.state.num_deliverable, self.last + 1 - self.next)
        run = range(self.next, self.next + count)
        if count <= 0 or not self.settled.isdisjoint(run):
            return
        for sequence in run:
            one_by_one.deliver(sequence, self.now)
            self.deliveries += 1
            self.counts[sequence] = 1
            if self.policy is not AckScope.NONE:
                self.numbers.setdefault(sequence, self.deliveries)
                self.deadlines[sequence] = self.now + self.wait(sequence)
        self.next += count
        self.state.deliver_new(run, self.now)
        assert self.state.dump() == one_by_one.dump()
        assert self.state.next_deadline() == one_by_one.next_deadline()

    @precondition(lambda self: self.policy is AckScope.EXPLICIT)
    @rule(data=st.data())
    def acknowledge_run(self, data: Any) -> None:
        """Several acknowledgements at once are as many, one after the other."""
        one_by_one = ConsumerState.load(self.ack_rules, self.state.dump())
        sequences = data.draw(st.lists(st.integers(1, self.last + 2), max_size=6))
        expected = [done for one in sequences for done in one_by_one.acknowledge(one, 0)]
        done = self.state.acknowledge_each(sequences)
        assert sorted(done) == sorted(expected)
        assert json.loads(self.state.dump())[0] == json.loads(one_by_one.dump())[0]
        for one in done:
            self.forget(one)
            self.exhausted.discard(one)
            self.settled.add(one)

    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        sequence = data.draw(st.integers(1, self.last + 2))
        number = self.numbers.get(sequence, self.deliveries)
        done = self.state.acknowledge(sequence, number)
        if self.policy is AckScope.ALL:
            reached = sequence < self.next and sequence > self.floor_before.stream
            reached = reached and number > self.floor_before.consumer
            pool = [one for one in [*self.pending, *self.exhausted] if one <= sequence]
            expected = sorted(pool) if reached else []
        else:
            expected = [sequence] if sequence in [*self.pending, *self.exhausted] else []
        assert done == expected
        for one in done:
            self.forget(one)
            self.exhausted.discard(one)
            self.settled.add(one)

    @rule(data=st.data(), delay=st.none() | st.integers(0, 40))
    def refuse(self, data: Any, delay: int | None) -> None:
        sequence = data.draw(st.integers(1, self.last + 2))
        delay_ns = None if delay is None else delay * SECOND
        known = sequence in self.pending
        assert self.state.refuse(sequence, self.now, delay_ns) is known
        if known and delay_ns is not None:
            self.forget(sequence)
            self.deadlines[sequence] = self.now + delay_ns
        elif known:
            self.expire(sequence)

    @rule(data=st.data())
    def extend(self, data: Any) -> None:
        sequence = data.draw(st.integers(1, self.last + 2))
        assert self.state.extend(sequence, self.now) is (sequence in self.pending)
        if sequence in self.deadlines:
            self.deadlines[sequence] = self.now + self.wait(sequence)

    @rule(seconds=st.integers(0, 40))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND
        over = sorted(one for one, deadline in self.deadlines.items() if deadline <= self.now)
        before = set(self.exhausted)
        for one in over:
            self.expire(one)
        assert self.state.tick(self.now) == sorted(self.exhausted - before)

    @rule(count=st.integers(0, 3))
    def trim(self, count: int) -> None:
        self.first = min(self.first + count, self.last + 1)
        gone = [one for one in self.pending if one < self.first]
        assert self.state.trim(self.first) == gone
        for one in gone:
            self.forget(one)
        self.exhausted = {one for one in self.exhausted if one >= self.first}
        self.next = max(self.next, self.first)

    @rule(first=st.integers(1, 20), count=st.integers(1, 40))
    def delete(self, first: int, count: int) -> None:
        last = min(first + count - 1, self.next - 1)
        gone = [one for one in self.pending if first <= one <= last]
        assert self.state.settle_range(first, last) == gone
        for one in gone:
            self.forget(one)
        self.settled.update(one for one in gone)
        lost = {one for one in self.exhausted if first <= one <= last}
        self.exhausted -= lost
        self.settled |= lost

    @rule()
    def restart(self) -> None:
        """What waits for its delivery is queued by the next tick, in the order of the stream."""
        self.state = ConsumerState.load(self.ack_rules, self.state.dump())
        over = [one for one, deadline in self.deadlines.items() if deadline <= self.now]
        for one in over:
            self.expire(one)
        self.due.sort()
        self.state.tick(self.now)

    @rule()
    def write_note(self) -> None:
        self.note = self.state.dump()

    @precondition(lambda self: self.policy is AckScope.EXPLICIT)
    @rule()
    def crash(self) -> None:
        """The note is old; acknowledgements are not: they have their own place."""
        state = ConsumerState.load(self.ack_rules, self.note)
        state.settle(one for one in list(state.pending()) if one in self.settled)
        state.trim(self.first)
        lost = set(range(max(self.first, self.start), self.next))
        lost -= self.settled
        assert all(one >= state.next_sequence or state.needs(one) for one in lost)
        # From here on the model is what the note says: deliveries since then may be repeated.
        self.state = ConsumerState.load(self.ack_rules, state.dump())
        self.state.tick(self.now)
        self.adopt()

    def adopt(self) -> None:
        self.next = self.state.next_sequence
        self.deliveries = self.state.delivered.consumer
        self.exhausted = set(self.state.exhausted)
        rows = list(self.state.deliveries())
        self.counts = {one.sequence: one.attempts for one in rows}
        self.numbers = {one.sequence: one.consumer_sequence for one in rows}
        self.deadlines = {
            one.sequence: one.deadline_ns for one in rows if one.deadline_ns is not None
        }
        self.due = list(self.state._pending.due.ranks)

    @invariant()
    def agrees(self) -> None:
        state = self.state
        assert list(state.pending()) == self.pending
        assert state.num_pending_acks == len(self.pending)
        assert state.num_queued == len(self.due)
        assert state.num_redelivered == sum(self.counts[one] > 1 for one in self.pending)
        assert state.exhausted == self.exhausted
        assert state.next_deadline() == min(self.deadlines.values(), default=None)
        assert state.delivered == DeliveryPosition(self.deliveries, self.next - 1)
        for one in range(self.first, self.last + 1):
            waits = one >= self.next or one in self.pending or one in self.exhausted
            assert state.needs(one) is waits
        if self.pending and self.policy is not AckScope.NONE:
            assert state.floor.stream < self.pending[0]
            assert state.floor.consumer < self.numbers[self.pending[0]]
        assert state.floor.stream <= state.delivered.stream
        assert state.floor.consumer <= state.delivered.consumer
        self.floor_before = state.floor

    def teardown(self) -> None:
        """Nothing is lost: who goes on receiving and acknowledging gets all that is left."""
        if not hasattr(self, "state") or self.policy is not AckScope.EXPLICIT:
            return
        self.now += 100 * SECOND
        self.state.tick(self.now)
        missing = set(range(max(self.next, self.first), self.last + 1)) - self.settled
        missing |= set(self.state.pending())
        for _ in range(10 * self.last):
            again = self.state.next_redelivery()
            sequence = self.state.next_sequence if again is None else again
            if again is None and sequence > self.last:
                break
            self.state.deliver(sequence, self.now)
            assert self.state.acknowledge(sequence, 1) == [sequence]
            missing.discard(sequence)
        assert not missing
        assert self.state.floor == self.state.delivered


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("policy", [AckScope.NONE, AckScope.ALL, AckScope.EXPLICIT])
def test_consumer_agrees_with_a_plain_model(policy: AckScope) -> None:
    machine = type("Machine", (Modelled,), {"policy": policy})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=80, stateful_step_count=40, deadline=None)
    )


def acknowledged_in_turn(state: ConsumerState, *sequences: int) -> list[DeliveryPosition]:
    floors = []
    for one in sequences:
        state.acknowledge(one, one)
        floors.append(state.floor)
    return floors


def test_floor_moves_over_a_gap_once_it_is_closed() -> None:
    state = ConsumerState(DeliveryRules(), 1)
    for sequence in (2, 5, 9):
        state.deliver(sequence, 0)
    assert acknowledged_in_turn(state, 5, 2, 9) == [(0, 0), (2, 8), (3, 9)]


def test_listed_messages_come_first_and_then_what_follows() -> None:
    state = ConsumerState(DeliveryRules(), 1)
    state.begin_with([3, 7], 8)
    assert [state.needs(one) for one in (3, 4, 7, 8, 9)] == [True, False, True, False, True]
    state.deliver(3, 0)
    assert list(state.listed) == [7]
    state.deliver(7, 0)
    assert state.next_sequence == 9


def test_a_list_without_messages_ends_at_once() -> None:
    state = ConsumerState(DeliveryRules(), 1)
    state.begin_with([], 8)
    assert state.next_sequence == 9


def test_delivering_what_is_acknowledged_is_refused() -> None:
    state = ConsumerState(DeliveryRules(), 1)
    state.deliver(1, 0)
    state.acknowledge(1, 1)
    with pytest.raises(ValueError, match="delivered before"):
        state.deliver(1, 0)


@pytest.mark.parametrize("text", ["", "{}", "[[9,0,1,0,0,0],[],[]]", "[[1,0,1,0,0,0],[1],[]]"])
def test_text_that_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="stored consumer"):
        ConsumerState.load(DeliveryRules(), text)
