"""Spark's settings for short runs: no web page, and nothing that pays only in the long run."""

from __future__ import annotations

from typing import Final

QUICK: Final = {
    "spark.ui.enabled": "false",
    # The second compiler costs more than its code saves, and Delta's state is small.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.databricks.delta.snapshotPartitions": "2",
}
