"""Scenarios' calls with aiokafka, whose event loop runs in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code

from tests.kafka.clients import SECONDS, ClientError, KafkaClient, Read, Record

T = TypeVar("T")


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise ClientError(getattr(error, "errno", -1)) from error


class AioKafka(KafkaClient):
    """aiokafka, with one admin client for its life; its assignors are eager ones."""

    name = "aiokafka"

    def __init__(self, bootstrap: str, **security: Any) -> None:
        self._settings = {"bootstrap_servers": bootstrap, **security}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._members: dict[str, AIOKafkaConsumer] = {}
        self._admin = self._run(self._open_admin())

    def topics(self) -> list[str]:
        return list(self._run(self._admin.list_topics()))

    def create(self, topic: str, partitions: int = 1) -> None:
        answer = self._run(self._admin.create_topics([NewTopic(topic, partitions, 1)]))
        _check(code for _, code, *_ in answer.topic_errors)

    def delete(self, topic: str) -> None:
        answer = self._run(self._admin.delete_topics([topic]))
        _check(code for _, code, *_ in answer.topic_error_codes)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        with _named():
            return self._run(self._produce(topic, records, partition, codec, idempotent))

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Read]:
        with _named():
            return self._run(self._read(TopicPartition(topic, partition), offset, count))

    def times(self, topic: str, timestamps: Sequence[int], partition: int = 0) -> list[int]:
        return self._run(self._times(TopicPartition(topic, partition), timestamps))

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        return self._run(self._ends(TopicPartition(topic, partition)))

    def join(self, member: str, group: str, topic: str, assignor: str = "eager") -> None:
        assert assignor == "eager", assignor
        self._members[member] = self._run(self._join(group, topic))

    def poll(self, member: str, seconds: float) -> list[tuple[int, int]]:
        polled = self._run(self._members[member].getmany(timeout_ms=int(seconds * 1000)))
        return [(one.partition, one.offset) for records in polled.values() for one in records]

    def assignment(self, member: str) -> list[int]:
        return sorted(place.partition for place in self._members[member].assignment())

    def commit(self, member: str) -> None:
        self._run(self._members[member].commit())

    def leave(self, member: str) -> None:
        self._run(self._members.pop(member).stop())

    def close(self) -> None:
        for member in list(self._members):
            self.leave(member)
        self._run(self._admin.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(2 * SECONDS)

    async def _open_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(**self._settings)
        await admin.start()
        return admin

    async def _produce(
        self, topic: str, records: Sequence[Record], partition: int, codec: str, idempotent: bool
    ) -> list[int]:
        producer = AIOKafkaProducer(
            **self._settings,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=20,
            max_batch_size=1 << 20,
            max_request_size=8 << 20,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition,
                    record.timestamp,
                    list(record.headers),
                )
                for record in records
            ]
            return [(await asyncio.wait_for(one, SECONDS)).offset for one in sent]
        finally:
            await producer.stop()

    async def _read(self, place: TopicPartition, offset: int, count: int) -> list[Read]:
        found: list[Any] = []
        async with self._consumer(auto_offset_reset="none") as consumer:
            consumer.assign([place])
            consumer.seek(place, offset)
            while len(found) < count:
                polled = await consumer.getmany(timeout_ms=int(SECONDS * 1000))
                assert polled, f"{len(found)} of {count} records came"
                found += polled[place]
        return [
            Read(one.offset, Record(one.value, one.key, tuple(one.headers), one.timestamp))
            for one in found[:count]
        ]

    async def _times(self, place: TopicPartition, timestamps: Sequence[int]) -> list[int]:
        async with self._consumer() as consumer:
            consumer.assign([place])
            found = [(await consumer.offsets_for_times({place: one}))[place] for one in timestamps]
        return [-1 if one is None else one.offset for one in found]

    async def _ends(self, place: TopicPartition) -> tuple[int, int]:
        async with self._consumer() as consumer:
            consumer.assign([place])
            first = await consumer.beginning_offsets([place])
            after = await consumer.end_offsets([place])
        return first[place], after[place]

    async def _join(self, group: str, topic: str) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            topic,
            **self._settings,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
        )
        # `start` waits for the first assignment, which needs the other members' polls
        await consumer.start()
        return consumer

    @contextlib.asynccontextmanager
    async def _consumer(self, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(**self._settings, **settings)
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


def _check(codes: Iterator[int]) -> None:
    for code in codes:
        if code:
            raise ClientError(code) from for_code(code)()
