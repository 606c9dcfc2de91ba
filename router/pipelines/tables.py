"""Tables that steps may join: views of files, of which it is looked now and then which there are.

A streaming query keeps its plan from its start to its end. Spark lists the files of a plain table
once, when the plan is made; Delta looks for the newest version at each batch. So the lists that are
part of the plans are made again, in place: a batch has the files that there are when it begins.
To start the queries again with new plans was not taken: it takes seconds, and stops what runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from router.errors import SettingError
from router.pipelines.declaration import TableSpec
from router.pipelines.failures import sentence


@dataclass(slots=True)
class _TableView:
    spec: TableSpec
    rows: DataFrame
    refreshed: float
    had_files: bool


class Tables:
    """The tables of one run, created as views; used by one thread.

    Raises SettingError for a table that cannot be read.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Sequence[TableSpec],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._views = []
        for table in tables:
            rows = _view(spark, table)
            self._views.append(_TableView(table, rows, clock(), _has_files(table, rows)))

    def refresh(self) -> None:
        """Look which files there are of the tables for which it is time."""
        for view in self._views:
            if view.spec.refresh and self._clock() - view.refreshed >= view.spec.refresh:
                self._look(view)

    def reread(self) -> bool:
        """Look which files there are of all tables; return whether none is being written again.

        One that is had files in this run and may have none now; one that never had any is empty.
        """
        looked = [self._look(view) for view in self._views]
        return all(looked)

    def _look(self, view: _TableView) -> bool:
        """Look which files there are of a table; return False if it had some and has none."""
        view.refreshed = self._clock()
        for files in _file_lists(view.rows):
            files.refresh()
        has_files = _has_files(view.spec, view.rows)
        view.had_files |= has_files
        return has_files or not view.had_files


def _view(spark: SparkSession, table: TableSpec) -> DataFrame:
    reader = spark.read.format(table.format).options(**table.options)
    if table.schema:
        reader = reader.schema(table.schema)
    try:
        rows = reader.load(table.path)
    except PySparkException as error:
        raise SettingError(f"table {table.name}: {sentence(error)}") from error
    rows.createOrReplaceTempView(table.name)
    return rows


def _has_files(table: TableSpec, rows: DataFrame) -> bool:
    """Return whether a table has files; those of Delta have one version or another."""
    return table.format == "delta" or all(len(one.inputFiles()) for one in _file_lists(rows))


def _file_lists(rows: DataFrame) -> Iterator[Any]:
    """Yield the lists of files that the plans of a table have in common."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        relation = leaves.apply(number)
        if relation.getClass().getSimpleName() == "LogicalRelation":
            yield relation.relation().location()
