"""How many rows Spark says that it wrote: what is there has to be as many."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from router.errors import ReadFailedError

COUNT_SECONDS: Final = 60.0
"""How long Spark's count of the rows of a write may come after its end."""
COUNT_PAUSE_SECONDS: Final = 0.01


def counted(frame: DataFrame, write: Callable[[DataFrame], None]) -> int:
    """Write rows, and return how many they were; raise ReadFailedError if Spark does not tell."""
    seen: Any = Observation()
    write(frame.observe(seen, f.count(f.lit(1)).alias("rows")))
    until = time.monotonic() + COUNT_SECONDS
    while not seen._jo.future().isCompleted():
        if time.monotonic() >= until:
            raise ReadFailedError("Spark does not tell how many rows it wrote.")
        time.sleep(COUNT_PAUSE_SECONDS)
    return int(seen.get["rows"])
