"""What SQL makes of messages is what a few lines of plain Python make of them."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.pipelines.formats import decode
from router.pipelines.graph import step_views
from router.pipelines.loading import parse
from router.pipelines.source_columns import SCHEMA_DDL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = 1_700_000_000
DECLARATION = """
[source]
topics = ["orders"]
format = "json"
schema = "id BIGINT, customer STRING, cents BIGINT"

[[step]]
name = "paid"
sql = "SELECT *, cents / 100 AS euros FROM records WHERE cents > 0 AND customer IS NOT NULL"

[[step]]
name = "windows"
sql = '''
SELECT customer, unix_seconds(window.start) AS start, count(*) AS orders, sum(cents) AS cents,
       max(id) AS newest, count(DISTINCT _key) AS keys
FROM paid GROUP BY customer, window(_publish_time, '10 seconds')
'''

[[sink]]
kind = "topic"
topic = "out"
"""
integers = st.one_of(st.none(), st.integers(-5, 500))
records = st.fixed_dictionaries(
    {"id": integers, "customer": st.one_of(st.none(), st.sampled_from("abc")), "cents": integers}
)
values = st.one_of(
    records.map(lambda record: json.dumps(record).encode()),
    st.sampled_from([b"", b"{", b"[]", b"null", b'{"id": "x"}', b"\xff", b"{}"]),
)
messages = st.lists(
    st.tuples(values, st.one_of(st.none(), st.sampled_from([b"k", b"l"])), st.integers(0, 40)),
    max_size=30,
)


def model(found: list[tuple[bytes, bytes | None, int]]) -> tuple[list[tuple[Any, ...]], int]:
    """Return the rows of `windows`, and how many records are bad."""
    groups: dict[tuple[str, int], list[tuple[dict[str, Any], bytes | None]]] = {}
    bad = 0
    for value, key, second in found:
        try:
            record = json.loads(value.decode())
        except ValueError:
            bad += 1
            continue
        if not isinstance(record, dict) or isinstance(record.get("id"), str):
            bad += 1
            continue
        if record.get("customer") is not None and (record.get("cents") or 0) > 0:
            start = (EPOCH + second) // 10 * 10
            groups.setdefault((record["customer"], start), []).append((record, key))
    rows = [
        (
            customer,
            start,
            len(group),
            sum(record["cents"] for record, _ in group),
            max((r["id"] for r, _ in group if r["id"] is not None), default=None),
            len({key for _, key in group if key is not None}),
        )
        for (customer, start), group in groups.items()
    ]
    return rows, bad


@pytest.mark.timeout(600)
def test_sql_is_what_plain_python_makes_of_the_same_messages(spark: SparkSession) -> None:
    pipeline = parse(DECLARATION, Path("model.toml"), "model")

    @settings(max_examples=8, suppress_health_check=list(HealthCheck), database=None)
    @given(messages)
    def compare(found: list[tuple[bytes, bytes | None, int]]) -> None:
        source: list[tuple[Any, ...]] = [
            (
                "orders",
                0,
                str(n),
                n,
                key,
                value,
                {},
                None,
                datetime.fromtimestamp(EPOCH + s, UTC),
                None,
            )
            for n, (value, key, s) in enumerate(found)
        ]
        good, bad = decode(spark.createDataFrame(source, SCHEMA_DDL), pipeline.source)
        rows = [tuple(row) for row in step_views(pipeline, {"records": good})["windows"].collect()]
        expected, corrupt = model(found)
        assert Counter(rows) == Counter(expected)
        assert bad.count() == corrupt

    compare()
