"""Scenarios' calls with confluent-kafka, which is librdkafka."""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.kafka.clients import SECONDS, SESSION_MS, ClientError, KafkaClient, Read, Record

ASSIGNORS = {"eager": "range", "cooperative": "cooperative-sticky"}
SERVER = "server"
"""In the place of an assignor: the broker has them (KIP-848)."""


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Raise ClientError for what the library raises."""
    try:
        yield
    except KafkaException as error:
        raise ClientError(_code(error.args[0])) from error


def read_of(message: Message) -> Read:
    """Return what a message carries."""
    kind, timestamp = message.timestamp()
    assert kind != TIMESTAMP_NOT_AVAILABLE
    offset = message.offset()
    assert offset is not None
    headers: Any = message.headers() or ()
    return Read(offset, Record(message.value(), message.key(), tuple(headers), timestamp))


def topic_configs(bootstrap: str, topic: str) -> dict[str, str | None]:
    """Return the configs of a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {entry.name: entry.value for entry in found.result(SECONDS).values()}


class Confluent(KafkaClient):
    """confluent-kafka, with one admin client for its life."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str, **security: Any) -> None:
        self._settings = {"bootstrap.servers": bootstrap, **security}
        self.admin = AdminClient(self._settings)
        self._members: dict[str, Consumer] = {}
        self._events: dict[str, list[str]] = {}

    def topics(self) -> list[str]:
        return list(self.admin.list_topics(timeout=SECONDS).topics)

    def create(self, topic: str, partitions: int = 1) -> None:
        with named():
            self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(SECONDS)

    def delete(self, topic: str) -> None:
        with named():
            self.admin.delete_topics([topic])[topic].result(SECONDS)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        producer = Producer(
            self._settings
            | {
                "compression.codec": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 20,
                "message.max.bytes": 8 << 20,
            }
        )
        offsets: list[int] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets.append(message.offset() or 0)
            else:
                failures.append(error)

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=delivered,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        assert producer.flush(SECONDS) == 0
        if failures:
            raise ClientError(_code(failures[0]))
        return offsets

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Read]:
        found: list[Read] = []
        with self._consumer({"auto.offset.reset": "error"}) as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            until = time.monotonic() + SECONDS
            while len(found) < count:
                assert time.monotonic() < until, f"{len(found)} of {count} records came"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    raise ClientError(_code(error))
                found.append(read_of(message))
        return found

    def times(self, topic: str, timestamps: Sequence[int], partition: int = 0) -> list[int]:
        with self._consumer() as consumer:
            found = [
                consumer.offsets_for_times([TopicPartition(topic, partition, one)], SECONDS)[0]
                for one in timestamps
            ]
        return [-1 if one.offset < 0 else one.offset for one in found]

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        with self._consumer() as consumer:
            found = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)
        assert found is not None
        return found[0], found[1]

    def join(
        self,
        member: str,
        group: str,
        topic: str,
        assignor: str = "eager",
        *,
        instance: str | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        protocol: dict[str, Any] = {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": ASSIGNORS.get(assignor, "range"),
        }
        consumer = Consumer(
            self._settings
            | {
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
            }
            | ({"group.protocol": "consumer"} if assignor == SERVER else protocol)
            | ({} if instance is None else {"group.instance.id": instance})
        )
        events = self._events[member] = []
        consumer.subscribe(
            [topic],
            on_assign=lambda *_: events.append("assigned"),
            on_revoke=lambda *_: events.append("revoked"),
            on_lost=lambda *_: events.append("lost"),
        )
        self._members[member] = consumer

    def events(self, member: str) -> list[str]:
        return list(self._events[member])

    def membership(self, member: str) -> str:
        # The only way to see the generation: it leads what is written of the group's metadata.
        written = pickle.dumps(self._members[member].consumer_group_metadata())
        _, _, found = written.partition(b"CGMDv2:")
        return f"{int.from_bytes(found[:4], sys.byteorder)} {found[4:]!r}"

    def poll(self, member: str, seconds: float) -> list[tuple[int, int]]:
        found = self._members[member].consume(1000, seconds)
        for message in found:
            assert message.error() is None, message.error()
        return [(one.partition() or 0, one.offset() or 0) for one in found]

    def assignment(self, member: str) -> list[int]:
        return sorted(place.partition for place in self._members[member].assignment())

    def commit(self, member: str) -> None:
        self._members[member].commit(asynchronous=False)

    def leave(self, member: str) -> None:
        self._members.pop(member).close()

    def close(self) -> None:
        for member in list(self._members):
            self.leave(member)

    @contextlib.contextmanager
    def _consumer(self, settings: dict[str, Any] | None = None) -> Iterator[Consumer]:
        consumer = Consumer(self._settings | {"group.id": "unused"} | (settings or {}))
        try:
            yield consumer
        finally:
            consumer.close()


def _code(error: KafkaError) -> int:
    """Return Kafka's code; librdkafka has codes of its own for some of Kafka's."""
    own = {KafkaError._UNKNOWN_TOPIC: 3, KafkaError._UNKNOWN_PARTITION: 3}
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return 1
    code: int = own.get(error.code(), error.code())
    return code
