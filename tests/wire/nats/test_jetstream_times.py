"""Times of the JetStream API, compared with Python's calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.nats.jetstream.times import (
    NANOSECONDS,
    ZERO_TIME_NS,
    format_duration,
    format_time,
    parse_time,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.datetimes(timezones=st.just(UTC))
fractions = st.integers(0, NANOSECONDS - 1)


def nanoseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


@given(moments, fractions)
def test_a_written_time_reads_as_itself(moment: datetime, fraction: int) -> None:
    time_ns = nanoseconds(moment.replace(microsecond=0)) + fraction
    assert parse_time(format_time(time_ns)) == time_ns


@given(moments)
def test_times_are_those_of_the_calendar(moment: datetime) -> None:
    shown = format_time(nanoseconds(moment))
    assert datetime.fromisoformat(shown) == moment
    assert shown.endswith("Z")
    assert not shown.endswith("0Z") or "." not in shown


@given(moments.filter(lambda moment: 1 < moment.year < 9999), st.integers(-23 * 60, 23 * 60))
def test_offsets_are_those_of_the_calendar(moment: datetime, minutes: int) -> None:
    local = moment.astimezone(timezone(timedelta(minutes=minutes)))
    assert parse_time(local.isoformat()) == nanoseconds(moment)


def test_the_zero_time_is_that_of_go() -> None:
    assert format_time(ZERO_TIME_NS) == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-01-01",
        "2024-01-01 00:00:00Z",
        "2024-01-01T00:00:00",
        "2024-01-01t00:00:00z",
        "2023-02-29T00:00:00Z",
        "2024-13-01T00:00:00Z",
        "2024-00-01T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:00:60Z",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00,5Z",
        "2024-01-01T00:00:00+24:00",
        "2024-01-01T00:00:00+0200",
        "٢٠٢٤-01-01T00:00:00Z",
    ],
)
def test_what_go_refuses_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="no "):
        parse_time(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (59, "59s"), (60, "1m0s"), (3_600, "1h0m0s"), (90_061, "25h1m1s")],
)
def test_a_duration_is_written_as_go_does(seconds: int, shown: str) -> None:
    assert format_duration(seconds) == shown
