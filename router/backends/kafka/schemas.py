"""The schemas of topics, in a topic of Kafka's that all nodes read.

Theory of operation. A record is one schema of one topic (its id in Kafka, so that a topic created
again has none) and tells how many schemas of the topic its writer had seen, and had found it to go
together with. The order of the log decides: a record counts if it has seen all that count before
it, and its version is how many those are; else it counts for nothing, and its writer, which reads
back what it wrote, looks again. So versions are the same for every reader, whatever the rules of
compatibility were, and two nodes that write at once never give one version to two schemas.

The topic is compacted, and every record has a key of its own: what compaction takes away are the
schemas of topics that were deleted. It is read whole at first use; every question asks where it
ends and reads what came since, so that a schema is known at once on every node. The alternative,
versions in the keys, would let compaction keep the later one of two records that met.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final
from uuid import uuid4

import orjson
import structlog

from router.backends import NullMailbox
from router.backends.kafka.admin import create_topic
from router.backends.kafka.cluster import Cluster, shown_id
from router.backends.kafka.names import SCHEMAS, Names
from router.backends.kafka.offsets import EARLIEST, Offsets
from router.backends.kafka.producing import KafkaProducers
from router.backends.kafka.reader import PartitionNumbers, PrefetchingReader
from router.errors import (
    BackendTimeoutError,
    RouterError,
    SchemaNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import Message, Schema, SchemaType, Stored, TopicName
from router.schemas import Strategy, place

READ_BYTES: Final = 1 << 20
READ_MESSAGES: Final = 1_000

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class KafkaSchemas:
    """The schemas of topics; see `Schemas`."""

    _cluster: Cluster
    _offsets: Offsets
    _producers: KafkaProducers
    _names: Names
    _strategy: Strategy
    _replicas: int
    _lock: Lock = field(default_factory=Lock, init=False)
    """Guards the two below, and is never held over I/O."""
    _next: int = field(default=-1, init=False)
    _known: dict[str, dict[bytes, Schema]] = field(default_factory=dict, init=False)

    def get(self, topic: TopicName, version: bytes | None, timeout: float) -> Schema:
        """Return a version, None: the newest one; see the protocol."""
        deadline = time.monotonic() + timeout
        schemas = self._schemas(self.topic_id(topic, deadline), deadline)
        found = [schema for schema in schemas if version in {None, schema.version}]
        if not found:
            raise SchemaNotFoundError(f"topic {topic.local} has no such schema")
        return found[-1]

    def put(self, topic: TopicName, schema: Schema, timeout: float) -> bytes:
        """Return the version of an equal schema, or of this one; see the protocol."""
        deadline = time.monotonic() + timeout
        topic_id = self.topic_id(topic, deadline)
        while True:
            schemas = self._schemas(topic_id, deadline)
            at = place(schemas, schema, self._strategy)
            if at < len(schemas):
                return schemas[at].version
            if time.monotonic() >= deadline:
                raise BackendTimeoutError("other schemas of the topic come at the same time")
            # Read back in the next turn: it is there with its version, or was overtaken.
            self._write(f"{topic_id}:{uuid4().hex}", _value(schema, at), deadline)

    def forget(self, topic_id: str, deadline: float) -> None:
        """Have compaction take the schemas of a deleted topic; what fails is left there."""
        try:
            self._follow(deadline)
            with self._lock:
                keys = list(self._known.pop(topic_id, {}))
            for key in keys:
                self._write(key.decode(), None, deadline)
        except RouterError as error:
            _log.warning("schemas-left-behind", topic_id=topic_id, reason=str(error))

    def topic_id(self, topic: TopicName, deadline: float) -> str:
        """Return by what the schemas of a topic are known; raise TopicNotFoundError."""
        name = self._names.topic(topic)
        found = self._cluster.persist(lambda: self._cluster.topic(name, deadline), deadline)
        return shown_id(found)

    def _schemas(self, topic_id: str, deadline: float) -> list[Schema]:
        """Return a topic's schemas as they are now."""
        self._follow(deadline)
        with self._lock:
            return list(self._known.get(topic_id, {}).values())

    def _follow(self, deadline: float) -> None:
        try:
            end = self._offsets.end(SCHEMAS, 0, deadline)
            with self._lock:
                start = self._next
                if start > end:
                    self._known.clear()  # the topic was created again
                    start = -1
            if start < 0:
                start = self._offsets.at(SCHEMAS, (0,), EARLIEST, deadline)[0]
        except TopicNotFoundError:
            return  # nobody ever wrote one
        if start < end:
            self._read(start, end, deadline)
        else:
            with self._lock:
                self._next = start

    def _read(self, start: int, end: int, deadline: float) -> None:
        reader = PrefetchingReader(
            self._cluster, self._offsets, SCHEMAS, PartitionNumbers(0, -1), idle=0.0
        )
        reader.attach(NullMailbox(), start, 0)
        try:
            while reader.more(end, deadline):
                found: list[Stored] = []
                reader.take(found, READ_MESSAGES, READ_BYTES)
                with self._lock:
                    for stored in found:
                        self._take(stored)
        finally:
            reader.end(BackendTimeoutError("the schemas are read"))
        with self._lock:
            self._next = max(self._next, end)

    def _take(self, stored: Stored) -> None:
        """Take a record that comes next in the log; the lock is held."""
        if stored.position.entry < self._next:
            return  # another call read it too
        self._next = stored.position.entry + 1
        key = stored.message.key or b""
        of_topic = self._known.setdefault(key.partition(b":")[0].decode("ascii", "replace"), {})
        if stored.message.null:
            of_topic.pop(key, None)
            return
        try:
            seen, schema = _schema(stored.message.value)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("no-schema", offset=stored.position.entry, reason=str(error))
            return
        if seen == len(of_topic):
            of_topic[key] = replace(schema, version=seen.to_bytes(8))

    def _write(self, key: str, value: bytes | None, deadline: float) -> None:
        message = Message(value or b"", key.encode(), null=value is None)
        try:
            self._producers.publish(SCHEMAS, 0, [message], deadline)
        except TopicNotFoundError:
            with suppress(TopicExistsError):  # another node was first
                configs = {"cleanup.policy": "compact"}
                create_topic(self._cluster, SCHEMAS, 1, self._replicas, configs, deadline)
            self._producers.publish(SCHEMAS, 0, [message], deadline)


def _value(schema: Schema, seen: int) -> bytes:
    return orjson.dumps(
        {
            "seen": seen,
            "type": int(schema.type),
            "data": b64encode(schema.data).decode(),
            "properties": dict(schema.properties),
            "name": schema.name,
        }
    )


def _schema(value: bytes) -> tuple[int, Schema]:
    """Return how many schemas a record's writer had seen, and the schema."""
    record = orjson.loads(value)
    return int(record["seen"]), Schema(
        SchemaType(record["type"]),
        b64decode(record["data"]),
        {str(k): str(v) for k, v in record["properties"].items()},
        str(record["name"]),
    )
