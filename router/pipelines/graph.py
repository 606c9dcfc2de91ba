"""From a declaration to the rows of each sink: source, format, views of the steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from router.pipelines import formats, jobs
from router.pipelines.declaration import (
    DEAD_LETTERS,
    RECORDS,
    Pipeline,
    SinkSpec,
    SourceSpec,
    ViewStep,
)
from router.pipelines.failures import sentence
from router.pipelines.reading import DeclarationError, DeclarationOrigin

_WHERE: Final = re.compile(r"line (\d+)[,)]? ?pos")


@dataclass(frozen=True, slots=True)
class SinkFlow:
    """One sink and the rows that go there."""

    sink: SinkSpec
    rows: DataFrame


def flows(
    pipeline: Pipeline, source: SourceSpec, read: Callable[[], DataFrame]
) -> Iterator[SinkFlow]:
    """Yield what each sink takes, the sink of dead letters last.

    `read` returns a stream of the source's messages. Each flow has a reading of its own, with
    offsets of its own, for each is a query. Raises DeclarationError for what Spark finds wrong,
    with the line.
    """
    for sink in pipeline.sinks:
        good, _ = _split(pipeline, source, read())
        views = step_views(pipeline, good)
        yield SinkFlow(sink, views[sink.from_step.lower()])
    if pipeline.bad_records == "dlq":
        _, bad = _split(pipeline, source, read())
        to = SinkSpec(DEAD_LETTERS, "topic")
        yield SinkFlow(to, formats.dead_letters(bad, pipeline.dead_letters))


def _split(pipeline: Pipeline, source: SourceSpec, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    fail = pipeline.bad_records == "fail"
    return formats.decode(rows, source, _problem(pipeline), fail=fail)


def _problem(pipeline: Pipeline) -> Callable[[Column, Column], Column] | None:
    if pipeline.job is None:
        return None
    return jobs.problem(pipeline.job, pipeline.file.parent)


def step_views(pipeline: Pipeline, good: DataFrame) -> dict[str, DataFrame]:
    """Return the views by name in lower case. Raises DeclarationError."""
    try:
        views = {RECORDS: _late(good, pipeline.source.watermark)}
    except PySparkException as error:
        origin = DeclarationOrigin(pipeline.file, pipeline.lines)
        raise origin.error(("source", "watermark"), sentence(error)) from error
    views[RECORDS].createOrReplaceTempView(RECORDS)
    for step in pipeline.steps:
        try:
            rows = _late(good.sparkSession.sql(step.sql), step.watermark)
        except PySparkException as error:
            raise refused(pipeline, step, error) from error
        rows.createOrReplaceTempView(step.name)
        views[step.name.lower()] = rows
    return views


def _late(rows: DataFrame, watermark: Any) -> DataFrame:
    return rows if watermark is None else rows.withWatermark(watermark.column, watermark.delay)


def refused(pipeline: Pipeline, step: ViewStep, error: Exception) -> DeclarationError:
    """Return what Spark says of a step's SQL, with the line of the file."""
    where = _WHERE.search(str(error))
    line = step.line + (int(where[1]) - 1 if where else 0)
    return DeclarationError(f"{pipeline.file}:{line}: step {step.name}: {sentence(error)}")
