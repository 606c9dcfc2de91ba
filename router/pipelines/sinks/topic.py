"""Topics: each batch is staged as files, published from them, and forgotten with the next one."""

# Theory of operation. The steps of batch N, all of them in Spark's own thread for the query:
#   1. what was staged for batches before N goes: they are committed, or N would not have begun;
#   2. if N is not staged as a whole, Spark writes its rows and the folder becomes the batch;
#   3. where its rows go is decided and noted: each topic's full name and partitions;
#   4. it is noted that publishing begins, then the appends are published, then that it is done;
#   5. Spark commits N in its own log.
# A crash after any step makes Spark ask for N again, with the rows of the same offsets; from step 2
# on the staged ones count. What step 4 repeats, the store drops (`publishing`).
#
# Batches are numbered by Spark's checkpoint, whose own random id (`metadata`) is part of all names:
# with a new checkpoint both begin again.

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from router.backends import Backend, Deduplicating
from router.errors import (
    BadRequestError,
    PublishRefusedError,
    ReadFailedError,
    RouterError,
    SettingError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import TopicInfo, TopicName
from router.pipelines.declaration import SinkSpec, is_local
from router.pipelines.sinks.chunks import chunks, survey
from router.pipelines.sinks.columns import message_rows
from router.pipelines.sinks.context import SinkContext, SinkTopicOptions
from router.pipelines.sinks.counting import counted
from router.pipelines.sinks.parquet import WRITTEN
from router.pipelines.sinks.publishing import (
    Publisher,
    PublisherIdentity,
    one_try,
    open_publisher,
    persist,
)
from router.pipelines.sinks.staging import SinkTopic, Staged, Staging, StagingDisk, StagingPlan

_log = structlog.get_logger(__name__)


def check(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> None:
    """Raise SettingError for rows that are no messages, and for what the sink cannot keep."""
    message_rows(frame, sink)
    options = SinkTopicOptions.from_settings(sink, context.settings)
    if not is_local(context.folder(sink.name)):
        raise SettingError(
            f"sink {sink.name}: the checkpoint of a topic has to be a folder that the driver and "
            f"all executors share, and {context.checkpoint} is none."
        )
    if sink.topic:
        # A topic that is not there is made, or missed, when there are rows for it.
        with suppress(TopicNotFoundError):
            topic, timeout = context.settings.topic(sink.topic), one_try(options.retry_seconds)
            _check_deduplication(context.backend, topic, timeout)


def start(frame: DataFrame, sink: SinkSpec, context: SinkContext) -> StreamingQuery:
    """Start publishing and return the query."""
    rows = message_rows(frame, sink)
    return context.writer(rows, sink).foreachBatch(TopicSink(sink, context).publish).start()


def tidy(sink: SinkSpec, context: SinkContext) -> None:
    """Take away what is staged for batches that Spark committed; for a query that has ended."""
    folder = context.local_folder(sink.name)
    commits = folder / "commits"
    Staging(folder / "staging", "").forget(lambda batch: (commits / str(batch)).exists())


class TopicSink:
    """What a query does with each batch: `publish`, called by one thread.

    `limits` are for batches that are staged from now on: those that are keep theirs.
    """

    def __init__(
        self,
        sink: SinkSpec,
        context: SinkContext,
        disk: StagingDisk | None = None,
        limits: StagingPlan | None = None,
    ) -> None:
        self._sink = sink
        self._context = context
        self._disk = disk or StagingDisk()
        topic = str(context.settings.topic(sink.topic)) if sink.topic else ""
        self._plan = replace(limits or StagingPlan(""), topic=topic)
        self._options = SinkTopicOptions.from_settings(sink, context.settings)
        self._largest = context.settings.number("publish.max_message")
        self._opened: tuple[Staging, Publisher] | None = None

    def publish(self, frame: DataFrame, batch: int) -> None:
        """Publish a batch once, and return when it is durable; raise PublishRefusedError."""
        self.run(batch, lambda folder: _write(frame, folder))

    def run(self, batch: int, write: Callable[[Path], None]) -> None:
        """Publish the rows that are staged, or that `write` writes; see `publish`."""
        try:
            self._run(batch, write)
        except (RouterError, OSError) as error:
            refusal = PublishRefusedError(self._sentence(batch, error))
            self._context.failed(self._sink.name, refusal)
            raise refusal from error

    def _run(self, batch: int, write: Callable[[Path], None]) -> None:
        staging, publisher = self._opened = self._opened or self._open()
        self._sync_log(batch)
        staging.forget(lambda other: other < batch)
        staged = staging.find(batch) or staging.make(batch, write, self._plan)
        if staging.finished(staged):
            return
        places = staging.places(staged)
        if places is None:
            places = self._decide(staging, staged)
            staging.decide(staged, places)
        if places:
            name = PublisherIdentity(self._context.pipeline, self._sink.name, "").name
            self._check_memory(staging.begin(staged, self._context.wall_ms(), name), batch)
            publisher.publish(batch, partial(chunks, staged, places, self._largest))
        staging.finish(staged)

    def _sync_log(self, batch: int) -> None:
        """Have on disk what Spark's log says of this batch and the one before; it never syncs.

        Without the first a machine that lost its power would stage other offsets under the number,
        without the second it would ask again for a batch that is forgotten.
        """
        folder = self._context.local_folder(self._sink.name)
        for log, number in (("offsets", batch), ("commits", batch - 1)):
            for name in (f"{number}", f".{number}.crc"):
                if (folder / log / name).exists():
                    self._disk.sync(folder / log / name)
            if (folder / log).exists():
                self._disk.sync(folder / log)

    def _open(self) -> tuple[Staging, Publisher]:
        folder = self._context.local_folder(self._sink.name)
        checkpoint = checkpoint_id(folder, self._disk)
        identity = PublisherIdentity(self._context.pipeline, self._sink.name, checkpoint)
        publisher = open_publisher(self._context.backend, identity, self._options.retry_seconds)
        return Staging(folder / "staging", checkpoint, self._disk), publisher

    def _decide(self, staging: Staging, staged: Staged) -> dict[str, SinkTopic]:
        """Return where the rows for each topic go; a batch that cannot be published is dropped."""
        retry_seconds = self._options.retry_seconds
        try:
            named = {
                name: self._context.settings.topic(name) for name in survey(staged, self._largest)
            }
            self._check_circle(named.values())
            return {
                given: persist(partial(self._place, topic), retry_seconds)
                for given, topic in sorted(named.items())
            }
        except RouterError as error:
            # Nothing of it is published: another topic, SQL or limit may make it again.
            if not error.retriable:
                staging.discard(staged)
            raise

    def _check_circle(self, topics: Iterable[TopicName]) -> None:
        """Refuse rows for what the source reads: each would come back as another one."""
        if circle := sorted(str(topic) for topic in topics if self._context.reads(topic)):
            raise BadRequestError(
                f"There are rows for {circle[0]}, which the source reads: name other topics, or"
                " have the source read fewer"
            )

    def _place(self, topic: TopicName) -> SinkTopic:
        backend, timeout = self._context.backend, one_try(self._options.retry_seconds)
        try:
            partitions = backend.partitions(topic, timeout)
        except TopicNotFoundError:
            if not self._context.settings.flag("topics.auto_create"):
                raise
            self._create(topic, timeout)
            partitions = backend.partitions(topic, timeout)
        _check_deduplication(backend, topic, timeout)
        return SinkTopic(str(topic), partitions)

    def _create(self, topic: TopicName, timeout: float) -> None:
        partitions = self._context.settings.number("topics.auto_partitions")
        try:
            self._context.backend.create_topic(TopicInfo(topic, partitions), timeout)
        except TopicExistsError:
            _log.debug("topic-exists", topic=str(topic))  # another publisher was first

    def _check_memory(self, begun_ms: int, batch: int) -> None:
        """Refuse a batch of which the store may have forgotten what it has."""
        seconds = (self._context.wall_ms() - begun_ms) / 1000
        if seconds <= self._options.remembered or self._options.publish_forgotten:
            return
        raise ReadFailedError(
            f"it was broken off {seconds / 3600:.1f} hours ago, and the store may have forgotten "
            f"what it has of it after {self._options.remembered / 3600:.1f}: look which of its "
            'messages are there, and set on_forgotten = "publish" to have all of them again.'
        )

    def _sentence(self, batch: int, error: Exception) -> str:
        where = self._sink.topic or "topics of its rows"
        return (
            f"Pipeline {self._context.pipeline}, sink {self._sink.name} ({where}): batch {batch} "
            f"could not be published: {str(error).rstrip('.')}. "
            "Nothing is lost: the next run goes on with it."
        )


def checkpoint_id(folder: Path, disk: StagingDisk) -> str:
    """Return the random id that Spark gave a query's checkpoint, durable from here on."""
    path = folder / "metadata"
    try:
        found = str(json.loads(path.read_text())["id"])
    except (OSError, ValueError, KeyError) as error:
        raise ReadFailedError(f"{path} does not tell the checkpoint's id: {error}.") from error
    disk.sync(path)
    disk.sync(folder)
    return found


def _write(frame: DataFrame, folder: Path) -> None:
    def write(rows: DataFrame) -> None:
        # Not as_uri(): Hadoop takes paths as they are, and would not undo its escapes.
        rows.write.options(**WRITTEN).option(
            "mapreduce.fileoutputcommitter.marksuccessfuljobs", "true"
        ).parquet(f"file://{folder.absolute()}")

    check_rows(folder, counted(frame, write))


def check_rows(folder: Path, written: int) -> None:
    """Raise ReadFailedError unless a folder of Parquet files has as many rows as were written.

    Executors on other machines write to folders of their own where it is not shared, and Spark
    takes that for done.
    """
    found = sum(parquet.read_metadata(path).num_rows for path in folder.glob("part-*"))
    if found != written:
        raise ReadFailedError(
            f"executors wrote {written} rows to {folder}, and {found} are there: the checkpoint has"
            " to be a folder that the driver and all executors share."
        )


def _check_deduplication(backend: Backend, topic: TopicName, timeout: float) -> None:
    if isinstance(backend, Deduplicating) and not backend.deduplicates(topic, timeout):
        raise SettingError(
            f"topic {topic}: Apache Pulsar does not drop repeats there; have it do so with "
            f"pulsar-admin topicPolicies set-deduplication-status --enable {topic}, or for the "
            "whole namespace."
        )
