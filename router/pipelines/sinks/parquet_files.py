"""Parquet files: one writer, whose log has to be read with them, by Spark or as `maintain` does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from router.errors import SettingError
from router.pipelines.declaration import SinkSpec, is_local
from router.pipelines.sinks.context import SinkContext
from router.pipelines.sinks.files import check_files
from router.pipelines.sinks.files import start_files as start

__all__ = ["check", "start", "tidy"]

_LOG: Final = "_spark_metadata"
_BATCH: Final = re.compile(r"[0-9]+(\.compact)?")


def check(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError for a sink that cannot be written."""
    check_files(frame, sink)
    if sink.mode != "append":
        raise SettingError(
            f"sink {sink.name}: Parquet files take the mode append, not {sink.mode}: a table that "
            "changes is one for the kind delta."
        )
    check_table(sink, context)


def tidy(sink: SinkSpec, context: SinkContext) -> None:
    """Do nothing: a table keeps what it has."""


def check_table(sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError for a Parquet table whose batches another checkpoint has numbered.

    Spark would take the first batches of this one for those, and drop them without a word. Only
    folders of this machine are looked at.
    """
    here = is_local(sink.path) and is_local(context.folder(sink.name))
    if not here:
        return
    table = sink.path.removeprefix("file://")
    known = (context.local_folder(sink.name) / "metadata").exists()
    if not known and any(_BATCH.fullmatch(one.name) for one in Path(table, _LOG).glob("*")):
        raise SettingError(
            f"sink {sink.name}: {sink.path} was written with another checkpoint, by whose numbers "
            "Spark would pass over the batches of this one: name another path, or delete it too."
        )
