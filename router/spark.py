"""Plain PySpark: the source `router` for sessions that lack it, and the lag of their queries."""

from __future__ import annotations

from router.pipelines.listening import watch
from router.pipelines.source import register
from router.pipelines.source.router_source import RouterSource

__all__ = ["RouterSource", "register", "watch"]
