"""Delta tables, which several may write and read at a time."""

from __future__ import annotations

from pyspark.sql import DataFrame

from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks.context import SinkContext
from router.pipelines.sinks.files import check_files
from router.pipelines.sinks.files import start_files as start

__all__ = ["check", "start", "tidy"]


def check(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError for a sink that cannot be written."""
    check_files(frame, sink)


def tidy(sink: SinkSpec, context: SinkContext) -> None:
    """Do nothing: a table keeps what it has."""
