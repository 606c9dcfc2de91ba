"""Positions as the protocol acknowledges them, and cursors as brokers tell of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.pulsar.cursors import (
    MAX_COMMAND_BYTES,
    cursors_from_broker,
    cursors_from_rest,
    in_commands,
    message_ids,
)
from router.errors import BadRequestError
from router.model import Position
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb


@given(data=st.data(), size=st.integers(1, 140))
def test_messages_of_a_batch_are_acknowledged_together(data: st.DataObject, size: int) -> None:
    done = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    positions = [Position(3, 5, -1, index, size) for index in sorted(done, key=lambda i: i % 7)]
    (where,) = message_ids(positions, cumulative=False)
    left = [i for i in range(size) if where.ack_set and where.ack_set[i >> 6] >> (i & 63) & 1]
    assert (where.ledgerId, where.entryId) == (3, 5)
    assert set(left) == set(range(size)) - done


def test_a_position_without_an_index_is_the_whole_entry() -> None:
    positions = [Position(3, 5, -1, 1, 4), Position(3, 5), Position(3, 6)]
    places = message_ids(positions, cumulative=False)
    assert [(p.entryId, list(p.ack_set)) for p in places] == [(5, []), (6, [])]


def test_an_index_needs_the_size_of_its_batch() -> None:
    with pytest.raises(BadRequestError):
        message_ids([Position(3, 5, -1, 1)], cumulative=False)
    (upto,) = message_ids([Position(3, 5, -1, 1)], cumulative=True)
    assert (upto.entryId, list(upto.ack_set)) == (4, [])


def test_positions_tell_their_epoch_and_nowhere_is_left_out() -> None:
    positions = [Position(3, 5, epoch=9), Position(-1, -1), Position(3, 6)]
    for cumulative in (False, True):
        places = message_ids(positions, cumulative=cumulative)
        assert [(p.entryId, p.router_epoch) for p in places] == [(5, 9), (6, 0)]


def test_message_ids_go_in_portions() -> None:
    places = message_ids([Position(3, entry) for entry in range(5)], cumulative=False)
    assert [[p.entryId for p in some] for some in in_commands(places, 2)] == [[0, 1], [2, 3], [4]]


def test_a_broker_tells_of_ranges_and_of_parts_of_entries() -> None:
    state = npb.CursorState(
        partition=2,
        subscription="g",
        ledger_id=7,
        mark_delete=3,
        acknowledged=[npb.EntryRange(first=9, last=11)],
        partial=[pb.MessageIdData(ledgerId=7, entryId=5, ack_set=[0b0100], batch_size=4)],
        backlog=6,
    )
    told = cursors_from_broker(state)
    assert (told.partition, told.mark_delete, told.backlog) == (2, Position(7, 3, 2), 6)
    assert told.acknowledged == (
        (Position(7, 5, 2, 0), Position(7, 5, 2, 1)),
        (Position(7, 5, 2, 3), Position(7, 5, 2, 3)),
        (Position(7, 9, 2), Position(7, 11, 2)),
    )


def test_messages_that_a_brokers_ack_set_has_no_words_for_are_acknowledged() -> None:
    part = pb.MessageIdData(ledgerId=7, entryId=5, ack_set=[-2], batch_size=100)
    told = cursors_from_broker(npb.CursorState(ledger_id=7, mark_delete=4, partial=[part]))
    assert told.acknowledged == (
        (Position(7, 5, 0, 0), Position(7, 5, 0, 0)),
        (Position(7, 5, 0, 64), Position(7, 5, 0, 99)),
    )


@pytest.mark.parametrize("dots", ["..", "\u2025"])
def test_apache_pulsar_tells_of_ranges_that_begin_behind_their_lower_end(dots: str) -> None:
    cursor = {
        "markDeletePosition": "10:3",
        "individuallyDeletedMessages": f"[(10:4{dots}10:6],(11:-1{dots}11:0]]",
    }
    told = cursors_from_rest(-1, cursor, 5)
    assert told.mark_delete == Position(10, 3)
    assert told.acknowledged == (
        (Position(10, 5), Position(10, 6)),
        (Position(11, 0), Position(11, 0)),
    )


def test_apache_pulsar_tells_of_a_cursor_that_stands_before_its_first_entry() -> None:
    told = cursors_from_rest(0, {"markDeletePosition": "10:-1"}, 5)
    assert (told.mark_delete, told.acknowledged, told.backlog) == (None, (), 5)


def test_apache_pulsar_tells_of_a_cursor_at_the_beginning_of_a_later_ledger() -> None:
    kept = [(7, 2), (9, 4), (10, 0), (12, 3)]
    told = cursors_from_rest(0, {"markDeletePosition": "12:-1"}, 3, kept)
    assert told.mark_delete == Position(9, 3, 0)
    assert cursors_from_rest(0, {"markDeletePosition": "7:-1"}, 3, kept).mark_delete is None


def test_portions_of_large_batches_are_bounded_in_bytes() -> None:
    places = message_ids([Position(3, n, -1, 0, 100_000) for n in range(120)], cumulative=False)
    portions = list(in_commands(places, 1_000))
    assert [p.entryId for some in portions for p in some] == list(range(120))
    assert max(sum(p.ByteSize() for p in some) for some in portions) <= MAX_COMMAND_BYTES
