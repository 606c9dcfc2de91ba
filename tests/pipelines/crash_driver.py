"""A driver for the tests that kill it: SQL with a shuffle, a topic into a topic and two tables.

    python crash_driver.py '{"url": …, "folder": …, "topic": …, "first": "delta", "parts": 2,
        "last": false, "flags": {…}}'

It runs until somebody ends it, or with "last" until everything is read; then it writes what the
tables hold to `tables.json`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from router import settings as all_settings
from router.backends.opening import open_backend, open_node
from router.pipelines import session
from router.pipelines.declaration import SinkSpec, SourceSpec, Trigger
from router.pipelines.sinks import SinkContext, start_sink, tidy_sink
from router.pipelines.source import frame
from tests.pipelines.quick import QUICK, unmeasured

# Spark gives a worker 10 s to start, which a busy machine exceeds: then nothing was done yet.
LATE = "Python worker failed to connect back"


class Queries:
    """Queries that are started one by one, and again when a worker was late."""

    def __init__(self) -> None:
        self._found: list[tuple[Callable[[], StreamingQuery], StreamingQuery]] = []

    def start(self, start: Callable[[], StreamingQuery]) -> None:
        """Start a query, and wait until it is under way."""
        self._found.append((start, start()))
        while not self._found[-1][1].recentProgress and self.check():
            time.sleep(0.1)

    def check(self) -> bool:
        """Return whether any query is active; start those again whose worker was late."""
        for number, (start, query) in enumerate(self._found):
            error = query.exception()
            if error is None:
                continue
            if LATE not in str(error):
                raise SystemExit(str(error))
            self._found[number] = start, start()
        return any(query.isActive for _, query in self._found)


def main(told: dict[str, Any]) -> None:
    """Run the pipeline."""
    folder, url, parts = Path(told["folder"]), told["url"], int(told["parts"])
    flags = {**told["flags"], "backend.url": url.split(":")[0] if "://" not in url else url}
    settings = all_settings.load(None, {}, flags)
    resources = {
        "spark.master": f"local[{parts}]",
        "spark.driver.memory": "700m",
        "spark.sql.shuffle.partitions": str(parts),
        **QUICK,
    }
    connectors = ["delta", "kafka"] if url.startswith("kafka") else ["delta"]
    with unmeasured():
        spark = session.start("crash", resources, connectors)
    # Small batches to be killed between, and large ones to get to the end.
    rows = 5_000 if told["last"] else 200
    source = SourceSpec(url=url, topics=(told["topic"],), max_rows=rows, settings=told["flags"])
    sinks = [
        SinkSpec("topic", "topic", topic=f"{told['topic']}-out"),
        SinkSpec("parquet", "parquet", path=str(folder / "parquet"), partition_by=("date",)),
        SinkSpec("delta", "delta", path=str(folder / "delta"), partition_by=("date",)),
    ]
    with closing(open_node(settings)) as node, closing(open_backend(settings, node)) as backend:
        trigger = Trigger(available_now=told["last"])
        context = SinkContext("crash", str(folder / "checkpoint"), backend, settings, trigger)
        queries = Queries()
        # The one that is asked for is under way first, the others in any order.
        for sink in sorted(sinks, key=lambda sink: (sink.name != told["first"], random.random())):
            # One view for each query, as a run has it.
            frame(spark, source, streaming=True).createOrReplaceTempView("records")
            asked = "upper(CAST(value AS STRING)) AS value, key"
            dated = "" if sink.kind == "topic" else ", DATE'2026-01-01' AS date"
            found = spark.sql(f"SELECT /*+ REPARTITION({parts}) */ {asked}{dated} FROM records")
            queries.start(partial(start_sink, found, sink, context))
        while queries.check():
            time.sleep(0.1)
        if not told["last"]:
            raise SystemExit("the queries ended by themselves")
        for sink in sinks:
            tidy_sink(sink, context)
    tables = {
        kind: [row.value for row in spark.read.format(kind).load(str(folder / kind)).collect()]
        for kind in ("parquet", "delta")
    }
    (folder / "tables.json").write_text(json.dumps(tables))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
