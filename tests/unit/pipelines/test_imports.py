"""What each of Spark's Python workers imports before it reads: nothing that it does without."""

from __future__ import annotations

import subprocess
import sys

# What Spark's own workers import anyway, and then the source; what that adds is printed.
PROGRAM = """
import sys
import pyarrow, pyspark.sql.datasource, pyspark.sql.streaming.datasource, pyspark.worker
before = set(sys.modules)
import router.pipelines.source.router_source
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
print(*(name for name in set(sys.modules) - before if name.startswith("router.")))
"""
# Each takes tens of milliseconds: Avro, HTTP, coloured logs, Kafka's client, SQL, the pipelines.
HEAVY = {"avro", "structlog", "rich", "http", "kafka", "sqlglot", "jsonschema", "flask", "asyncio"}


def test_source_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, check=True
    )
    top, own = done.stdout.splitlines()
    assert not HEAVY & set(top.split())
    assert "router.backends.pulsar.rest" not in own.split()
    assert "router.schemas.codecs" not in own.split()
    # It needs Spark 4.2, and frames do not.
    assert "router.pipelines.source.streams" not in own.split()
