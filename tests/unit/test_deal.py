"""Laws of the deal: a stateful model plays groups against it, and single cases name the rules."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.deal import Deal, Grant, Revoke

IDLE = 5.0
IDS = st.sampled_from(["a", "b", "c", "d"])


class DealModel(RuleBasedStateMachine):
    """Polls come, give up and go; what they were told must add up to the promises."""

    def __init__(self) -> None:
        super().__init__()
        self.deal: Deal[int] = Deal(range(5), IDLE)
        self.now = 0.0
        self.polls: dict[int, str] = {}
        self.order: dict[str, list[int]] = {}
        self.idle: dict[str, float] = {}
        self.elsewhere: frozenset[str] = frozenset()
        self.holders: dict[int, int] = {}
        self.asked: set[tuple[int, int]] = set()
        self.next_poll = 0

    def follow(self) -> None:
        for change in self.deal.changes():
            if isinstance(change, Grant):
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
        self.deal.claim(consumer, self.next_poll, self.now)
        self.follow()

    @precondition(lambda self: self.polls)
    @rule(data=st.data(), partitions=st.sets(st.integers(0, 4)))
    def give_up(self, data: st.DataObject, partitions: set[int]) -> None:
        poll = data.draw(st.sampled_from(sorted(self.polls)))
        self.drop(poll, partitions)
        self.deal.give_up(poll, partitions, self.now)
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
        self.deal.release(poll, self.now)
        self.follow()

    @rule(step=st.sampled_from([0.5, 3.0, IDLE]))
    def wait(self, step: float) -> None:
        self.now += step
        self.deal.tick(self.now)
        self.idle = {c: until for c, until in self.idle.items() if until > self.now}
        self.follow()

    @rule(consumers=st.frozensets(IDS))
    def hear_of_other_nodes(self, consumers: frozenset[str]) -> None:
        self.elsewhere = consumers
        self.deal.set_elsewhere(consumers)
        self.follow()

    @invariant()
    def holders_agree(self) -> None:
        assert self.holders == {p: h for p in range(5) if (h := self.deal.holder(p)) is not None}

    @invariant()
    def live_ids_are_those_that_poll_or_polled_just_now(self) -> None:
        live = {c for c, polls in self.order.items() if polls} | set(self.idle)
        assert self.deal.live() == live
        assert self.deal.everywhere() == live | self.elsewhere

    @invariant()
    def all_partitions_are_dealt_evenly_among_live_ids(self) -> None:
        live = self.deal.everywhere()
        assert self.deal.owned() == (set(range(5)) if live else set())
        shares = [sum(self.deal.owner(p) == c for p in range(5)) for c in live]
        assert sum(shares) == (5 if live else 0)
        assert not live or max(shares) - min(shares) <= 1

    @invariant()
    def what_is_dealt_to_a_polling_id_is_held_by_it_or_asked_back_for_it(self) -> None:
        for partition in range(5):
            owner = self.deal.owner(partition)
            if owner is None or not self.order.get(owner):
                continue
            holder = self.holders.get(partition)
            assert holder is not None, "free, though its owner polls"
            assert self.polls[holder] == owner or (holder, partition) in self.asked

    @invariant()
    def what_is_held_and_dealt_to_another_id_is_asked_back(self) -> None:
        for partition, holder in self.holders.items():
            foreign = self.deal.owner(partition) != self.polls[holder]
            assert not foreign or self.deal.asked_back(partition)
            assert self.deal.asked_back(partition) == ((holder, partition) in self.asked)

    @invariant()
    def a_poll_waits_behind_the_first_of_its_id(self) -> None:
        for poll, consumer in self.polls.items():
            first = self.order[consumer][0]
            assert self.deal.waiting_behind(poll) == (None if first == poll else first)

    @invariant()
    def the_deadline_is_that_of_the_first_id_to_be_forgotten(self) -> None:
        assert self.deal.next_deadline() == min(self.idle.values(), default=None)


TestDealModel = DealModel.TestCase
TestDealModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def told(deal: Deal[str]) -> list[tuple[str, str, int]]:
    return [(type(c).__name__, c.holder, c.partition) for c in deal.changes()]


@given(ids=st.sets(st.text(max_size=6), min_size=1, max_size=12), partitions=st.integers(1, 12))
def test_owners_are_the_same_when_ids_come_in_any_order(ids: set[str], partitions: int) -> None:
    deals: list[Deal[str]] = [Deal(range(partitions), IDLE), Deal(range(partitions), IDLE)]
    for deal, order in zip(deals, (sorted(ids), sorted(ids, reverse=True)), strict=True):
        for consumer in order:
            deal.claim(consumer, consumer, 0)
    one, other = ([deal.owner(p) for p in range(partitions)] for deal in deals)
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
        deal: Deal[str] = Deal(range(partitions), IDLE)
        if not late:
            deal.set_elsewhere(others)
        for consumer in own:
            deal.claim(consumer, consumer, 0)
        deal.set_elsewhere(others)
        for partition in [p for p in range(partitions) if deal.asked_back(p)]:
            deal.give_up(deal.holder(partition) or "", [partition], 0)
        deals.append(deal)
    for partition in range(partitions):
        owners = {deal.owner(partition) for deal in deals}
        assert len(owners) == 1
        holders = [deal.holder(partition) for deal in deals]
        where = [own for own in homes if owners <= own]
        assert [holder for holder in holders if holder] == [*owners] * len(where)


def test_hand_over_happens_when_the_holder_gives_up() -> None:
    deal: Deal[str] = Deal([0, 1], IDLE)
    deal.claim("a", "poll of a", 0)
    assert told(deal) == [("Grant", "poll of a", 0), ("Grant", "poll of a", 1)]
    deal.claim("b", "poll of b", 1)
    ((kind, holder, partition),) = told(deal)
    assert (kind, holder) == ("Revoke", "poll of a")
    deal.give_up("poll of a", [partition], 2)
    assert told(deal) == [("Grant", "poll of b", partition)]


def test_partitions_of_an_id_stay_its_own_while_it_is_idle() -> None:
    deal: Deal[str] = Deal([-1], IDLE)
    first = "a" if _wins("a", "b") else "b"
    other = "b" if first == "a" else "a"
    deal.claim(first, "first", 0)
    deal.claim(other, "other", 0)
    deal.release("first", 1)
    deal.changes()
    deal.tick(1 + IDLE - 0.1)
    assert told(deal) == []
    deal.tick(1 + IDLE)
    assert told(deal) == [("Grant", "other", -1)]


def test_second_poll_of_an_id_gets_the_partitions_when_the_first_ends() -> None:
    deal: Deal[str] = Deal([-1], IDLE)
    deal.claim("a", "first", 0)
    deal.claim("a", "second", 0)
    deal.claim("a", "third", 0)
    deal.changes()
    deal.release("second", 1)
    assert told(deal) == []
    deal.release("first", 1)
    assert told(deal) == [("Grant", "third", -1)]


def test_giving_up_what_another_holds_changes_nothing() -> None:
    deal: Deal[str] = Deal([-1], IDLE)
    deal.claim("a", "first", 0)
    deal.claim("a", "second", 0)
    deal.changes()
    deal.give_up("second", [-1], 0)
    deal.release("nobody", 0)
    assert (told(deal), deal.holder(-1)) == ([], "first")


def test_resize_deals_new_partitions_and_asks_old_ones_back() -> None:
    deal: Deal[str] = Deal([-1], IDLE)
    deal.claim("a", "poll", 0)
    deal.changes()
    deal.resize([0, 1])
    assert [type(c) for c in deal.changes()] == [Revoke, Grant, Grant]
    deal.give_up("poll", [-1], 0)
    assert (told(deal), deal.held("poll")) == ([], {0, 1})


def _wins(one: str, other: str) -> bool:
    deal: Deal[str] = Deal([-1], IDLE)
    deal.claim(one, one, 0)
    deal.claim(other, other, 0)
    return deal.owner(-1) == one
