"""Compares what topics hold with what an archive and dead letters have of it, by position."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions

from router.errors import SettingError, TopicNotFoundError
from router.model import TopicName
from router.pipelines.declaration import DEAD_SUFFIX
from router.pipelines.formats import PROPERTY
from router.pipelines.jobs.auditing import POSITION, accounts
from router.pipelines.jobs.options import Options
from router.pipelines.source import frame, row_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.pipelines.jobs import JobContext


def audit(context: JobContext, options: Options) -> bool:
    """Say each partition's account; return whether all are balanced, and nothing was left out.

    The archive is looked at before the topics: what comes meanwhile waits, and is not missing.
    """
    topics = options.texts("topics")
    named = row_names(context.pipeline.source, topics)
    archived = _archived(context, options).where(functions.col("topic").isin(*named))
    dead = _dead(context, options).where(functions.col("topic").isin(*named))
    found = accounts(_messages(context, topics), archived, dead, int(options.number("names")))
    complete = options.flag("complete")
    for account in found:
        for line in account.lines(complete=complete):
            context.say(line)
    return all(account.balanced(complete=complete) for account in found)


def _messages(context: JobContext, topics: tuple[str, ...]) -> DataFrame:
    """Return what the store holds of topics now, from the first message."""
    source = replace(
        context.pipeline.source, topics=topics, pattern="", format="bytes", starting="earliest"
    )
    return frame(context.spark, source, False)


def _archived(context: JobContext, options: Options) -> DataFrame:
    path = options.text("archive")
    try:
        rows = context.spark.read.format(options.text("format")).load(path)
        return rows.select(*POSITION)
    except AnalysisException as error:
        first = str(error).strip().partition("\n")[0]
        raise SettingError(f"{path} is no archive: {first}") from error


def _dead(context: JobContext, options: Options) -> DataFrame:
    """Return which messages the dead letters are of; the topics that are not there have none."""
    wanted = options.texts("dead_letters")
    named = wanted or tuple(f"{topic}{DEAD_SUFFIX}" for topic in options.texts("topics"))
    topics = tuple(name for name in named if _there(context, name))
    if wanted and topics != wanted:
        raise SettingError(f"there is no topic {', '.join(sorted(set(wanted) - set(topics)))}")
    if not topics:
        empty = "topic string, partition int, position string"
        return context.spark.createDataFrame([], empty)
    letters = _messages(context, topics)
    return letters.select(
        *(
            functions.col("properties")[f"{PROPERTY}{name}"].cast(kind).alias(name)
            for name, kind in (("topic", "string"), ("partition", "int"), ("position", "string"))
        )
    )


def _there(context: JobContext, name: str) -> bool:
    settings = context.settings
    topic = TopicName.parse(name, settings.text("names.tenant"), settings.text("names.namespace"))
    try:
        context.backend.partitions(topic, settings.seconds("backend.timeout"))
    except TopicNotFoundError:
        return False
    return True
