"""Cursors without consumers: acknowledged, described, skipped and peeked at, over a real store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.consume import Partition
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.node.counters import NodeCounters
from router.broker.node.rpc.topics import CursorRequests
from router.broker.storage import PULSAR_FORMAT, Ack, Cursor, Store, StoreOptions
from router.broker.topics import cursor_administration as cursor_admin
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.cursor_administration import unacked_entry
from router.broker.topics.topics import TopicOptions, Topics
from router.errors import (
    BadRequestError,
    FencedError,
    NotAllowedError,
    RouterError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import TopicName
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb

T = TopicName("public", "default", "t")
P0, P1 = str(T.partition(0)), str(T.partition(1))


class Direct:
    """A topic of two partitions with ten entries each, and its subscription `s` from the start."""

    def __init__(self, folder: Path, **options: int) -> None:
        self.folder = folder
        self.options = StoreOptions(**options)  # type: ignore[arg-type]
        self.runner = asyncio.Runner()
        self.open()
        self.runner.run(self._fill())

    def open(self) -> None:
        self.store = self.runner.run(Store.open(self.folder, self.options, lambda: 1_000.0))
        self.topics = Topics(self.store, TopicOptions(), lambda: 1_000.0, ENTRY_FORMATS)
        self.admin = CursorRequests(
            TopicAdmin(self.topics, NodeCounters(time.monotonic), self), Transcoder(ENTRY_FORMATS)
        )

    def reopen(self) -> None:
        self.runner.run(self.store.close())
        self.open()

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Nothing is left for a next poll here."""

    def partition(self, index: int) -> Partition:
        return self.topics.pieces(T)[index]

    def place(self, partition: int, entry: int, *ack_set: int) -> pb.MessageIdData:
        ledger = self.partition(partition).ledger.id
        return pb.MessageIdData(ledgerId=ledger, entryId=entry, ack_set=ack_set)

    def acknowledge(
        self, *places: pb.MessageIdData, topic: str = str(T), cumulative: bool = False
    ) -> None:
        asked = npb.AcknowledgePositions(
            topic=topic, subscription="s", message_id=places, cumulative=cumulative
        )
        self.runner.run(self.admin.acknowledge(asked, npb.CommandAdminResponse()))

    def cursors(self, topic: str = str(T), **asked: Any) -> list[npb.CursorState]:
        response = npb.CommandAdminResponse()
        described = npb.DescribeCursors(topic=topic, **asked)
        self.runner.run(self.admin.describe(described, response))
        return list(response.cursors)

    def skip(self, topic: str = P0, **asked: Any) -> None:
        skipped = npb.SkipMessages(topic=topic, subscription="s", **asked)
        self.runner.run(self.admin.skip(skipped, npb.CommandAdminResponse()))

    def read(self, topic: str = P0, **asked: Any) -> int | None:
        response = npb.CommandAdminResponse()
        wanted = npb.ReadEntry(topic=topic, **asked)
        self.runner.run(self.admin.read(wanted, response))
        if not response.HasField("entry"):
            return None
        assert response.entry.payload == b"v%d" % response.entry.message_id.entryId
        return response.entry.message_id.entryId

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()

    async def _fill(self) -> None:
        record = await self.topics.create(T, 2)
        for partition in self.topics.partitions(record):
            await partition.subscribe("s", 0)
            stored = asyncio.Event()
            for number in range(10):
                partition.ledger.append(b"v%d" % number, PULSAR_FORMAT, 1, number, lambda _: None)
            self.store.after_sync(stored.set)
            await stored.wait()


@pytest.fixture
def direct(folder: Path) -> Iterator[Direct]:
    found = Direct(folder)
    yield found
    found.close()


def standing(state: npb.CursorState) -> tuple[int, list[tuple[int, int]], int]:
    ranges = [(found.first, found.last) for found in state.acknowledged]
    return state.mark_delete, ranges, state.backlog


def test_positions_of_all_partitions_are_acknowledged_and_stay_so(direct: Direct) -> None:
    direct.acknowledge(
        direct.place(0, 0), direct.place(0, 2), direct.place(0, 3), direct.place(1, 5)
    )
    expected = [(0, [(2, 3)], 7), (-1, [(5, 5)], 9)]
    assert [standing(state) for state in direct.cursors(subscription="s")] == expected
    direct.reopen()
    assert [standing(state) for state in direct.cursors(subscription="s")] == expected


def test_cumulative_positions_stand_for_all_before_them(direct: Direct) -> None:
    direct.acknowledge(direct.place(0, 4), direct.place(1, 9), cumulative=True)
    assert [standing(s) for s in direct.cursors(subscription="s")] == [(4, [], 5), (9, [], 0)]


def test_what_the_topic_never_had_is_refused_with_all_beside_it(direct: Direct) -> None:
    foreign = pb.MessageIdData(ledgerId=10_000, entryId=1)
    for wrong, topic in (
        (direct.place(0, 10), str(T)),
        (direct.place(0, 2**62), str(T)),
        (foreign, str(T)),
        (direct.place(1, 3), P0),
    ):
        with pytest.raises(BadRequestError):
            direct.acknowledge(direct.place(0, 3), wrong, topic=topic)
    assert [standing(s) for s in direct.cursors(subscription="s")] == [(-1, [], 10)] * 2


def test_messages_of_a_batch_are_acknowledged_one_by_one(direct: Direct) -> None:
    direct.acknowledge(direct.place(0, 3, 0b1011))
    direct.acknowledge(direct.place(0, 3, 0b1101))
    (state,) = direct.cursors(P0, subscription="s")
    assert [(part.entryId, list(part.ack_set)) for part in state.partial] == [(3, [0b1001])]


def test_reset_to_positions_moves_all_of_them_or_none(direct: Direct) -> None:
    places = [direct.place(0, 4), direct.place(1, 9)]
    for place, partition in zip(places, (0, 1), strict=True):
        place.partition = partition
    reset = npb.ResetSubscription(topic=str(T), subscription="s", positions=places)
    response = npb.CommandAdminResponse()
    direct.runner.run(direct.admin.reset(reset, response))
    marks = [direct.partition(index).subscriptions["s"].cursor.mark_delete for index in (0, 1)]
    assert marks == [3, 8]
    places[0].entryId = 0
    for wrong in (3, 0):
        places[1].partition = wrong
        reset = npb.ResetSubscription(topic=str(T), subscription="s", positions=places)
        with pytest.raises(BadRequestError):
            direct.runner.run(direct.admin.reset(reset, response))
    assert direct.partition(0).subscriptions["s"].cursor.mark_delete == 3


def test_acknowledging_without_a_consumer_is_use_of_the_subscription(direct: Direct) -> None:
    record = direct.partition(0).subscriptions["s"].record
    assert record is not None
    record.last_used_ms = 0
    asked = npb.AcknowledgePositions(topic=str(T), subscription="s")
    direct.runner.run(direct.admin.acknowledge(asked, npb.CommandAdminResponse()))
    assert record.last_used_ms == 0
    asked.message_id.append(direct.place(0, 3))
    direct.runner.run(direct.admin.acknowledge(asked, npb.CommandAdminResponse()))
    assert record.last_used_ms > 0
    described = direct.runner.run(direct.topics.describe(T)).subscriptions
    used = [one.last_used_ms for one in described if one.partition == 0]
    assert used == [record.last_used_ms]


def test_positions_from_before_a_reset_are_refused_all_together(direct: Direct) -> None:
    (subscription,) = [direct.partition(0).subscriptions["s"]]
    late = direct.place(0, 1)
    late.router_epoch = subscription.epoch
    direct.acknowledge(late)
    direct.runner.run(
        direct.admin.reset(
            npb.ResetSubscription(topic=P0, subscription="s", earliest=True),
            npb.CommandAdminResponse(),
        )
    )
    with pytest.raises(FencedError):
        direct.acknowledge(direct.place(1, 1), late)
    assert [standing(s) for s in direct.cursors(subscription="s")] == [(-1, [], 10)] * 2


def test_lists_of_an_answer_are_bounded_and_say_so(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct.acknowledge(*(direct.place(p, entry) for p in (0, 1) for entry in (1, 3, 5, 7)))
    monkeypatch.setattr(cursor_admin, "MAX_RANGES_PER_PAGE", 6)
    states = direct.cursors(subscription="s")
    assert [(len(state.acknowledged), state.cut) for state in states] == [(4, False), (2, True)]


def test_all_cursors_of_a_topic_are_described_in_pages(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "z"):
        direct.runner.run(
            direct.admin.create(
                npb.CreateSubscription(topic=str(T), subscription=name), npb.CommandAdminResponse()
            )
        )
    monkeypatch.setattr(cursor_admin, "MAX_CURSORS_PER_PAGE", 4)
    found: list[tuple[int, str]] = []
    response = npb.CommandAdminResponse(more=True)
    asked = npb.DescribeCursors(topic=str(T))
    while response.more:
        response = npb.CommandAdminResponse()
        direct.runner.run(direct.admin.describe(asked, response))
        found += [(state.partition, state.subscription) for state in response.cursors]
        asked.after_partition, asked.after_subscription = found[-1]
    assert found == [(p, name) for p in (0, 1) for name in ("a", "s", "z")]


def test_a_subscription_begins_and_goes_on_at_a_position(direct: Direct) -> None:
    create = npb.CreateSubscription(topic=P0, subscription="n", position=direct.place(0, 4))
    direct.runner.run(direct.admin.create(create, npb.CommandAdminResponse()))
    assert standing(direct.cursors(P0, subscription="n")[0]) == (3, [], 6)
    reset = npb.ResetSubscription(topic=P0, subscription="n", position=direct.place(0, 7))
    direct.runner.run(direct.admin.reset(reset, npb.CommandAdminResponse()))
    assert standing(direct.cursors(P0, subscription="n")[0]) == (6, [], 3)
    reset.topic = str(T)
    with pytest.raises(NotAllowedError):
        direct.runner.run(direct.admin.reset(reset, npb.CommandAdminResponse()))


@pytest.mark.parametrize(
    ("asked", "mark_delete"),
    [({"count": 3}, 5), ({"count": 100}, 9), ({"all": True}, 9), ({"before_ms": 4}, 3)],
)
def test_entries_are_skipped(direct: Direct, asked: dict[str, Any], mark_delete: int) -> None:
    direct.acknowledge(direct.place(0, 0), direct.place(0, 2), direct.place(0, 3))
    direct.skip(**asked)
    assert direct.cursors(P0, subscription="s")[0].mark_delete == mark_delete
    assert direct.cursors(P1, subscription="s")[0].mark_delete == -1


@pytest.mark.parametrize(
    ("asked", "entry"),
    [
        ({"entry": 4}, 4),
        ({"entry": 10}, None),
        ({"subscription": "s"}, 1),
        ({"subscription": "s", "nth": 2}, 4),
        ({"subscription": "s", "nth": 8}, None),
        ({"earliest": True, "nth": 3}, 2),
        ({"latest": True}, 9),
        ({"latest": True, "nth": 11}, None),
    ],
)
def test_an_entry_is_read_without_anybody_consuming_it(
    direct: Direct, asked: dict[str, Any], entry: int | None
) -> None:
    direct.acknowledge(direct.place(0, 0), direct.place(0, 2), direct.place(0, 3))
    assert direct.read(**asked) == entry


@pytest.mark.parametrize("reclaimed", [False, True])
def test_next_entry_stands_for_one_of_which_nothing_is_left(folder: Path, reclaimed: bool) -> None:
    direct = Direct(folder, segment=250, cache=0, reserve=0, reclaim_bytes=1)
    direct.reopen()
    ledger = direct.partition(0).ledger
    direct.store.delete_messages(ledger, [(0, 0), (2, 3), (5, 5)])
    if reclaimed:
        assert direct.runner.run(direct.store.reclaim(ledger)) > 0
    found = [direct.read(earliest=True, nth=nth) for nth in range(1, 8)]
    assert found == [1, 1, 4, 4, 4, 6, 6]
    assert [direct.read(latest=True, nth=nth) for nth in range(4, 11)] == [6, 4, 4, 1, 1, 1, None]
    assert direct.read(subscription="s") == 1
    assert [direct.read(entry=entry) for entry in range(5)] == [None, 1, None, None, 4]
    direct.close()


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (lambda d: d.acknowledge(topic="persistent://public/default/none"), TopicNotFoundError),
        (lambda d: d.acknowledge(d.place(0, 0, *[1] * 2_049)), BadRequestError),
        (lambda d: d.acknowledge(*[d.place(0, 0)] * 10_001), BadRequestError),
        (lambda d: d.cursors(subscription="none"), SubscriptionNotFoundError),
        (lambda d: d.skip(count=1, before_ms=1), BadRequestError),
        (lambda d: d.skip(), BadRequestError),
        (lambda d: d.read(), BadRequestError),
        (lambda d: d.read(entry=0, latest=True), BadRequestError),
        (lambda d: d.read(topic=str(T), entry=0), NotAllowedError),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    direct: Direct, request_: Callable[[Direct], object], error: type[RouterError]
) -> None:
    with pytest.raises(error):
        request_(direct)


@given(
    acked=st.sets(st.integers(0, 30)),
    start=st.integers(0, 10),
    nth=st.integers(1, 20),
)
def test_nth_unacknowledged_entry_is_found_without_looking_at_each(
    acked: set[int], start: int, nth: int
) -> None:
    cursor = Cursor()
    for entry in acked:
        cursor.apply(Ack(entry))
    start = max(start, cursor.mark_delete + 1)
    left = (entry for entry in range(start, 100) if entry not in acked)
    expected = [next(left) for _ in range(nth)][-1]
    assert unacked_entry(cursor, start, nth) == expected
