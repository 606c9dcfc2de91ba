"""What may go goes, segment by segment; everything else stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.storage import PULSAR_FORMAT, Ack, StoreOptions
from router.broker.storage.files import check
from router.broker.storage.options import DAY_MS
from router.broker.storage.retention import (
    MIN_ROLL_MS,
    RetentionLimits,
    expendable,
    limits_of,
    roll_age_ms,
)
from router.broker.storage.segments import Segment
from router.model.policies import Policies
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    fill,
    ignore,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    synced,
)

HOUR_MS = 3_600_000
FOREVER = RetentionLimits(-1, -1, -1)


def segments(*sizes: int) -> list[Segment]:
    """Return segments of ten entries each; the n-th ends at time 10 * n."""
    return [
        Segment(10 * n, 10 * n, 10 * n + 10, 10 * n + 10, size, 10 * n, 10 * n)
        for n, size in enumerate(sizes)
    ]


def test_nothing_goes_without_a_bound() -> None:
    assert expendable(segments(5, 5), FOREVER, None, 10**9) == 0


def test_old_segments_go_once_they_are_acknowledged() -> None:
    keep = RetentionLimits(retention_ms=15, retention_bytes=-1, backlog_bytes=-1)
    found = segments(5, 5, 5, 5)
    assert expendable(found, keep, None, 34) == 2
    assert expendable(found, keep, 9, 34) == 1
    assert expendable(found, keep, 8, 34) == 0
    assert expendable(found, keep, 10**9, 10**9) == 4


def test_a_backlog_over_its_quota_does_not_hold_old_segments() -> None:
    keep = RetentionLimits(retention_ms=15, retention_bytes=-1, backlog_bytes=11)
    assert expendable(segments(5, 5, 5, 5), keep, -1, 10**9) == 2


def test_bytes_over_the_bound_go_whatever_their_age() -> None:
    keep = RetentionLimits(retention_ms=-1, retention_bytes=12, backlog_bytes=-1)
    assert expendable(segments(5, 5, 5, 5), keep, None, 0) == 2
    assert expendable(segments(5, 5, 5, 5), keep, 3, 0) == 0


@given(
    st.lists(st.integers(1, 9), max_size=6),
    st.integers(-1, 70),
    st.integers(-1, 40),
    st.one_of(st.none(), st.integers(-1, 60)),
    st.integers(0, 90),
)
def test_unacknowledged_or_young_data_within_bounds_never_goes(
    sizes: list[int], retention_ms: int, retention_bytes: int, acked: int | None, now_ms: int
) -> None:
    found = segments(*sizes)
    count = expendable(found, RetentionLimits(retention_ms, retention_bytes, -1), acked, now_ms)
    rest = sum(sizes)
    for gone in found[:count]:
        assert acked is None or gone.next_entry - 1 <= acked
        assert 0 <= retention_ms <= now_ms - gone.max_ms or 0 <= retention_bytes < rest
        rest -= gone.size


def test_policies_of_a_topic_go_before_the_settings() -> None:
    options = StoreOptions(retention_ms=7, retention_bytes=8, backlog_bytes=9)
    assert limits_of(Policies(), options) == RetentionLimits(7, 8, 9)
    assert limits_of(Policies(retention_ms=0, backlog_bytes=-1), options) == RetentionLimits(
        0, 8, -1
    )


def test_a_topic_that_is_only_compacted_keeps_messages_of_any_age_and_size() -> None:
    options = StoreOptions(retention_ms=7, retention_bytes=8, backlog_bytes=9)
    compacted = Policies(retention_ms=1, cleanup_policy="compact")
    assert limits_of(compacted, options) == RetentionLimits(-1, -1, 9)
    both = replace(compacted, cleanup_policy="compact,delete")
    assert limits_of(both, options) == RetentionLimits(1, 8, 9)


def test_a_segment_spans_a_seventh_of_the_retention_and_at_most_a_day() -> None:
    ages = [roll_age_ms(replace(FOREVER, retention_ms=ms)) for ms in (700_000, 100 * DAY_MS, -1)]
    assert ages == [100_000, DAY_MS, DAY_MS]


def test_a_segment_of_a_compacted_topic_ends_before_its_messages_have_to_be_cleaned() -> None:
    policies = Policies(retention_ms=-1, max_compaction_lag_ms=60_000)
    ages = [
        roll_age_ms(limits_of(replace(policies, cleanup_policy=cleanup), StoreOptions()))
        for cleanup in ("compact", "compact,delete", "delete")
    ]
    assert ages == [60_000, 60_000, DAY_MS]
    soon = replace(policies, cleanup_policy="compact", max_compaction_lag_ms=1)
    assert roll_age_ms(limits_of(soon, StoreOptions())) == MIN_ROLL_MS


@pytest.mark.parametrize("retention_ms", [0, 1, 1_000])
def test_entries_share_segments_when_the_retention_is_short(
    folder: Path, retention_ms: int
) -> None:
    options = replace(StoreOptions(), reserve=0, retention_ms=retention_ms)

    async def work() -> None:
        async with opened(folder, options) as store:
            ledger = await one_ledger(store)
            for number in range(1_000):
                ledger.append(payload(number), PULSAR_FORMAT, 1, NOW_MS + 5 * number, ignore)
            await synced(store)

    run(work())
    assert len(list(folder.rglob("*.seg"))) == 1


async def test_a_sweep_removes_old_files_and_moves_cursors_on(folder: Path) -> None:
    options = replace(SMALL, retention_ms=HOUR_MS, backlog_bytes=10**6, journal=10**6)
    async with opened(folder, options) as store:
        ledger = await one_ledger(store)
        done = await store.create_subscription(ledger.id, "done", -1, {})
        slow = await store.create_subscription(ledger.id, "slow", -1, {})
        for number in range(40):
            ledger.append(payload(number), PULSAR_FORMAT, 1, NOW_MS + number * 60_000, ignore)
        await synced(store)
        store.acknowledge(done, Ack(39, cumulative=True))
        # First sweeps: what only the journal holds is brought into segments.
        for minutes in (0, 30, 60, 100):
            await store.retain(NOW_MS + minutes * 60_000)
        assert (ledger.first_entry, len(await read_all(ledger))) == (0, 40)
        store.acknowledge(slow, Ack(19, cumulative=True))
        await store.retain(NOW_MS + 100 * 60_000)
        assert 0 < ledger.first_entry <= 20
        # Segments go whole: what is left begins within a seventh of an hour of the bound.
        assert ledger.first_entry >= 20 - 60 // 7 - 1
        first = ledger.first_entry
        entries = await ledger.read(0, 100, 10**6)
        assert entries[0].entry_id == first
        assert ledger.messages == 40 - first
    assert check(folder / "data") == []
    async with opened(folder, options) as store:
        ledger = await one_ledger(store)
        assert (ledger.first_entry, ledger.next_entry) == (first, 40)


async def test_a_passive_subscription_holds_nothing_back(folder: Path) -> None:
    options = replace(SMALL, retention_ms=HOUR_MS, journal=10**6)
    async with opened(folder, options) as store:
        ledger = await one_ledger(store)
        passive = await store.create_subscription(ledger.id, "passive", 4, {}, passive=True)
        await fill(store, ledger, [payload(number) for number in range(40)])
        for minutes in (30, 60, 130):
            await store.retain(NOW_MS + minutes * 60_000)
        assert ledger.first_entry == 40
        assert passive.cursor.mark_delete == 39


async def test_a_ledger_that_lost_everything_goes_on_with_its_ids(folder: Path) -> None:
    options = replace(SMALL, retention_ms=HOUR_MS, retention_bytes=10, backlog_bytes=0)
    async with opened(folder, options) as store:
        ledger = await one_ledger(store)
        record = await store.create_subscription(ledger.id, "g", -1, {})
        await fill(store, ledger, [payload(n) for n in range(30)])
        for hours in (0, 1, 2):
            await store.retain(NOW_MS + hours * HOUR_MS)
        assert (ledger.first_entry, ledger.size_bytes, ledger.messages) == (30, 0, 0)
        assert record.cursor.mark_delete == 29
        assert list((folder / "data" / "ledgers" / str(ledger.id)).iterdir()) == []
    async with opened(folder, options) as store:
        ledger = await one_ledger(store)
        assert (ledger.first_entry, ledger.next_entry, ledger.next_index) == (30, 30, 30)
        assert ledger.removed_number == 30
        await fill(store, ledger, [b"new"])
        (entry,) = await read_all(ledger)
        assert (entry.entry_id, entry.index, entry.payload) == (30, 30, b"new")
    assert check(folder / "data") == []


async def test_segments_before_a_number_are_deleted_for_good(folder: Path) -> None:
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        record = await store.create_subscription(ledger.id, "g", -1, {})
        await fill(store, ledger, [payload(n) for n in range(30)], each=True)
        await store.delete_before(ledger, 20)
        first = ledger.first_number
        assert 0 < first <= 20
        assert record.cursor.mark_delete == first - 1
        kept = [entry.payload for entry in await read_all(ledger)]
        assert kept == [payload(n) for n in range(first, 30)]
        await store.delete_before(ledger, 30)
        assert (ledger.first_number, ledger.messages) == (30, 0)
        await fill(store, ledger, [b"new"])
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        (entry,) = await read_all(ledger)
        assert (ledger.first_number, entry.index, entry.payload) == (30, 30, b"new")
    assert check(folder / "data") == []


async def test_it_is_known_after_a_start_how_far_more_than_single_messages_went(
    folder: Path,
) -> None:
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(10)], each=True)
        await store.delete_before(ledger, 4)
        store.delete_messages(ledger, [(4, 9)])
        await store.delete_before(ledger, 0)
        assert (ledger.first_number, ledger.removed_number) == (10, 4)
        await fill(store, ledger, [b"a", b"b", b"c"])
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        assert (ledger.first_number, ledger.removed_number) == (10, 4)
        store.delete_messages(ledger, [(12, 12)])
        assert ledger.removed_number == 4
        store.delete_messages(ledger, [(10, 10)], None, 11)  # as a limit of a stream does
        assert ledger.removed_number == 11
    async with opened(folder) as store:
        assert (await one_ledger(store)).removed_number == 11
    assert check(folder / "data") == []


async def test_a_sweep_writes_down_when_subscriptions_were_used(folder: Path) -> None:
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        record = await store.create_subscription(ledger.id, "g", -1, {})
        assert record.last_used_ms == NOW_MS
        record.last_used_ms = NOW_MS + 5
        await store.retain(NOW_MS + 5)
        store.fail(PermissionError(13, "killed"))
    async with opened(folder) as store:
        (record,) = store.subscriptions(ledger.id)
        assert record.last_used_ms == NOW_MS + 5
