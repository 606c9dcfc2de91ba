"""Writing of frames to topics by Spark's own rules: at least once.

A frame has a column `value`, text or bytes, and may have `key`, `properties` or `headers`,
`event_time` and `topic`; the other columns of a source, by either of its layouts, are passed over,
so that a topic can be copied as it is. A
task that fails is run again, and what it published before is there twice. Pipelines do not write
this way: their sinks stage a batch first, and publish what is staged exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from router.backends import Backend, Batch
from router.backends.opening import opened
from router.errors import SettingError
from router.model import Message, TopicName
from router.pipelines.source.options import EMBEDDED, SourceOptions
from router.pipelines.source_columns import ARROW_KAFKA_HEADERS, COLUMNS
from router.services.partitioning import partition_of
from router.services.topic_metadata import TopicMetadataCache
from router.wire.repeated_headers import as_properties

KAFKA_COLUMN_NAMES: Final = frozenset(ARROW_KAFKA_HEADERS.names)
BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 512 * 1024
BUFFERED_BYTES: Final = 16 * 1024 * 1024
START_LINGER_SECONDS: Final = 60.0
"""How long a broker that a write starts waits for the first task, and after the last one."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "properties": ("map<string,string>",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "event_time": ("timestamp",),
    "topic": ("string",),
}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """How many messages a task published."""

    messages: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame; `options` are those that `started` returned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one task; when it returns they are stored."""
        return Written(publish(self._options, iterator))


def started(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Return the options of a write's tasks, for which a broker is there; called by the driver.

    Raises SettingError for columns that no message has, BackendUnavailableError,
    BackendTimeoutError.
    """
    check_columns(options, schema)
    if options.kind == "kafka":
        return options.attached()
    linger = f"{max(START_LINGER_SECONDS, options.settings.seconds('broker.linger')):g}s"
    with opened(options.settings.replaced("the source", broker__linger=linger)) as (_, backend):
        if options.kind == EMBEDDED:
            backend.ready(options.settings.seconds("backend.timeout"))
        return options.of_broker(backend).attached()


def check_columns(options: SourceOptions, schema: StructType) -> None:
    """Return if rows of this schema can be published; raise SettingError."""
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in given.items():
        if name not in _TYPES and name not in COLUMNS and name not in KAFKA_COLUMN_NAMES:
            raise SettingError(f"column {name}: a message has {', '.join(_TYPES)}")
        if name in _TYPES and kind not in _TYPES[name]:
            raise SettingError(f"column {name} is {kind}: expected {' or '.join(_TYPES[name])}")
    if {"properties", "headers"} <= given.keys():
        raise SettingError("columns properties and headers say the same: write one of them")
    if "value" not in given:
        raise SettingError("a frame that is written to topics needs a column `value`")
    if not options.topic and "topic" not in given:
        raise SettingError("name a topic: the option `topic`, or a column of that name")


def publish(options: SourceOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """Publish rows and return how many; those of a topic and key in the order in which they come.

    Raises what the store raises, after which some of them may be stored.
    """
    with options.opened() as backend:
        publisher = _Publisher(options, backend)
        for batch in batches:
            for topic, message in messages(batch, options.topic):
                publisher.add(topic, message)
        publisher.flush()
        return publisher.messages


class _Publisher:
    """Gathers messages by partition and publishes them in batches."""

    def __init__(self, options: SourceOptions, backend: Backend) -> None:
        settings = options.settings
        self._timeout = settings.seconds("backend.timeout")
        self._named = options.settings.topic
        self._backend = backend
        self._create = settings.flag("topics.auto_create")
        self._directory = TopicMetadataCache(
            backend, settings.number("topics.auto_partitions"), self._timeout, time.monotonic
        )
        self._topics: dict[str, TopicName] = {}
        self._waiting: dict[tuple[TopicName, int], list[Message]] = {}
        self._sizes: dict[tuple[TopicName, int], int] = {}
        self._held = 0
        self._turn: Callable[[], int] = count().__next__
        self.messages = 0

    def add(self, name: str, message: Message) -> None:
        """Take a message; publish its batch if that is full."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self._named(name)
        partitions = self._directory.partitions(topic, create=self._create)
        if message.key is not None or not partitions:
            partition = partition_of(message.key or b"", partitions)
        else:
            partition = self._turn() // BATCH_MESSAGES % partitions
        place, size = (topic, partition), message.size()
        if self._sizes.get(place, 0) + size > BATCH_BYTES:
            self._publish(place)
        waiting = self._waiting.setdefault(place, [])
        waiting.append(message)
        self._sizes[place] = self._sizes.get(place, 0) + size
        self._held += size
        if len(waiting) >= BATCH_MESSAGES:
            self._publish(place)
        elif self._held > BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        for place in list(self._waiting):
            self._publish(place)

    def _publish(self, place: tuple[TopicName, int]) -> None:
        waiting = self._waiting.pop(place, [])
        self._held -= self._sizes.pop(place, 0)
        if waiting:
            self._backend.publish(Batch(*place, waiting), self._timeout)
            self.messages += len(waiting)


def messages(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, Message]]:
    """Yield each row's topic, `topic` if that is not empty, and message; raise SettingError."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing: list[Any] = [None] * batch.num_rows
    properties_of = _from_headers if "headers" in columns else dict
    described = columns.get("headers", columns.get("properties", nothing))
    for value, key, properties, event_time, name in zip(
        columns["value"],
        columns.get("key", nothing),
        described,
        columns.get("event_time", nothing),
        columns.get("topic", nothing),
        strict=True,
    ):
        if not (topic or name):
            raise SettingError("a row names no topic, and there is no option `topic`")
        yield (
            topic or name,
            Message(
                _bytes(value) or b"",
                _bytes(key),
                {k: v for k, v in properties_of(properties or ()).items() if v is not None},
                None if event_time is None else _milliseconds(event_time),
                null=value is None,
            ),
        )


def _from_headers(headers: Sequence[Mapping[str, Any]]) -> Mapping[str, str | None]:
    """Return headers as properties, without those of null values; raise SettingError."""
    try:
        pairs = [(one["key"], one["value"].decode()) for one in headers if one["value"] is not None]
    except UnicodeDecodeError as error:
        raise SettingError(f"a header is no UTF-8, which properties are: {error}") from error
    return as_properties(pairs)[0]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _milliseconds(when: datetime) -> int:
    since = when - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
