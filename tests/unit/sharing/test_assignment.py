"""Laws of the deal: a stateful model plays groups against it, and single cases name the rules."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.sharing.assignment import Assign, PartitionAssignor, Revoke

IDLE = 5.0
IDS = st.sampled_from(["a", "b", "c", "d"])


class DealModel(RuleBasedStateMachine):
    """Polls come, give up and go; what they were told must add up to the promises."""

    def __init__(self) -> None:
        super().__init__()
        self.assignor: PartitionAssignor[int] = PartitionAssignor(range(5), IDLE)
        self.now = 0.0
        self.polls: dict[int, str] = {}
        self.order: dict[str, list[int]] = {}
        self.idle: dict[str, float] = {}
        self.elsewhere: frozenset[str] = frozenset()
        self.holders: dict[int, int] = {}
        self.asked: set[tuple[int, int]] = set()
        self.next_poll = 0

    def follow(self) -> None:
        for change in self.assignor.changes():
            if isinstance(change, Assign):
                assert change.partition not in self.holders, "two holders of a partition"
                assert self.polls[change.holder] == change.consumer
                assert self.order[change.consumer][0] == change.holder, "overtaken in the queue"
                self.holders[change.partition] = change.holder
            else:
                assert self.holders[change.partition] == change.holder, "revoked, never granted"
                assert (change.holder, change.partition) not in self.asked, "asked twice"
                self.asked.add((change.holder, change.partition))

    def drop(self, poll: int, partitions: set[int]) -> None:
        for partition in partitions & {p for p, h in self.holders.items() if h == poll}:
            del self.holders[partition]
            self.asked.discard((poll, partition))

    @rule(consumer=IDS)
    def claim(self, consumer: str) -> None:
        self.next_poll += 1
        self.polls[self.next_poll] = consumer
        self.order.setdefault(consumer, []).append(self.next_poll)
        self.idle.pop(consumer, None)
        self.assignor.claim(consumer, self.next_poll, self.now)
        self.follow()

    @precondition(lambda self: self.polls)
    @rule(data=st.data(), partitions=st.sets(st.integers(0, 4)))
    def give_up(self, data: st.DataObject, partitions: set[int]) -> None:
        poll = data.draw(st.sampled_from(sorted(self.polls)))
        self.drop(poll, partitions)
        self.assignor.give_up(poll, partitions, self.now)
        self.follow()

    @precondition(lambda self: self.polls)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        poll = data.draw(st.sampled_from(sorted(self.polls)))
        consumer = self.polls.pop(poll)
        self.order[consumer].remove(poll)
        if not self.order[consumer]:
            self.idle[consumer] = self.now + IDLE
        self.drop(poll, set(range(5)))
        self.assignor.release(poll, self.now)
        self.follow()

    @rule(step=st.sampled_from([0.5, 3.0, IDLE]))
    def wait(self, step: float) -> None:
        self.now += step
        self.assignor.tick(self.now)
        self.idle = {c: until for c, until in self.idle.items() if until > self.now}
        self.follow()

    @rule(consumers=st.frozensets(IDS))
    def hear_of_other_nodes(self, consumers: frozenset[str]) -> None:
        self.elsewhere = consumers
        self.assignor.set_remote_members(consumers)
        self.follow()

    @invariant()
    def holders_agree(self) -> None:
        assert self.holders == {
            p: h for p in range(5) if (h := self.assignor.holder(p)) is not None
        }

    @invariant()
    def live_ids_are_those_that_poll_or_polled_just_now(self) -> None:
        live = {c for c, polls in self.order.items() if polls} | set(self.idle)
        assert self.assignor.live() == live
        assert self.assignor.members() == live | self.elsewhere

    @invariant()
    def all_partitions_are_dealt_evenly_among_live_ids(self) -> None:
        live = self.assignor.members()
        assert self.assignor.owned() == (set(range(5)) if live else set())
        shares = [sum(self.assignor.owner(p) == c for p in range(5)) for c in live]
        assert sum(shares) == (5 if live else 0)
        assert not live or max(shares) - min(shares) <= 1

    @invariant()
    def what_is_dealt_to_a_polling_id_is_held_by_it_or_asked_back_for_it(self) -> None:
        for partition in range(5):
            owner = self.assignor.owner(partition)
            if owner is None or not self.order.get(owner):
                continue
            holder = self.holders.get(partition)
            assert holder is not None, "free, though its owner polls"
            assert self.polls[holder] == owner or (holder, partition) in self.asked

    @invariant()
    def what_is_held_and_dealt_to_another_id_is_asked_back(self) -> None:
        for partition, holder in self.holders.items():
            foreign = self.assignor.owner(partition) != self.polls[holder]
            assert not foreign or self.assignor.is_revoked(partition)
            assert self.assignor.is_revoked(partition) == ((holder, partition) in self.asked)

    @invariant()
    def a_poll_waits_behind_the_first_of_its_id(self) -> None:
        for poll, consumer in self.polls.items():
            first = self.order[consumer][0]
            assert self.assignor.poll_before(poll) == (None if first == poll else first)

    @invariant()
    def the_deadline_is_that_of_the_first_id_to_be_forgotten(self) -> None:
        assert self.assignor.next_deadline() == min(self.idle.values(), default=None)


TestDealModel = DealModel.TestCase
TestDealModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def told(assignor: PartitionAssignor[str]) -> list[tuple[str, str, int]]:
    return [(type(c).__name__, c.holder, c.partition) for c in assignor.changes()]


@given(ids=st.sets(st.text(max_size=6), min_size=1, max_size=12), partitions=st.integers(1, 12))
def test_owners_are_the_same_when_ids_come_in_any_order(ids: set[str], partitions: int) -> None:
    deals: list[PartitionAssignor[str]] = [
        PartitionAssignor(range(partitions), IDLE),
        PartitionAssignor(range(partitions), IDLE),
    ]
    for assignor, order in zip(deals, (sorted(ids), sorted(ids, reverse=True)), strict=True):
        for consumer in order:
            assignor.claim(consumer, consumer, 0)
    one, other = ([assignor.owner(p) for p in range(partitions)] for assignor in deals)
    assert one == other


@given(
    homes=st.lists(st.sets(IDS), min_size=1, max_size=4),
    partitions=st.integers(1, 9),
    late=st.booleans(),
)
def test_every_node_finds_the_same_owners_when_all_know_of_the_same_ids(
    homes: list[set[str]], partitions: int, late: bool
) -> None:
    deals = []
    for node, own in enumerate(homes):
        others = frozenset[str]().union(*homes[:node], *homes[node + 1 :])
        assignor: PartitionAssignor[str] = PartitionAssignor(range(partitions), IDLE)
        if not late:
            assignor.set_remote_members(others)
        for consumer in own:
            assignor.claim(consumer, consumer, 0)
        assignor.set_remote_members(others)
        for partition in [p for p in range(partitions) if assignor.is_revoked(p)]:
            assignor.give_up(assignor.holder(partition) or "", [partition], 0)
        deals.append(assignor)
    for partition in range(partitions):
        owners = {assignor.owner(partition) for assignor in deals}
        assert len(owners) == 1
        holders = [assignor.holder(partition) for assignor in deals]
        where = [own for own in homes if owners <= own]
        assert [holder for holder in holders if holder] == [*owners] * len(where)


def test_hand_over_happens_when_the_holder_gives_up() -> None:
    assignor: PartitionAssignor[str] = PartitionAssignor([0, 1], IDLE)
    assignor.claim("a", "poll of a", 0)
    assert told(assignor) == [("Assign", "poll of a", 0), ("Assign", "poll of a", 1)]
    assignor.claim("b", "poll of b", 1)
    ((kind, holder, partition),) = told(assignor)
    assert (kind, holder) == ("Revoke", "poll of a")
    assignor.give_up("poll of a", [partition], 2)
    assert told(assignor) == [("Assign", "poll of b", partition)]


def test_partitions_of_an_id_stay_its_own_while_it_is_idle() -> None:
    assignor: PartitionAssignor[str] = PartitionAssignor([-1], IDLE)
    first = "a" if _wins("a", "b") else "b"
    other = "b" if first == "a" else "a"
    assignor.claim(first, "first", 0)
    assignor.claim(other, "other", 0)
    assignor.release("first", 1)
    assignor.changes()
    assignor.tick(1 + IDLE - 0.1)
    assert told(assignor) == []
    assignor.tick(1 + IDLE)
    assert told(assignor) == [("Assign", "other", -1)]


def test_second_poll_of_an_id_gets_the_partitions_when_the_first_ends() -> None:
    assignor: PartitionAssignor[str] = PartitionAssignor([-1], IDLE)
    assignor.claim("a", "first", 0)
    assignor.claim("a", "second", 0)
    assignor.claim("a", "third", 0)
    assignor.changes()
    assignor.release("second", 1)
    assert told(assignor) == []
    assignor.release("first", 1)
    assert told(assignor) == [("Assign", "third", -1)]


def test_giving_up_what_another_holds_changes_nothing() -> None:
    assignor: PartitionAssignor[str] = PartitionAssignor([-1], IDLE)
    assignor.claim("a", "first", 0)
    assignor.claim("a", "second", 0)
    assignor.changes()
    assignor.give_up("second", [-1], 0)
    assignor.release("nobody", 0)
    assert (told(assignor), assignor.holder(-1)) == ([], "first")


def test_resize_deals_new_partitions_and_asks_old_ones_back() -> None:
    assignor: PartitionAssignor[str] = PartitionAssignor([-1], IDLE)
    assignor.claim("a", "poll", 0)
    assignor.changes()
    assignor.resize([0, 1])
    assert [type(c) for c in assignor.changes()] == [Revoke, Assign, Assign]
    assignor.give_up("poll", [-1], 0)
    assert (told(assignor), assignor.held("poll")) == ([], {0, 1})


def _wins(one: str, other: str) -> bool:
    assignor: PartitionAssignor[str] = PartitionAssignor([-1], IDLE)
    assignor.claim(one, one, 0)
    assignor.claim(other, other, 0)
    return assignor.owner(-1) == one
