"""A declaration that is in order, to be changed by tests."""

from __future__ import annotations

from pathlib import Path

from router.pipelines.declaration import Pipeline
from router.pipelines.loading import parse

FILE = Path("config/pipelines/large.toml")
GOOD = '''\
description = "Large orders."
checkpoint = "ck"
bad_records = "dlq"

[source]
topics = ["orders"]
format = "json"
schema = "id BIGINT, customer STRUCT<name: STRING>, amount DOUBLE"

[[step]]
name = "large"
sql = """
SELECT id, customer.name AS who,
       amount * 2 AS twice
FROM records
"""

[[step]]
name = "minutes"
sql = "SELECT window(_publish_time, '1 minute').start AS s, count(*) AS n FROM records GROUP BY 1"

[[sink]]
name = "files"
kind = "parquet"
from = "large"
path = "out"
partition_by = ["twice"]

[[sink]]
kind = "topic"
topic = "minutes"
mode = "update"
[trigger]
every = "10s"

[resources]
"spark.sql.shuffle.partitions" = 2
'''


def read(text: str = GOOD) -> Pipeline:
    """Return what a text declares."""
    return parse(text, FILE, "large")


def is_at(text: str, sentence: str, line: int, there: str) -> None:
    """Assert that a sentence about FILE names a line, and the column at which `there` begins."""
    _, named, column, _ = sentence.split(":", 3)
    assert sentence.startswith(f"{FILE}:{line}:{column}: ")
    assert text.split("\n")[int(named) - 1][int(column) - 1 :].startswith(there)
