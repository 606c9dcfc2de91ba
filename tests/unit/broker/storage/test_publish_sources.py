"""Who published which entries, in runs, within a bound; and the sources of shared entries."""

from __future__ import annotations

import sys

import pytest

from router.broker.storage.publish_sources import LEDGER_BYTES, RUN_BYTES, PublishSources
from router.model.publish_source import (
    MAX_SHARED,
    MAX_TEXT,
    NO_SOURCE,
    PublishSource,
    encode_source,
    shared_source,
    source_at,
)

ANNA = encode_source("http", "anna", "192.0.2.7", "curl/8")
BEN = encode_source("kafka", "ben", "192.0.2.8:4711", "billing")


def test_a_run_holds_until_the_next_begins() -> None:
    sources = PublishSources()
    sources.begin(1, 10, ANNA)
    sources.begin(1, 20, BEN)
    sources.begin(2, 0, BEN)
    found = [sources.find(1, entry) for entry in (9, 10, 19, 20, 1_000_000)]
    assert found == [NO_SOURCE, ANNA, ANNA, BEN, BEN]
    assert (sources.find(2, 5), sources.find(3, 5)) == (BEN, NO_SOURCE)


def test_the_newest_runs_are_kept() -> None:
    sources = PublishSources(max_bytes=2 * LEDGER_BYTES + 3 * (len(ANNA) + RUN_BYTES))
    sources.begin(1, 0, ANNA)
    for entry in range(3):
        sources.begin(2, entry, ANNA)
    assert [sources.find(1, 0), *(sources.find(2, entry) for entry in range(3))] == [
        NO_SOURCE,
        *[ANNA] * 3,
    ]
    # The next entry of the other one begins a run again, though its source is the same.
    assert 1 not in sources.latest


def test_many_ledgers_with_a_run_each_are_within_the_bound() -> None:
    bound = 100_000
    sources = PublishSources(bound)
    # Twice, since what is dropped must be counted as it was.
    for number in range(2_000):
        sources.begin(number % 1_000, number, ANNA)
    kept = sources._runs.values()
    assert bound // 2 < sum(map(sys.getsizeof, kept)) < bound
    assert [bool(sources.find(number, 2_000)) for number in (0, 999)] == [False, True]


def test_messages_of_a_shared_entry_have_their_own_sources() -> None:
    shared = shared_source([(1, ANNA), (2, ANNA), (1, NO_SOURCE), (2, BEN)])
    found = [source_at(shared, index) for index in range(7)]
    anna = PublishSource("http", "anna", "192.0.2.7", "curl/8")
    ben = PublishSource("kafka", "ben", "192.0.2.8:4711", "billing")
    assert found == [anna, anna, anna, None, ben, ben, None]


def test_one_source_of_all_is_as_that_of_one() -> None:
    assert shared_source([(1, ANNA), (5, ANNA)]) == ANNA
    assert source_at(ANNA, 4) == PublishSource("http", "anna", "192.0.2.7", "curl/8")
    assert source_at(NO_SOURCE, 0) is None


def test_too_many_sources_of_an_entry_are_none() -> None:
    parts = [(1, encode_source("http", f"user {n}", "", "")) for n in range(MAX_SHARED + 1)]
    assert shared_source(parts) == NO_SOURCE
    assert shared_source(parts[:-1]) != NO_SOURCE


@pytest.mark.parametrize("text", ["x" * 1_000, "\ud800" * 1_000])
def test_texts_are_cut(text: str) -> None:
    found = source_at(encode_source("http", text, "", ""), 0)
    assert found is not None
    assert len(found.principal) == MAX_TEXT
