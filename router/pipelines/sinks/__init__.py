"""Where a pipeline's rows go: topics by staging, Parquet and Delta by Spark's own streaming sinks.

`start_sink` starts one streaming query for one sink; `check_sink` refuses what cannot work before
that; `tidy_sink`, after a query ended well, takes away what only a replay would have needed.
"""

from __future__ import annotations

from router.pipelines.sinks.context import SinkContext
from router.pipelines.sinks.starting import check_sink, start_sink, tidy_sink

__all__ = ["SinkContext", "check_sink", "start_sink", "tidy_sink"]
