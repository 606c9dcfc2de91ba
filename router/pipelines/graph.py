"""From a declaration to the rows of each sink: source, format, views of the steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession

from router.pipelines import formats, jobs
from router.pipelines.declaration import DEAD_LETTERS, RECORDS, Pipeline, SinkSpec, SourceSpec, Step
from router.pipelines.failures import sentence
from router.pipelines.reading import DeclarationError

_WHERE: Final = re.compile(r"line (\d+)[,)]? ?pos")


@dataclass(frozen=True, slots=True)
class Flow:
    """One sink and the rows that go there."""

    sink: SinkSpec
    rows: DataFrame


def flows(spark: SparkSession, pipeline: Pipeline, source: SourceSpec) -> Iterator[Flow]:
    """Yield what each sink takes, the sink of dead letters last.

    Each has a reading of the source of its own, with offsets of its own, for each is a query.
    Raises DeclarationError for what Spark finds wrong, with the line.
    """
    for sink in pipeline.sinks:
        good, _ = _split(spark, pipeline, source)
        views = _views(pipeline, good)
        yield Flow(sink, views[sink.from_step.lower()])
    if pipeline.bad_records == "dlq":
        _, bad = _split(spark, pipeline, source)
        to = SinkSpec(DEAD_LETTERS, "topic")
        yield Flow(to, formats.dead_letters(bad, pipeline.dead_letters))


def _split(
    spark: SparkSession, pipeline: Pipeline, source: SourceSpec
) -> tuple[DataFrame, DataFrame]:
    from router.pipelines.source import frame  # noqa: PLC0415 - needs an extra

    rows = frame(spark, source, True)
    fail = pipeline.bad_records == "fail"
    return formats.decode(rows, source, _problem(pipeline), fail=fail)


def _problem(pipeline: Pipeline) -> Callable[[Column, Column], Column] | None:
    if pipeline.job is None:
        return None
    return jobs.problem(pipeline.job, pipeline.file.parent)


def _views(pipeline: Pipeline, good: DataFrame) -> dict[str, DataFrame]:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    watermark = pipeline.source.watermark
    views = {RECORDS: _late(good, watermark)}
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


def refused(pipeline: Pipeline, step: Step, error: Exception) -> DeclarationError:
    """Return what Spark says of a step's SQL, with the line of the file."""
    where = _WHERE.search(str(error))
    line = step.line + (int(where[1]) - 1 if where else 0)
    return DeclarationError(f"{pipeline.file}:{line}: step {step.name}: {sentence(error)}")
