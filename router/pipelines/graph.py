"""From a declaration to the rows of each sink: source, format, views of the steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from router.pipelines import formats, jobs
from router.pipelines.declaration import DEAD_LETTERS, Pipeline, SinkSpec, SourceSpec, ViewStep
from router.pipelines.failures import sentence
from router.pipelines.reading import DeclarationError, offset_of
from router.pipelines.schema_grammar import BadColumnsError

_WHERE: Final = re.compile(r"line (\d+)[,)]? ?pos(?:ition)? (\d+)")


@dataclass(frozen=True, slots=True)
class SinkFlow:
    """One sink and the rows that go there."""

    sink: SinkSpec
    rows: DataFrame


def flows(
    pipeline: Pipeline,
    sources: Mapping[str, SourceSpec],
    read: Callable[[SourceSpec], DataFrame],
) -> Iterator[SinkFlow]:
    """Yield what each sink takes, the sink of dead letters last.

    `sources` are those of the pipeline, with their schemas; `read` returns a stream of one's
    messages. Each flow has a reading of its own, with offsets of its own, for each is a query. The
    views of tables are there already. Raises DeclarationError for what Spark finds wrong, with the
    line.
    """

    def split() -> dict[str, tuple[DataFrame, DataFrame]]:
        return {
            name: _split(pipeline, name, source, read(source)) for name, source in sources.items()
        }

    for sink in pipeline.sinks:
        views = step_views(pipeline, {name: good for name, (good, _) in split().items()})
        yield SinkFlow(sink, views[sink.from_step.lower()])
    if pipeline.bad_records == "dlq":
        bad = reduce(DataFrame.unionByName, (bad for _, bad in split().values()))
        to = SinkSpec(DEAD_LETTERS, "topic")
        yield SinkFlow(to, formats.dead_letters(bad, pipeline.dead_letters, pipeline.name))


def _split(
    pipeline: Pipeline, name: str, source: SourceSpec, rows: DataFrame
) -> tuple[DataFrame, DataFrame]:
    fail = pipeline.bad_records == "fail"
    try:
        return formats.decode(rows, source, _problem(pipeline), name=name, fail=fail)
    except BadColumnsError as error:
        path = (*pipeline.source_path(name), "schema")
        raise pipeline.origin.error(path, str(error), error.offset) from error


def _problem(pipeline: Pipeline) -> Callable[[Column, Column], Column] | None:
    if pipeline.job is None:
        return None
    return jobs.problem(pipeline.job, pipeline.origin.file.parent)


def step_views(pipeline: Pipeline, good: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Return the views by name in lower case, of the rows of each source.

    Raises DeclarationError.
    """
    views: dict[str, DataFrame] = {}
    for name, source in pipeline.sources().items():
        try:
            views[name.lower()] = _within(_late(good[name], source.watermark), source)
        except PySparkException as error:
            path = (*pipeline.source_path(name), "watermark")
            raise pipeline.origin.error(path, sentence(error)) from error
        views[name.lower()].createOrReplaceTempView(name)
    spark = next(iter(views.values())).sparkSession
    for step in pipeline.steps:
        try:
            rows = _late(spark.sql(step.sql), step.watermark)
        except PySparkException as error:
            raise refused(pipeline, step, error) from error
        rows.createOrReplaceTempView(step.name)
        views[step.name.lower()] = rows
    return views


def _within(rows: DataFrame, source: SourceSpec) -> DataFrame:
    """Return the rows of the source's range of time; later ones have moved its watermark."""
    if source.since_ms:
        rows = rows.where(f"_publish_time >= timestamp_millis({source.since_ms})")
    if source.until_ms:
        rows = rows.where(f"_publish_time < timestamp_millis({source.until_ms})")
    return rows


def _late(rows: DataFrame, watermark: Any) -> DataFrame:
    return rows if watermark is None else rows.withWatermark(watermark.column, watermark.delay)


def refused(pipeline: Pipeline, step: ViewStep, error: Exception) -> DeclarationError:
    """Return what Spark says of a step's SQL, with its place in the file."""
    where = _WHERE.search(str(error))
    offset = offset_of(step.sql, int(where[1]), int(where[2])) if where else 0
    return step.error(pipeline.origin, sentence(error), offset)
