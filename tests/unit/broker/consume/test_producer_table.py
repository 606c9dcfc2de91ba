"""Who may produce: a line, a holder and epochs, in whatever order producers come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.consume import (
    NameBusyError,
    Producer,
    ProducerAccess,
    ProducerFencedError,
    producers,
)
from router.broker.consume.producers import ProducerTable
from router.broker.storage import Ledger, ProducerStates
from router.broker.storage.rows import LedgerRow
from router.errors import TooManyRequestsError
from tests.unit.broker.storage.rig import one_ledger, opened

NOTHING = cast("Any", None)
PARTS = cast(
    "Any", SimpleNamespace(journal=None, reader=None, readers=None, tails=None, sources=None)
)
WAIT = ProducerAccess.WAIT_FOR_EXCLUSIVE
FENCE = ProducerAccess.EXCLUSIVE_WITH_FENCING


class Line:
    """A connection that notes what it is told."""

    def __init__(self) -> None:
        self.closed: list[Producer] = []
        self.turns: list[Producer] = []
        self.failed: list[Producer] = []
        self.probes = 0

    def producer_closed(self, producer: Producer) -> None:
        self.closed.append(producer)

    def producer_turn(self, producer: Producer) -> None:
        self.turns.append(producer)

    def producer_failed(self, producer: Producer, _failure: Exception) -> None:
        self.failed.append(producer)

    def probe(self) -> None:
        self.probes += 1


def table_of(store: Any, ledger: Ledger) -> ProducerTable:
    return ProducerTable(ledger, lambda: store.save_epoch(ledger))


def table_of_nobody() -> ProducerTable:
    return table_of(NOTHING, Ledger(LedgerRow(1, 1, 0, 0, 0), ProducerStates(1, 1), PARTS))


def producer(
    link: Line,
    name: str,
    access: ProducerAccess = ProducerAccess.SHARED,
    *,
    epoch: int = 0,
    generated: bool = False,
    topic_epoch: int | None = None,
) -> Producer:
    return Producer(link, 0, name, epoch, generated, False, access, topic_epoch)


class ConnectionLimiter:
    """Producers that come and go, and the laws that hold after each step."""

    def __init__(self) -> None:
        self.table = table_of_nobody()
        self.link = Line()
        self.epochs: list[int] = []
        self.line: list[Producer] = []
        self.number = 0

    def come(self, access: ProducerAccess) -> None:
        self.number += 1
        new = producer(self.link, f"p{self.number}", access)
        before = list(self.table)
        try:
            ready = self.table.add(new)
        except (NameBusyError, ProducerFencedError):
            assert access in {ProducerAccess.SHARED, ProducerAccess.EXCLUSIVE}
            assert list(self.table) == before
            return
        if not ready:
            assert access is WAIT
            self.line.append(new)
        elif access is not ProducerAccess.SHARED:
            self.epochs.append(new.topic_epoch if new.topic_epoch is not None else -1)
        if access is FENCE:
            assert self.link.closed[-len(before) :] == before or not before
            assert set(self.line) <= set(self.link.failed)
            self.line.clear()

    def go(self, place: int) -> None:
        everybody = [*self.table, *self.line]
        if everybody:
            gone = everybody[place % len(everybody)]
            if gone in self.line:
                self.line.remove(gone)
            turns = len(self.link.turns)
            self.table.remove(gone)
            for following in self.link.turns[turns:]:
                assert following is self.line.pop(0)
                self.epochs.append(cast("int", following.topic_epoch))

    def check(self) -> None:
        inside = list(self.table)
        assert len(inside) == len(self.table)
        held = [found for found in inside if found.access is not ProducerAccess.SHARED]
        assert not held or len(inside) == 1
        assert inside or not self.line
        assert self.epochs == list(range(len(self.epochs)))


@given(st.lists(st.sampled_from(ProducerAccess) | st.integers(0, 9), max_size=40))
def test_holder_is_alone_and_turns_come_in_order(steps: list[ProducerAccess | int]) -> None:
    crowd = ConnectionLimiter()
    for step in steps:
        if isinstance(step, ProducerAccess):
            crowd.come(step)
        else:
            crowd.go(step)
        crowd.check()
    while crowd.table:
        crowd.go(0)
        crowd.check()
    assert crowd.line == []


def test_generated_name_is_taken_over_by_a_later_epoch() -> None:
    table, old, new = table_of_nobody(), Line(), Line()
    first = producer(old, "p", generated=True)
    table.add(first)
    with pytest.raises(NameBusyError):
        table.add(producer(new, "p", generated=True))
    assert (old.probes, new.probes) == (1, 0)
    second = producer(new, "p", epoch=1, generated=True)
    assert table.add(second)
    assert (old.closed, list(table)) == ([first], [second])
    table.remove(first)
    assert list(table) == [second]


def test_given_name_is_not_taken_over() -> None:
    table, old = table_of_nobody(), Line()
    table.add(producer(old, "p"))
    with pytest.raises(NameBusyError, match="already connected"):
        table.add(producer(Line(), "p", epoch=9))
    assert old.closed == []


def test_holder_is_not_taken_over_by_who_does_not_know_its_epoch() -> None:
    table, holder = table_of_nobody(), Line()
    table.add(producer(holder, "p", ProducerAccess.EXCLUSIVE))
    with pytest.raises(ProducerFencedError):
        table.add(producer(Line(), "p", ProducerAccess.EXCLUSIVE, epoch=1))
    assert (holder.closed, holder.probes) == ([], 1)


def test_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_WAITING_PRODUCERS", 2)
    table, link = table_of_nobody(), Line()
    for name in "abc":
        table.add(producer(link, name, WAIT))
    with pytest.raises(TooManyRequestsError):
        table.add(producer(link, "d", WAIT))


def test_who_waits_with_an_epoch_that_moved_on_is_passed_over() -> None:
    table, link = table_of_nobody(), Line()
    first, second = producer(link, "a", ProducerAccess.EXCLUSIVE), producer(link, "b", WAIT)
    stale, last = producer(link, "c", WAIT, topic_epoch=0), producer(link, "d", WAIT)
    for new in (first, second, stale, last):
        table.add(new)
    table.remove(first)
    table.remove(second)
    assert (link.turns, link.failed) == ([second, last], [stale])
    assert (second.topic_epoch, last.topic_epoch) == (1, 2)


async def test_who_is_fenced_while_its_epoch_is_written_does_not_hold(folder: Path) -> None:
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        table, link = table_of(store, ledger), Line()
        first, second = (
            producer(link, "a", ProducerAccess.EXCLUSIVE),
            producer(link, "b", FENCE),
        )
        table.add(first)
        holding = asyncio.ensure_future(table.hold(first))
        table.add(second)
        await table.hold(second)
        with pytest.raises(ProducerFencedError):
            await holding
        assert (first.topic_epoch, second.topic_epoch, ledger.topic_epoch) == (0, 1, 1)
