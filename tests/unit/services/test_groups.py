"""Where groups stand: listing, moving, ending; and polls that run meanwhile."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Start
from router.errors import (
    BadReadOptionError,
    BadRequestError,
    ConsumerClosedError,
    NotAllowedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import PartitionStats, Position, Subscription, TopicName
from router.services.consume import AckMode, partitions
from router.services.group_details import GroupInspection
from router.services.groups import Preview, TopicGroups, _left, moment, target
from tests.unit.services.polling import GROUP, TOPIC, Bench, until

ABSENT = Subscription(TopicName.parse("absent"), "g")


@pytest.fixture
def groups(bench: Bench) -> TopicGroups:
    return TopicGroups(bench.backend, 5)


def test_groups_are_listed_with_what_waits_for_them(bench: Bench, groups: TopicGroups) -> None:
    assert groups.listed(TOPIC) == []
    for name in "ba":
        bench.backend.subscribe(Subscription(TOPIC, name), Start.LATEST, 5)
    bench.publish(b"1", b"2")
    poll = bench.poll(subscription=Subscription(TOPIC, "a"))
    listed = groups.listed(TOPIC)
    assert [(g.name, g.backlog, g.consumers, g.durable) for g in listed] == [
        ("a", 2, 1, True),
        ("b", 2, 0, True),
    ]
    poll.delivered()
    assert [g.backlog for g in groups.listed(TOPIC)] == [0, 2]


def test_a_poll_that_waits_goes_on_after_a_reset(bench: Bench, groups: TopicGroups) -> None:
    bench.publish(b"1", b"2")
    bench.take()
    waiting = bench.later()
    until(lambda: groups.listed(TOPIC)[0].consumers)
    groups.reset(GROUP, Start.EARLIEST)
    poll = waiting.result(20)
    assert [stored.message.value for stored in poll.messages] == [b"1", b"2"]
    poll.delivered()
    assert bench.take() == []


@pytest.mark.parametrize("ack", [AckMode.WRITTEN, AckMode.NEXT])
def test_an_answer_of_before_a_reset_does_not_undo_it(
    bench: Bench, groups: TopicGroups, ack: AckMode
) -> None:
    bench.publish(b"1", b"2")
    poll = bench.poll(ack=ack)
    groups.reset(GROUP, Start.EARLIEST)
    poll.delivered()
    assert bench.take(ack=ack) == [b"1", b"2"]
    assert bench.take() == []


def test_what_was_left_for_the_next_poll_does_not_undo_a_reset(
    bench: Bench, groups: TopicGroups
) -> None:
    bench.publish(b"1", b"2")
    bench.poll(ack=AckMode.NEXT).delivered()
    groups.reset(GROUP, 0)
    assert bench.take() == [b"1", b"2"]
    assert bench.take() == []


def test_a_store_that_closes_every_consumer_is_given_up(bench: Bench) -> None:
    bench.backend.reading = [ConsumerClosedError() for _ in range(partitions.MAX_REOPENINGS + 1)]
    with pytest.raises(ConsumerClosedError):
        bench.poll(timeout=20)
    assert bench.take() == []


def test_what_is_not_there_is_not_moved_nor_ended(groups: TopicGroups) -> None:
    for action in (lambda g: groups.reset(g, Start.LATEST), groups.delete):
        with pytest.raises(SubscriptionNotFoundError, match="no group g on t"):
            action(GROUP)
        with pytest.raises(TopicNotFoundError, match=r"\[absent\]"):
            action(ABSENT)
    with pytest.raises(TopicNotFoundError, match=r"\[absent\]"):
        groups.listed(ABSENT.topic)


def test_a_group_is_ended_once_nobody_reads_it(bench: Bench, groups: TopicGroups) -> None:
    bench.publish(b"1")
    poll = bench.poll()
    with pytest.raises(SubscriptionBusyError, match="1 consumers"):
        groups.delete(GROUP)
    poll.delivered()
    groups.delete(GROUP)
    assert groups.listed(TOPIC) == []
    assert bench.take() == [b"1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Start.EARLIEST),
        ("latest", Start.LATEST),
        ("0", 0),
        ("1785505500000", 1785505500000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01T01:00:01 01:00", 1000),
        ("1970-01-01 01:00:01.0001+01:00", 1001),
        ("1969-12-31T23:00:00Z", 0),
    ],
)
def test_moments_are_read(text: str, expected: Start | int) -> None:
    assert moment("from", text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "Earliest", "-1", "1.5", "2026-07-31", "2026-07-31T13:45:00", "1" * 16, "yesterday", "٣",
     "0001-01-01T00:00:00+99:00"],
)  # fmt: skip
def test_what_is_no_moment_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(BadReadOptionError, match=r"^from: expected earliest, latest, milli"):
        moment("from", text)


@given(st.text(max_size=40) | st.from_regex(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(Z|[+ -]\d\d:\d\d)?"))
def test_any_text_is_a_moment_or_refused(text: str) -> None:
    try:
        found = moment("to", text)
    except BadReadOptionError:
        return
    assert isinstance(found, Start) or found >= 0


@given(
    time=st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)),
    minutes=st.integers(-1400, 1400),
)
def test_a_time_is_the_same_in_every_zone(time: datetime, minutes: int) -> None:
    utc = time.replace(tzinfo=UTC)
    there = utc.astimezone(timezone(timedelta(minutes=minutes)))
    found = moment("to", there.isoformat())
    assert isinstance(found, int)
    microseconds = (utc - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert 0 <= found * 1000 - microseconds < 1000


def test_a_group_starts_at_a_time(bench: Bench) -> None:
    bench.publish(b"1")
    time.sleep(0.005)
    start = time.time_ns() // 1_000_000
    bench.publish(b"2")
    assert bench.take(start=start) == [b"2"]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("5:17:0", (Position(5, 17, 0),)),
        ("5:17:0:3", (Position(5, 17, 0),)),
        ("5:17:0, 6:0:1", (Position(5, 17, 0), Position(6, 0, 1))),
    ],
)
def test_positions_are_read(text: str, places: tuple[Position, ...]) -> None:
    assert target("to", text) == places


TOO_MANY = ",".join(f"0:0:{number}" for number in range(1_001))


@pytest.mark.parametrize(
    "text",
    ["5:17", "5:17:", "5:17:0,", "5:17:0,latest", "5:17:0,5:1:0", "1:-2:0", TOO_MANY],
)
def test_what_are_no_positions_is_refused(text: str) -> None:
    with pytest.raises(BadReadOptionError, match=r"^to: expected"):
        target("to", text)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{1,20}:[0-9]{1,20}(:[0-9]{1,12}){0,3},?"))
def test_any_text_is_a_target_or_refused(text: str) -> None:
    try:
        found = target("to", text)
    except BadReadOptionError:
        return
    assert isinstance(found, (Start, tuple)) or found >= 0


def test_a_group_goes_on_at_a_position_of_a_topic_without_partitions(
    bench: Bench, groups: TopicGroups
) -> None:
    for value in (b"1", b"2", b"3"):
        bench.publish(value)
    assert bench.take() == [b"1", b"2", b"3"]
    ledger = bench.backend.describe_topic(TOPIC, 5).partitions[0].ledger
    to = (Position(ledger, 1, 0),)
    assert groups.preview(GROUP, to) == Preview(0, 2, 2)
    groups.reset(GROUP, to)
    assert bench.take() == [b"2", b"3"]


def test_a_position_moves_its_partition_alone() -> None:
    bench = Bench(partitions=2)
    groups = TopicGroups(bench.backend, 5)
    bench.publish(b"1", b"2", partition=0)
    bench.publish(b"3", partition=0)
    bench.publish(b"4", partition=1)
    assert sorted(bench.take()) == [b"1", b"2", b"3", b"4"]
    ledger = bench.backend.describe_topic(TOPIC, 5).partitions[0].ledger
    # An entry holds one or more of three messages: at the second one there are one or two.
    assert groups.preview(GROUP, (Position(ledger, 1, 0),)) == Preview(0, 1, 2)
    groups.reset(GROUP, (Position(ledger, 1, 0),))
    assert bench.take() == [b"3"]


def test_preview_has_commas_between_thousands() -> None:
    exact, about = Preview(1_234, 5_678, 5_678), Preview(1_234, 0, 5_678)
    assert exact.sentence() == "Lag now: 1,234. Lag after the reset: 5,678."
    assert about.sentence() == "Lag now: 1,234. Lag after the reset: between 0 and 5,678."


@pytest.mark.parametrize(
    ("place", "reason"),
    [((0, 1), "has no partition 1"), ((1_000, 0), "has no ledger 1000: its last one is")],
)
def test_a_position_that_the_topic_does_not_have_moves_nothing(
    bench: Bench, groups: TopicGroups, place: tuple[int, int], reason: str
) -> None:
    bench.publish(b"1", b"2")
    bench.poll().abandon()
    for action in (groups.preview, groups.reset):
        with pytest.raises(BadRequestError, match=reason):
            action(GROUP, (Position(place[0], 0, place[1]),))
    assert bench.take() == [b"1", b"2"]


@pytest.mark.parametrize("ack", [AckMode.WRITTEN, AckMode.NEXT])
def test_a_poll_under_way_during_a_reset_to_a_position_loses_nothing(
    bench: Bench, groups: TopicGroups, ack: AckMode
) -> None:
    bench.publish(b"1", b"2")
    bench.publish(b"3")
    poll = bench.poll(ack=ack)
    ledger = bench.backend.describe_topic(TOPIC, 5).partitions[0].ledger
    groups.reset(GROUP, (Position(ledger, 0, 0),))
    poll.delivered()
    assert bench.take(ack=ack) == [b"1", b"2", b"3"]


def test_details_tell_members_and_where_each_partition_stands() -> None:
    bench = Bench(partitions=2)
    inspection = GroupInspection(bench.backend, bench.node, 5)
    bench.publish(b"1", b"2", partition=0)
    assert bench.take(limit=1) == [b"1"]
    waiting = bench.poll()
    found = inspection.details(GROUP)
    assert found.members is not None
    assert [member.consumer for member in found.members.members] == ["c1"]
    first, second = found.partitions
    assert (first.lag, second.lag) == (1, 0)
    assert first.lease is not None
    assert (first.lease.consumer, first.lease.node) == ("c1", "")
    assert first.committed is not None
    assert (first.committed.entry, first.committed.batch_index) == (0, 0)
    assert second.committed is None
    assert (first.end.entry, found.untold) == (1, "")
    waiting.delivered()
    for missing in (ABSENT, Subscription(TOPIC, "absent")):
        with pytest.raises((TopicNotFoundError, SubscriptionNotFoundError)):
            inspection.details(missing)


def test_details_of_a_store_that_tells_no_cursors_say_why(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.poll().delivered()

    def refuse(*_: object) -> None:
        raise NotAllowedError("it has no administration")

    monkeypatch.setattr(bench.backend, "cursors", refuse)
    bench.node.close()
    found = GroupInspection(bench.backend, bench.node, 5).details(GROUP)
    assert (found.untold, found.members) == ("it has no administration", None)
    assert found.as_json()["trouble"].startswith("This node's broker does not answer")


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=8),
    st.integers(-1, 9),
)
def test_messages_from_a_position_on_are_within_the_bounds(
    entries: list[list[bool]], entry: int
) -> None:
    """Of each entry: which of its messages are left, and which were deleted."""
    if not any(map(any, entries)):
        return
    first = next(n for n, one in enumerate(entries) if any(one))
    behind = max(n for n, one in enumerate(entries) if any(one)) + 1
    kept = [left for one in entries[first:behind] for left in one]
    found = PartitionStats(0, 1, first, behind, sum(kept), deleted=kept.count(False))
    least, most = _left(found, Position(1, entry, 0))
    assert least <= sum(sum(one) for one in entries[max(0, entry) :]) <= most
