"""Spark itself judges a declaration: its streams are started on no messages, and nothing is kept.

What parsing cannot know is found: types, numbers of arguments, tables that are not there, and what
streams cannot have.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pyspark.sql import SparkSession

from router.errors import SettingError
from router.pipelines.declaration import SELF_DESCRIBED, Pipeline, SinkSpec
from router.pipelines.queries import RunFailedError
from router.pipelines.reading import DeclarationError
from router.pipelines.testing.cases import Case
from router.pipelines.testing.running import run

_EMPTY: Final = Case("analysis", ((),), {}, "")


def analyse(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise DeclarationError for what Spark refuses, with its place."""
    for name, source in pipeline.sources().items():
        if source.format in SELF_DESCRIBED and not source.schema:
            raise pipeline.origin.error(
                pipeline.source_path(name),
                "its columns come with the messages: declare its schema to have it analysed",
            )
    for sink in pipeline.sinks:
        if error := _failure(spark, replace(pipeline, sinks=(sink,))):
            raise _located(spark, pipeline, sink, error)


def _failure(spark: SparkSession, pipeline: Pipeline) -> str:
    """Return what Spark says of a pipeline of one sink, nothing: it runs."""
    with TemporaryDirectory() as folder:
        try:
            run(spark, replace(pipeline, bad_records="skip"), _EMPTY, Path(folder))
        except DeclarationError:
            raise
        except (SettingError, RunFailedError) as error:
            return str(error).removeprefix(f"sink {pipeline.sinks[0].name}: ")
    return ""


def _located(
    spark: SparkSession, pipeline: Pipeline, sink: SinkSpec, error: str
) -> DeclarationError:
    """Return the error about the first step that fails in the same way, or else about the sink."""
    for step in pipeline.steps:
        part = replace(sink, kind="parquet", from_step=step.name, partition_by=(), key=())
        if _failure(spark, replace(pipeline, sinks=(part,))) == error:
            return step.error(pipeline.origin, error)
    return pipeline.origin.error(sink.declared, f"sink {sink.name}: {error}")
