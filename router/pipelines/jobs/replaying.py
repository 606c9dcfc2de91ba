"""Publishes an archive again: byte for byte, in order in each partition, at a bounded rate.

Rows are written down in order first (`replay_files`), by one shuffle that brings each partition of
a topic into one task, which sorts it. Then one thread publishes them: a bounded rate needs no more,
and order no less. A run that was stopped or killed goes on where it was and repeats nothing,
because the store knows what it has of a file by the file's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession, functions

from router.backends import Deduplicating
from router.errors import ReadFailedError, SettingError, TopicExistsError, TopicNotFoundError
from router.model import REPLAYED, TopicInfo, TopicName
from router.pipelines.declaration import SinkSpec
from router.pipelines.jobs.audit import POSITION, archive, order
from router.pipelines.jobs.options import JobContext, JobOptions
from router.pipelines.jobs.replay_files import COLUMNS, ReplayFiles, ReplayPlan, chunks, topics
from router.pipelines.sinks.chunks import AppendChunk
from router.pipelines.sinks.context import SinkTopicOptions
from router.pipelines.sinks.parquet import WRITTEN
from router.pipelines.sinks.publishing import (
    PublisherIdentity,
    TransactionalPublisher,
    open_publisher,
)

MAX_TOPICS: Final = 1_000
_RETRY_SECONDS: Final = 300.0
_APPEND_ROWS: Final = 1_000
# A file is one transaction on Kafka, which gives up on those that take minutes. A run that goes on
# at a lower rate than its files were made for commits each in time, and waits behind it.
_FILE_SECONDS: Final = 10.0
MAX_TRANSACTION_SECONDS: Final = 60.0
_NOTICE_INTERVAL_SECONDS: Final = 10.0


class _Stopped(Exception):  # noqa: N818 - no failure: it was told to
    """The run was told to end within a file."""


def replay(context: JobContext, options: JobOptions) -> bool:
    """Publish what is left of the replay; return True, also when it was stopped before its end.

    Raises SettingError, ReadFailedError, and what the store refuses.
    """
    pipeline = context.pipeline
    checkpoint = pipeline.checkpoint.removeprefix("file://")
    files = ReplayFiles(Path(checkpoint) / "replay")
    plan = _plan(context, options, files)
    if not plan.files:
        files.forget()
        context.notify(f"{options.text('archive')} has no message of these topics and times")
        return True
    identity = PublisherIdentity(pipeline.name, "replay", plan.identity)
    places = {
        name: (context.settings.topic(name), count) for name, count in plan.partitions.items()
    }
    publisher = open_publisher(context.backend, identity, _RETRY_SECONDS)
    remembered = SinkTopicOptions.from_settings(
        SinkSpec("replay", "topic"), context.settings
    ).remembered
    transactional = isinstance(publisher, TransactionalPublisher)
    pace = ReplayPace(
        options.number("rate"),
        context.clock,
        context.stop.wait,
        MAX_TRANSACTION_SECONDS if transactional else inf,
    )
    first = files.next(plan)
    if first == len(plan.files):
        context.notify(
            f"an earlier run replayed all {plan.rows} messages, and this one none: another"
            " checkpoint, which the command has by --name, replays them again"
        )
        return True
    done = sum(rows for _, rows in plan.files[:first])
    reported_at = context.clock()
    for number, (path, rows) in list(enumerate(plan.files))[first:]:
        now = context.wall_ms()
        begun = files.begin(plan, number, now)
        if now - begun > remembered * 1000:
            raise ReadFailedError(_too_late(path))
        try:
            publisher.publish(number, partial(_appends, path, places, plan.append_rows, pace))
        except _Stopped:
            context.notify(f"stopped: {done} of {plan.rows} messages are replayed for certain")
            return True
        files.finish(plan, number)
        done += rows
        if context.clock() - reported_at >= _NOTICE_INTERVAL_SECONDS:
            reported_at = context.clock()
            context.notify(f"replayed {done} of {plan.rows} messages")
    context.notify(f"replayed all {plan.rows} messages")
    return True


def _too_late(path: Path) -> str:
    return (
        f"{path} was begun longer ago than the store remembers what it has of it: nobody"
        " knows how much of it is published. Look at the end of the topic, then replay the"
        " rest from there, with another checkpoint."
    )


def _appends(
    path: Path, places: Mapping[str, tuple[TopicName, int]], max_rows: int, pace: ReplayPace
) -> Iterator[AppendChunk]:
    """Return the appends of a file from its first one on; the publisher may ask for them again."""
    return _paced(chunks(path, places, max_rows), pace)


def _paced(found: Iterator[AppendChunk], pace: ReplayPace) -> Iterator[AppendChunk]:
    first = True
    for chunk in found:
        if not pace.before(len(chunk.messages), first=first):
            raise _Stopped
        first = False
        yield chunk


def _plan(context: JobContext, options: JobOptions, files: ReplayFiles) -> ReplayPlan:
    """Return what is to be replayed, written down now or by an earlier run."""
    chosen = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.values.items()
        if name not in {"rate", "chunk"}
    }
    if plan := files.find(chosen):
        return plan
    rate = options.number("rate")
    limit = max(1, min(int(options.number("chunk")), int(rate * _FILE_SECONDS)))
    context.notify(f"reading {options.text('archive')}")

    def write(folder: Path) -> None:
        rows = prepared(context.spark, options)
        writer = rows.write.options(**WRITTEN).option("maxRecordsPerFile", limit)
        # Not as_uri(): Hadoop takes paths as they are, and would not undo its escapes.
        writer.parquet(f"file://{folder.absolute()}")

    def partitions(folder: Path) -> dict[str, int]:
        return _partitions(context, topics(folder, MAX_TOPICS))

    return files.make(chosen, write, partitions, max(1, min(_APPEND_ROWS, int(rate))))


def _partitions(context: JobContext, highest: dict[str, int]) -> dict[str, int]:
    """Return how many partitions the topics have; those that are not there are made alike."""
    return {
        name: _count(context, context.settings.topic(name), partition + 1)
        for name, partition in highest.items()
    }


def _count(context: JobContext, topic: TopicName, partition_count: int) -> int:
    backend, timeout = context.backend, context.settings.seconds("backend.timeout")
    try:
        backend.partitions(topic, timeout)
    except TopicNotFoundError:
        many = partition_count if partition_count > 1 else 0
        with suppress(TopicExistsError):  # another publisher was first
            backend.create_topic(TopicInfo(topic, many), timeout)
    if isinstance(backend, Deduplicating) and not backend.deduplicates(topic, timeout):
        raise SettingError(
            f"topic {topic}: Apache Pulsar does not drop repeats: set its policy deduplication"
        )
    return backend.partitions(topic, timeout)


def prepared(spark: SparkSession, options: JobOptions) -> DataFrame:
    """Return the rows to publish, in order in each Spark partition; raise SettingError.

    A position that the archive holds twice is published once.
    """
    with archive(spark, options) as rows:
        return _sorted(_chosen(rows, options), options)


def _chosen(rows: DataFrame, options: JobOptions) -> DataFrame:
    if options.texts("topics"):
        rows = rows.where(functions.col("topic").isin(*options.texts("topics")))
    published = functions.col("publish_time")
    for name, keep in (("from", published.__ge__), ("until", published.__lt__)):
        if options.text(name):
            rows = rows.where(keep(functions.to_timestamp(functions.lit(options.text(name)))))
    return rows


def _sorted(rows: DataFrame, options: JobOptions) -> DataFrame:
    column, lit = functions.col, functions.lit
    own = functions.map_filter(
        functions.coalesce(
            column("properties"), functions.expr("map()").cast("map<string,string>")
        ),
        lambda name, _: name != lit(REPLAYED),
    )
    mark = functions.concat_ws(":", column("topic"), column("partition"), column("position"))
    return (
        rows.repartition("topic", "partition")
        .dropDuplicates(list(POSITION))
        .withColumn("place", order())
        .sortWithinPartitions("topic", "partition", "place")
        .select(
            functions.replace(lit(options.text("to")), lit("{topic}"), column("topic")).alias(
                "topic"
            ),
            "partition",
            "key",
            "value",
            functions.map_concat(own, functions.create_map(lit(REPLAYED), mark)).alias(
                "properties"
            ),
            functions.unix_millis("event_time").alias("event_time"),
        )
        .select(*COLUMNS)
    )


class ReplayPace:
    """Makes its caller wait so that rows leave no faster than a rate.

    A batch may start once all rows before it had their time: within any span of `t` seconds no more
    than `rate x t` rows start, and one batch. A caller that was slow gets nothing saved up for it:
    a store that comes back after a failure is not flooded. `wait` sleeps for so many seconds and
    returns whether to give up, as `threading.Event.wait` does.

    What is left of a file `file_seconds` after its first batch starts at once. The first batch of
    the next one waits for the time of those rows, too.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float],
        wait: Callable[[float], bool],
        file_seconds: float = inf,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._file_seconds = file_seconds
        self._free = clock()
        self._latest = inf

    def before(self, rows: int, *, first: bool = True) -> bool:
        """Wait until this many rows may start; return False when told to stop instead.

        They are the `first` of a file, or not.
        """
        start = max(self._free, self._clock())
        latest = start if first else min(start, self._latest)
        while (left := latest - self._clock()) > 0:
            if self._wait(left):
                return False
        if first:
            self._latest = self._clock() + self._file_seconds
        self._free = start + rows / self._rate
        return True
