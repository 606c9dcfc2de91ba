"""The history of the broker's activity: minutes, the ring of a day, answers that are bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.activity.alerts import firing
from router.broker.activity.history import (
    DAY_MINUTES,
    MAX_POINTS,
    MINUTE_MS,
    RECORD_BYTES,
    ActivitySample,
    History,
    MinuteFile,
)
from router.broker.activity.recorder import quantile_ms

NOW = 1_790_000_000_000.0


def minute(number: int, **values: float) -> ActivitySample:
    """Return a sample so many minutes after NOW."""
    return ActivitySample(NOW + number * MINUTE_MS, **values)


def test_file_has_what_was_written_within_a_day(tmp_path: Path) -> None:
    file = MinuteFile(tmp_path / "ring")
    assert file.read(NOW) == []
    written = [minute(n, messages_in=n) for n in range(2 * DAY_MINUTES)]
    for sample in written:
        file.write(sample)
    assert (tmp_path / "ring").stat().st_size <= DAY_MINUTES * RECORD_BYTES
    assert file.read(written[-1].at) == written[-DAY_MINUTES:]
    assert file.read(written[-1].at + 60 * MINUTE_MS) == written[-DAY_MINUTES + 60 :]


@given(st.integers(0, 3 * RECORD_BYTES), st.binary(min_size=1, max_size=40))
def test_record_that_was_torn_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, at: int, damage: bytes
) -> None:
    path = tmp_path_factory.mktemp("ring") / "ring"
    file = MinuteFile(path)
    begin = -int(NOW // MINUTE_MS) % DAY_MINUTES
    written = [minute(begin + n, lag=n) for n in range(3)]
    for sample in written:
        file.write(sample)
    data = bytearray(path.read_bytes())
    data[at : at + len(damage)] = damage
    path.write_bytes(data)
    found = file.read(written[-1].at)
    assert found == [one for one in written if one in found]
    touched = range(at // RECORD_BYTES, (at + len(damage) - 1) // RECORD_BYTES + 1)
    assert [one for n, one in enumerate(written) if n not in touched] == [
        one for one in found if written.index(one) not in touched
    ]


def test_minutes_are_the_mean_of_their_samples() -> None:
    history = History(())
    begin = -(NOW % MINUTE_MS)
    ended = [
        history.add(ActivitySample(NOW + begin + at, lag=lag))
        for at, lag in ((0, 1.0), (10_000, 3.0), (60_000, 50.0), (120_000, 60.0))
    ]
    assert [None if one is None else one.lag for one in ended] == [None, None, 2.0, 50.0]
    assert [one.lag for one in history.minutes] == [2.0, 50.0]


def test_spans_are_of_the_last_minutes_and_bounded() -> None:
    history = History([minute(n) for n in range(-DAY_MINUTES, 0)])
    for n in range(500):
        history.add(ActivitySample(NOW + 10_000 * n, messages_in=float(n)))
    for minutes in (15, 60, 360, 1440):
        found = history.span(minutes)
        assert 0 < len(found) <= MAX_POINTS
        assert found[-1].at - found[0].at <= minutes * MINUTE_MS
        assert found == sorted(found)
    assert History(()).span(60) == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, 0.0),
        ({"0.01": 100.0, "+Inf": 0.0}, 10.0),
        ({"0.01": 100.0, "0.5": 1.0, "+Inf": 0.0}, 10.0),
        ({"0.01": 90.0, "0.5": 10.0, "+Inf": 0.0}, 500.0),
        ({"0.01": 1.0, "0.5": 0.0, "+Inf": 9.0}, 500.0),
    ],
)
def test_quantile_is_the_edge_of_its_bucket(counts: dict[str, float], expected: float) -> None:
    assert quantile_ms(counts) == expected


GAUGES = {
    "router_disk_size_bytes": 100e9,
    "router_disk_free_bytes": 80e9,
    "router_disk_reserve_bytes": 1e9,
}


@pytest.mark.parametrize(
    ("gauges", "values", "expected"),
    [
        ({}, {}, []),
        ({"router_disk_full": 1.0}, {}, ["RouterDiskFull"]),
        ({"router_disk_free_bytes": 3e9}, {}, ["RouterDiskNearlyFull"]),
        ({}, {"requests": 10.0, "errors": 1.0}, ["RouterErrors"]),
        ({}, {"sync_ms": 600.0}, ["RouterSyncSlow"]),
        ({}, {"damaged": 0.1}, ["RouterDamagedEntries"]),
        ({}, {"refused": 2.0}, ["RouterLoginsRefused"]),
        ({"router_backup_time_seconds": 1.0}, {}, ["RouterBackupOld"]),
        ({"router_transactions_oldest_seconds": 301.0}, {}, ["RouterTransactionOpen"]),
    ],
)
def test_alert_fires_by_its_rule(
    gauges: dict[str, float], values: dict[str, float], expected: list[str]
) -> None:
    gauge = (GAUGES | gauges).get
    samples = [minute(n, **values) for n in range(-59, 1)]
    found = firing(lambda name: gauge(name, 0.0), samples, NOW)
    assert [one["name"] for one in found] == expected


def test_alerts_of_growth_compare_over_time() -> None:
    samples = [minute(n, lag=200_000.0 + n, disk_free=40e9 + n * -0.5e9) for n in range(-59, 1)]
    gauge = (GAUGES | {"router_disk_free_bytes": samples[-1].disk_free}).get
    found = firing(lambda name: gauge(name, 0.0), samples, NOW)
    assert {one["name"] for one in found} == {"RouterDiskFillsUp", "RouterBacklogGrows"}
