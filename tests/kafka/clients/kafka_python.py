"""Scenarios' calls with kafka-python."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from kafka.admin import NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError

from tests.kafka.clients import SECONDS, SESSION_MS, ClientError, KafkaClient, Read, Record

ASSIGNORS = {"eager": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise ClientError(-1 if error.errno is None else error.errno) from error


class _Events(ConsumerRebalanceListener):  # type: ignore[misc]
    """What a consumer is told of rebalances."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_partitions_assigned(self, assigned: object) -> None:
        self.seen.append("assigned")

    def on_partitions_revoked(self, revoked: object) -> None:
        self.seen.append("revoked")

    def on_partitions_lost(self, lost: object) -> None:
        self.seen.append("lost")


class _Member:
    """A consumer in a group whose thread polls as long as it is a member.

    A poll of kafka-python 3.0 that ends while the consumer joins can lose the assignment for good,
    with every broker: so no poll ends before records come or the scenario is over.
    """

    def __init__(self, consumer: KafkaConsumer, events: _Events) -> None:
        self.consumer = consumer
        self.events = events
        self.poll_seconds = 2 * SECONDS
        self._arrived: queue.SimpleQueue[list[tuple[int, int]]] = queue.SimpleQueue()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="kafka-python member")
        self._thread.start()

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Return partition and offset of what arrived, within a time at the longest."""
        try:
            return self._arrived.get(timeout=seconds)
        except queue.Empty:
            return []

    def leave(self) -> None:
        """Leave the group."""
        self._leaving = True
        self.consumer.close()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._leaving:
            # The consumer may be closed within a poll, and a poll fails while the broker is away.
            with contextlib.suppress(KafkaError, RuntimeError):
                polled = self.consumer.poll(timeout_ms=int(self.poll_seconds * 1000))
                for records in polled.values():
                    self._arrived.put([(one.partition, one.offset) for one in records])


class KafkaPython(KafkaClient):
    """kafka-python 3, with one admin client for its life."""

    name = "kafka-python"

    def __init__(self, bootstrap: str, **security: Any) -> None:
        self._settings = {"bootstrap_servers": bootstrap, **security}
        self._admin = KafkaAdminClient(**self._settings)
        self._members: dict[str, _Member] = {}

    def topics(self) -> list[str]:
        return list(self._admin.list_topics())

    def create(self, topic: str, partitions: int = 1) -> None:
        with _named():
            self._admin.create_topics([NewTopic(topic, partitions, 1)])

    def delete(self, topic: str) -> None:
        with _named():
            self._admin.delete_topics([topic])

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        producer = KafkaProducer(
            **self._settings,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=20,
            batch_size=1 << 20,
            max_request_size=8 << 20,
        )
        with contextlib.closing(producer), _named():
            sent = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    list(record.headers),
                    partition,
                    record.timestamp,
                )
                for record in records
            ]
            return [future.get(SECONDS).offset for future in sent]

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Read]:
        place = TopicPartition(topic, partition)
        with self._consumer(auto_offset_reset="none") as consumer, _named():
            consumer.assign([place])
            consumer.seek(place, offset)
            found: list[Any] = []
            while len(found) < count:
                polled = consumer.poll(timeout_ms=int(SECONDS * 1000))
                assert polled, f"{len(found)} of {count} records came"
                found += polled[place]
        return [
            Read(
                one.offset,
                Record(
                    one.value,
                    one.key,
                    tuple((name, value) for name, value in one.headers),
                    one.timestamp,
                ),
            )
            for one in found[:count]
        ]

    def times(self, topic: str, timestamps: Sequence[int], partition: int = 0) -> list[int]:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = [consumer.offsets_for_times({place: time})[place] for time in timestamps]
        return [-1 if one is None else one.offset for one in found]

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            first, after = consumer.beginning_offsets([place]), consumer.end_offsets([place])
        return first[place], after[place]

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
        consumer = KafkaConsumer(
            **self._settings,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_instance_id=instance,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=(ASSIGNORS[assignor],),
        )
        events = _Events()
        consumer.subscribe([topic], listener=events)
        self._members[member] = _Member(consumer, events)

    def shorten_polls(self, seconds: float) -> None:
        """Have the next polls of the members end so soon, to be called when none of them joins.

        A poll during which the broker ends does not fetch from the broker that comes back.
        """
        for member in self._members.values():
            member.poll_seconds = seconds

    def events(self, member: str) -> list[str]:
        return list(self._members[member].events.seen)

    def membership(self, member: str) -> str:
        found = self._members[member].consumer._coordinator._generation
        return f"{found.generation_id} {found.member_id}"

    def poll(self, member: str, seconds: float) -> list[tuple[int, int]]:
        return self._members[member].poll(seconds)

    def assignment(self, member: str) -> list[int]:
        consumer = self._members[member].consumer
        return sorted(place.partition for place in consumer.assignment())

    def commit(self, member: str) -> None:
        self._members[member].consumer.commit()

    def leave(self, member: str) -> None:
        self._members.pop(member).leave()

    def close(self) -> None:
        for member in list(self._members):
            self.leave(member)
        self._admin.close()

    @contextlib.contextmanager
    def _consumer(self, **settings: Any) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(**self._settings, group_id=None, **settings)
        with contextlib.closing(consumer):
            yield consumer
