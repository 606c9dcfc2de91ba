"""Messages that are gathered to record batches, and what of Kafka's headers are properties."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pipelines.source_columns import KAFKA, ROW, Gathered
from router.wire.kafka import record_messages
from router.wire.pulsar import Columns


@pytest.mark.parametrize("column", ["keys", "values", "properties"])
def test_size_grows_with_everything_that_a_message_brings(column: str) -> None:
    empty = Columns(range(2), [None, None], [b"", b""], [{}, {}], [None, None], 1, 2)
    more = {
        "keys": empty._replace(keys=[b"x" * 900, None]),
        "values": empty._replace(values=[None, b"x" * 900]),
        "properties": empty._replace(properties=[{"name": "x" * 900}, {}]),
    }[column]
    gathered = Gathered("t", 0)
    gathered.add(empty, "1:0", None)
    before = gathered.size
    # Messages of nothing take room as well.
    assert before >= 2 * ROW
    gathered.add(more, "1:1", None)
    assert gathered.size >= before + 900
    assert gathered.take().num_rows == 4
    assert gathered.size == 0


def an_entry(count: int, part: list[int] | None, version: bytes, time: int) -> Columns:
    """Return an entry of a batch, of all its messages or a part; without a batch if it has none."""
    rows = max(1, count)
    whole = Columns(
        range(count) if count else [-1],
        [b"k%d" % row if row % 3 else None for row in range(rows)],
        [b"v%d" % row if row % 5 else None for row in range(rows)],
        [{"n": str(row)} if row % 7 == 6 else {} for row in range(rows)],
        [row * 1000 if row % 4 else None for row in range(rows)],
        time,
        rows,
        None,
        version,
    )
    return whole if part is None else whole.rows([row for row in part if row < rows])


entries = st.builds(
    an_entry,
    st.sampled_from([0, 1, 3, 64, 200, 1_000, 1_001]),
    st.none() | st.lists(st.integers(0, 200), max_size=4, unique=True).map(sorted),
    st.sampled_from([b"", bytes(8), (5).to_bytes(8), (1 << 63).to_bytes(8), b"\x05"]),
    st.sampled_from([0, 1, 1_700_000_000_123, 1 << 62]),
)


@given(st.lists(st.tuples(entries, st.none() | st.integers(0, 9)), min_size=1, max_size=4))
def test_rows_are_those_of_the_entries_one_by_one(given_entries: list[Any]) -> None:
    gathered = Gathered("t", 3)
    expected = []
    for number, (entry, first) in enumerate(given_entries):
        gathered.add(entry, f"7:{number}", first)
        published = moment(entry.publish_time)
        # Publishers write what they like: others are no versions that a topic has.
        known = {bytes(8): 0, (5).to_bytes(8): 5}
        version = known.get(entry.schema_version)
        for row, within in enumerate(entry.places):
            place, index = (f"7:{number}", first) if within < 0 else (f"7:{number}:{within}", None)
            if within >= 0 and first is not None:
                index = first + within
            expected.append(
                (
                    *("t", 3, place, index, entry.keys[row], entry.values[row]),
                    list(entry.properties[row].items()),
                    *(moment(entry.event_times[row] or 0), published, version),
                )
            )
    rows = gathered.rows
    assert rows == len(expected)
    if rows:
        assert [tuple(row.values()) for row in gathered.take().to_pylist()] == expected
    assert gathered.rows == gathered.size == 0


def moment(time_ms: int) -> datetime | None:
    """Return a time as a column has it."""
    if not 0 < time_ms < 1 << 60:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


def test_headers_that_the_router_writes_are_no_properties() -> None:
    (properties,) = (column for column in KAFKA if column.endswith(" AS properties"))
    constants = [text for text in vars(record_messages).values() if str(text).startswith("router-")]
    # That one is a property, made of what properties cannot carry.
    ours = set(constants) - {record_messages.ALL_HEADERS}
    assert len(ours) == 4
    assert [name for name in ours if f"'{name}'" not in properties] == []
