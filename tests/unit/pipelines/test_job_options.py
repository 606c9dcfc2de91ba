"""The keys of jobs: every mistake is one sentence, every default is a value."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from router.errors import SettingError
from router.pipelines.jobs.options import KEYS, read, span_ms

GIVEN: dict[str, dict[str, object]] = {
    "validate": {"schemas": {"*": "any.json"}},
    "replay": {"archive": "table"},
    "audit": {"topics": ["orders"], "archive": "table"},
    "swap": {"table": "table", "shadow": "other"},
    "maintain": {"table": "table"},
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_key_has_a_value_when_only_what_must_be_is_given(kind: str) -> None:
    assert set(read(kind, GIVEN[kind]).values) == set(KEYS[kind])


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        ("replay", {"archvie": "x"}, "archvie is no key of the job replay; did you mean archive?"),
        ("replay", {}, "the job replay needs archive"),
        ("replay", {"archive": ""}, "archive is empty"),
        ("replay", {"archive": "x", "rate": 0}, "rate = 0 is not from 0.001 to 1e+09"),
        ("replay", {"archive": "x", "rate": True}, "rate = True is no number"),
        ("replay", {"archive": "x", "rate": float("nan")}, "rate = nan is not from"),
        ("replay", {"archive": "x", "format": "csv"}, "allowed are delta, parquet"),
        ("replay", {"archive": "x", "from": "noon"}, "from = 'noon' is no time"),
        ("replay", {"archive": "x", "from": "2026-01-02", "until": "2026-01-02"}, "is not after"),
        ("audit", {"topics": "orders", "archive": "x"}, "is no list of texts"),
        ("validate", {"schemas": {"a": 1}}, "is no table of texts"),
        ("maintain", {"table": "x", "vacuum": 1}, "is no true or false"),
        ("maintain", {"table": "x", "format": "parquet"}, "compacted into a new folder"),
        ("maintain", {"table": "x", "into": "y"}, "leave out `into`"),
        ("compact", {}, "there is no job 'compact'"),
    ],
)
def test_mistake_is_one_sentence(kind: str, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        read(kind, given)
    assert "\n" not in str(error.value)


def test_times_are_utc_when_they_name_no_zone() -> None:
    texts = ("2026-01-31T10:00:00", "2026-01-31T12:00:00+02:00")
    times = {read("replay", {"archive": "x", "from": text}).text("from") for text in texts}
    times.add(read("replay", {"archive": "x", "from": datetime(2026, 1, 31, 10)}).text("from"))
    assert times == {datetime(2026, 1, 31, 10, tzinfo=UTC).isoformat()}


def test_span_of_a_command_is_in_order_and_named_by_its_options() -> None:
    assert span_ms("from", "1970-01-01T00:00:01", "to", "") == (1000, 0)
    assert span_ms("from", "", "to", "1970-01-01T01:00:00+00:59") == (0, 60_000)
    with pytest.raises(SettingError, match="--until 'noon' is no time"):
        span_ms("from", "", "until", "noon")
    with pytest.raises(SettingError, match="--to 2026-07-01 is not after --from 2026-08-01"):
        span_ms("from", "2026-08-01", "to", "2026-07-01")
