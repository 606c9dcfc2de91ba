"""Where Spark finds the data source `router`: it looks at installed packages named `pyspark_…`.

Spark imports them when a session first uses a data source of Python, so that one that cannot be
imported would end all others: a Spark that lacks what the source needs goes on without it.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from router.pipelines.source.router_source import RouterSource as DefaultSource

__all__ = ["DefaultSource"]
