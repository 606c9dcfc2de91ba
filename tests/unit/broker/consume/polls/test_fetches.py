"""Fetches of REST consumers: what is in flight, for how long, and what passing over it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from router.broker.consume.cursor import in_flight
from router.broker.consume.cursor.in_flight import InFlight, InFlightRange
from router.broker.consume.polls.fetching import PartitionFetch
from router.broker.entries.slicing import EntryOpener
from router.errors import ConflictError, TooManyRequestsError
from router.model import Message
from router.sharing.registry import RecordVersion
from tests.unit.broker.consume.polls.test_polls_model import on_a_house

MS = 10_000
"""Of the acknowledgement timeout, after which messages are due within another tenth of it."""


async def test_what_was_given_comes_again_after_its_time_and_before_what_is_newer() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a"), Message(b"b")])
        assert await house.fetch(limit=1) == [b"a"]
        assert await house.fetch(limit=1) == [b"b"]
        assert await house.fetch() == []
        await house.publish([Message(b"c")])
        house.clock.advance(MS * 1.1 / 1000)
        assert await house.fetch() == [b"a", b"b", b"c"]


async def test_what_was_not_delivered_is_not_in_flight() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        poll = house.begin(fetch=house.terms("c"))
        await house.settle()
        assert house.answer(poll)
        house.done(poll, delivered=False)
        assert await house.fetch() == [b"a"]


async def test_what_a_consumer_had_comes_at_once_when_it_is_gone() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        assert await house.fetch("gone") == [b"a"]
        house.clock.advance(6.0)  # its partition goes to another id
        poll = house.begin("other", fetch=house.terms("other", "gone"))
        await house.settle()
        assert house.answer(poll) == []
        assert await house.fetch("other") == [b"a"]


async def test_consumer_that_came_after_the_fetch_began_is_not_gone() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        before = house.terms("first")
        house.clock.advance(0.01)
        assert await house.fetch("second") == [b"a"]
        house.clock.advance(6.0)
        poll = house.begin("first", fetch=before)
        await house.settle()
        assert house.answer(poll) == []


@pytest.mark.parametrize("reset", [True, False])
async def test_reset_forgets_what_is_in_flight(reset: bool) -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        assert await house.fetch() == [b"a"]
        if reset:
            await house.partition(-1).subscriptions["g"].reset_durably(0)
        assert await house.fetch() == ([b"a"] if reset else [])


async def test_fetch_that_waits_is_answered_when_something_is_due() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        assert await house.fetch() == [b"a"]
        poll = house.begin(timeout=60.0, fetch=house.terms("c"))
        await house.settle()
        assert poll not in house.worker.answers
        house.clock.advance(MS * 1.1 / 1000)
        await house.settle()
        assert [got.value for got in house.answer(poll)] == [b"a"]


async def test_what_comes_due_while_a_fetch_looks_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        assert await house.fetch() == [b"a"]
        begin = PartitionFetch.begin

        def begin_slowly(fetch: PartitionFetch) -> int:
            entry = begin(fetch)
            house.clock.now += MS * 1.1 / 1000
            return entry

        with monkeypatch.context() as patch:
            patch.setattr(PartitionFetch, "begin", begin_slowly)
            poll = house.begin(timeout=60.0, fetch=house.terms("c"))
            await house.settle()
        house.clock.advance(0.01)
        await house.settle()
        assert [got.value for got in house.answer(poll)] == [b"a"]


async def test_delayed_messages_come_when_they_are_due_and_others_pass_them() -> None:
    async with on_a_house() as house:
        later = [house.now_ms + 2_000 * n for n in (3, 1, 2)]
        for when in later:
            await house.publish([Message(b"%d" % when, deliver_at=when)])
        await house.publish([Message(b"now")])
        assert await house.fetch() == [b"now"]
        for when in sorted(later):
            assert await house.fetch() == []
            house.clock.advance(2.0)
            assert await house.fetch() == [b"%d" % when]


@pytest.mark.parametrize("together", [1, 4])
async def test_with_too_many_unacknowledged_only_what_is_due_again_comes(together: int) -> None:
    async with on_a_house() as house:
        for n in range(0, 12, together):
            await house.publish([Message(b"%d" % m) for m in range(n, n + together)])
        bound: dict[str, Any] = {"max_unacknowledged": 5}
        assert len(await house.fetch(limit=6, **bound)) == 6
        with pytest.raises(TooManyRequestsError, match=r"^6 messages of partition 0 wait"):
            await house.fetch(**bound)
        await house.acknowledge(0, 0, together)
        assert await house.fetch(limit=2, **bound) == [b"6", b"7"]
        with pytest.raises(TooManyRequestsError, match=r"^7 messages"):
            await house.fetch(**bound)
        house.clock.advance(MS * 1.1 / 1000)
        again = await house.fetch(**bound)
        assert again == [b"%d" % n for n in range(1, 8)]


@pytest.mark.parametrize("together", [1, 500])
@pytest.mark.parametrize("cache", [0, 1 << 24])
async def test_fetches_cost_the_same_however_much_is_unacknowledged(
    together: int, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law of a flat cost: entries that are opened or read, and looks at spans."""
    steps = {"opened": 0, "looks": 0}
    counted(monkeypatch, steps, EntryOpener, "open", "opened")
    counted(monkeypatch, steps, InFlightRange, "is_over", "looks")
    async with on_a_house(cache=cache) as house:
        messages = 2_000
        for n in range(0, messages, together):
            await house.publish([Message(b"%d" % m) for m in range(n, n + together)])
        costs, taken = list[dict[str, int]](), 0
        while taken < messages:
            steps.update(opened=0, looks=0)
            found = await house.fetch(limit=50)
            assert found == [b"%d" % m for m in range(taken, taken + len(found))]
            taken += len(found)
            costs.append(dict(steps))
        most = max(cost["looks"] for cost in costs[:3]) + 2
        assert all(cost["looks"] <= most for cost in costs), costs
        # An entry is opened when it is come to, or once more if it was dropped in between.
        opened = sum(cost["opened"] for cost in costs)
        assert opened <= messages // together + len(costs)


def counted(
    monkeypatch: pytest.MonkeyPatch, steps: dict[str, int], of: type, name: str, what: str
) -> None:
    """Count the calls of a method."""
    call: Callable[..., Any] = getattr(of, name)

    def counting(*arguments: Any) -> Any:
        steps[what] += 1
        return call(*arguments)

    monkeypatch.setattr(of, name, counting)


@pytest.mark.parametrize(("known", "is_served"), [(3, True), (4, False), (None, False)])
async def test_fetch_that_goes_by_another_version_of_a_record_is_refused(
    known: int | None, is_served: bool
) -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        if known is not None:
            house.versions["kind", "name"] = known
        record = RecordVersion("kind", "name", 3)
        poll = house.begin(fetch=house.terms("c"), record=record)
        await house.settle()
        if is_served:
            assert [got.value for got in house.answer(poll)] == [b"a"]
        else:
            with pytest.raises(ConflictError):
                house.answer(poll)


def test_too_many_spans_are_joined_and_give_nothing_early() -> None:
    spans, many = InFlight(), 3 * in_flight.MAX_SPANS
    spans.begin(1, 0)
    for n in range(many):
        spans.give(1, InFlightRange((n, 0), (n + 1, 0), n + 1, "ab"[n % 2], 0))
    assert len(spans._spans) == in_flight.MAX_SPANS
    for gone in ("a", "b"):
        terms = in_flight.InFlightTerms(1, 1, frozenset({"a", "b"} - {gone}), 1)
        for n in range(many):
            is_alive = "ab"[n % 2] != gone
            assert not is_alive or spans.next(n, terms, n) > n
