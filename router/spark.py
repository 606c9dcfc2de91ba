"""Plain PySpark: the data source `router`, for sessions that do not find it by themselves."""

from __future__ import annotations

from router.pipelines.source import register
from router.pipelines.source.router_source import RouterSource

__all__ = ["RouterSource", "register"]
