"""The keys of jobs: every mistake is one sentence, every default is a value."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from router.pipelines.jobs.options import KEYS, read

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
