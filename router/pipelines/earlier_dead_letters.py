"""Dead letters that a pipeline has sent before its checkpoint began: a backfill sends them no more.

A new checkpoint reads messages again, and finds the same ones bad. Which those are is looked up
once, before the first batch, in the topics of dead letters, and kept in the checkpoint; of a topic
that was created again the time of publishing tells other messages at the same positions apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from router.backends import Backend
from router.errors import TopicNotFoundError
from router.pipelines.checks import reader
from router.pipelines.declaration import DEAD_LETTERS, DEAD_SUFFIX, Pipeline, SourceSpec
from router.pipelines.ownership import opened_folder
from router.pipelines.source import frame
from router.services.dead_letters.dead_letter import (
    PIPELINE_NAME,
    PIPELINE_PARTITION,
    PIPELINE_POSITION,
    PIPELINE_TIME,
    PIPELINE_TOPIC,
)
from router.settings import Settings

FOLDER: Final = "earlier-dead-letters"
_SENT: Final = "_router_sent"
_NOTES: Final = (PIPELINE_NAME, PIPELINE_TOPIC, PIPELINE_PARTITION, PIPELINE_POSITION)


def without_earlier(
    dead_letters: DataFrame,
    pipeline: Pipeline,
    backend: Backend,
    settings: Settings,
) -> DataFrame:
    """Return the dead letters of a pipeline that it has not sent with an earlier checkpoint.

    Raises BackendUnavailableError, BackendTimeoutError if the store does not answer.
    """
    spark = dead_letters.sparkSession
    kept = f"{pipeline.checkpoint.rstrip('/')}/{FOLDER}"
    if not opened_folder(pipeline.checkpoint, spark).begun(DEAD_LETTERS):
        topics = tuple(_topics(pipeline, backend, settings))
        source = replace(pipeline.source, topics=topics, pattern="")
        _keep(spark, pipeline.name, source, kept)
    known = spark.read.schema(f"{_SENT} ARRAY<STRING>").parquet(kept)
    return (
        dead_letters.join(known, _note() == f.col(_SENT), "left_anti")
        if known.take(1)
        else dead_letters
    )


def _keep(spark: SparkSession, name: str, source: SourceSpec, kept: str) -> None:
    """Write down which dead letters of a pipeline there are in the topics of a source."""
    sent = spark.createDataFrame([], f"{_SENT} ARRAY<STRING>")
    if source.topics:
        spec = replace(source, starting="earliest", on_loss="skip", skip_dead=False)
        found = frame(spark, spec, False).select("properties")
        sent = found.where(f.col("properties")[PIPELINE_NAME] == name).select(_note().alias(_SENT))
    sent.write.mode("overwrite").parquet(kept)


def _note() -> Column:
    """Return what a dead letter's properties say of the message that it was."""
    return f.array(*(f.col("properties")[note] for note in (*_NOTES, PIPELINE_TIME)))


def _topics(pipeline: Pipeline, backend: Backend, settings: Settings) -> Iterator[str]:
    """Yield the topics of dead letters that exist."""
    timeout = settings.seconds("backend.timeout")
    sources = pipeline.sources().values()
    read = [topic for source in sources for topic in source.topics]
    if any(source.pattern for source in sources):
        reads = reader(pipeline, settings)
        listed = [info.topic for info in backend.list_topics(timeout)]
        read += [settings.shortest_name(topic) for topic in listed if reads(topic)]
    named = [pipeline.dead_letters] if pipeline.dead_letters else [t + DEAD_SUFFIX for t in read]
    for name in dict.fromkeys(named):
        try:
            backend.partitions(settings.topic(name), timeout)
        except TopicNotFoundError:
            continue
        yield name
