"""Raw clients of Kafka: an idempotent producer, and a reader that commits its offsets."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from router.kafka.definitions import definition_texts
from router.wire.kafka.engine import Messages, request_header_version, response_header_version
from router.wire.kafka.frames import SIZE, KafkaFrameReader
from router.wire.kafka.record_batches import build_batch, next_offset, open_batch
from router.wire.kafka.records import KafkaRecord, read_records, write_record
from tests.simulation.history import GroupPartition, PartitionName, Place, name_of
from tests.simulation.network import Stream
from tests.simulation.protocols import Client, Numbered, value_of
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import ANSWER_SECONDS, GoneError, World
from tests.wire.kafka.batches import split_batches

MESSAGES: Final[Any] = Messages(definition_texts())
LIMIT: Final = 1 << 20
ACCEPTED: Final = frozenset({0, 46})
"""Stored, or stored before."""


class KafkaPeer:
    """A connection of Kafka's protocol."""

    def __init__(self, stream: Stream, boot: int) -> None:
        self.stream, self.boot = stream, boot
        self._reader = KafkaFrameReader(LIMIT * 4)
        self._frames: list[bytes] = []
        self._correlation = 0

    @classmethod
    async def open(cls, world: World) -> KafkaPeer:
        try:
            stream = await world.network.connect(world.loop, "kafka")
        except ConnectionRefusedError as error:
            raise GoneError from error
        return cls(stream, world.history.boot)

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        """Return the response to a request; raise GoneError."""
        definition = MESSAGES.definition(f"{name}Request")
        self._correlation += 1
        header = MESSAGES.message("RequestHeader")(
            request_api_key=definition.api_key,
            request_api_version=version,
            correlation_id=self._correlation,
            client_id="simulated",
        ).write(request_header_version(definition, version))
        body = MESSAGES.message(f"{name}Request")(**fields).write(version)
        self.stream.write(SIZE.pack(len(header) + len(body)) + bytes(header) + bytes(body))
        while not self._frames:
            try:
                data = await self.stream.read(ANSWER_SECONDS)
            except TimeoutError:
                data = b""
            if not data:
                self.stream.close()
                raise GoneError
            self._frames += self._reader.receive(data)
        frame, answer = self._frames.pop(0), MESSAGES.definition(f"{name}Response")
        _, start = MESSAGES.message("ResponseHeader").read_from(
            frame, response_header_version(answer, version)
        )
        return MESSAGES.message(f"{name}Response").read_from(frame, version, start)[0]

    @staticmethod
    def struct(message: str, struct: str, /, **fields: Any) -> Any:
        return MESSAGES.message(message).STRUCTS[struct](**fields)

    async def committed(
        self, group: str, topic: str, partition: int, *, stable: bool = False
    ) -> int:
        """Return the offset that a group committed, 0: none; raise GoneError.

        `stable`: it is refused while a transaction has another one.
        """
        wanted = self.struct(
            "OffsetFetchRequest",
            "OffsetFetchRequestTopic",
            name=topic,
            partition_indexes=(partition,),
        )
        answer = await self.ask(
            "OffsetFetch", 7, group_id=group, topics=[wanted], require_stable=stable
        )
        (part,) = answer.topics[0].partitions
        if answer.error_code or part.error_code:
            self.stream.close()
            raise GoneError
        return max(0, int(part.committed_offset))

    async def fetch(
        self, topic: str, partition: int, position: int
    ) -> list[tuple[Place, str]] | None:
        """Return what a partition has from an offset on, None: that was refused."""
        found = await self.records(topic, partition, position)
        if found is None:
            return None
        return [(Place(offset), name_of(bytes(record.value or b""))) for offset, record in found]

    async def records(
        self, topic: str, partition: int, position: int, isolation: int = 0
    ) -> list[tuple[int, KafkaRecord]] | None:
        """Return the records of a partition from an offset on, None: that was refused.

        A batch without records stands for those that are left out; reading goes on behind it.
        """
        while True:
            data = await self._batches(topic, partition, position, isolation)
            if data is None:
                return None
            found = [
                (offset, record)
                for header, batch in split_batches(data)
                for record in read_records(open_batch(header, batch, LIMIT), header.records)
                if (offset := header.base_offset + record.offset) >= position
            ]
            if found or not data:
                return found
            position = next_offset(data, position)

    async def _batches(
        self, topic: str, partition: int, position: int, isolation: int
    ) -> bytes | None:
        """Return the batches that one answer has, None: it is a refusal."""
        part = self.struct(
            "FetchRequest",
            "FetchPartition",
            partition=partition,
            fetch_offset=position,
            partition_max_bytes=LIMIT,
        )
        wanted = self.struct("FetchRequest", "FetchTopic", topic=topic, partitions=[part])
        answer = await self.ask(
            "Fetch",
            11,
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=LIMIT,
            isolation_level=isolation,
            topics=[wanted],
        )
        (part,) = answer.responses[0].partitions
        if part.error_code:
            return None
        return bytes(part.records or b"")

    async def commit(
        self, group: str, topic: str, partition: int, position: int, **member: Any
    ) -> int:
        """Commit an offset and return the error code; `member`: under which generation."""
        part = self.struct(
            "OffsetCommitRequest",
            "OffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=position,
            committed_metadata="",
        )
        wanted = self.struct(
            "OffsetCommitRequest", "OffsetCommitRequestTopic", name=topic, partitions=[part]
        )
        answer = await self.ask("OffsetCommit", 7, group_id=group, topics=[wanted], **member)
        return int(answer.topics[0].partitions[0].error_code)


class KafkaPublisher(Numbered):
    """An idempotent producer of one partition."""

    def __init__(self, world: World, name: str, topic: str, partition: int, mean: float) -> None:
        super().__init__(world, name, mean)
        self._log = PartitionName(f"kafka:{topic}", partition)
        self._topic, self._partition = topic, partition
        self._producer = -1
        self._batch = b""

    async def work(self) -> None:
        peer = await KafkaPeer.open(self.world)
        if self._producer < 0:
            answer = await peer.ask("InitProducerId", 4, transactional_id=None)
            self._producer = answer.producer_id
        while not self.world.is_quiet or self.sent:
            if not self.sent:
                await self.pause()
                self._prepare()
            await self._produce(peer)
        peer.stream.close()

    def _prepare(self) -> None:
        first, now = self.number, int(CLOCK.time() * 1000)
        names = self.next_messages(self.chance.choice((1, 1, 3, 10)))
        records = [self._record(place, name) for place, name in enumerate(names)]
        self._batch = bytes(build_batch(records, now, now, producer=(self._producer, 0, first)))

    def _record(self, place: int, name: str) -> bytes:
        """Return a record for a message that is sent for the first time."""
        return write_record(place, 0, None, value_of(name, self.chance))

    def _published(self, at: float) -> None:
        """Note that what is sent, last at a time, was acknowledged."""
        self.world.history.published(self._log, self.sent, at)

    async def _produce(self, peer: KafkaPeer) -> None:
        at, request = CLOCK.now, "ProduceRequest"
        part = peer.struct(
            request, "PartitionProduceData", index=self._partition, records=self._batch
        )
        data = peer.struct(request, "TopicProduceData", name=self._topic, partition_data=[part])
        answer = await peer.ask("Produce", 9, acks=-1, timeout_ms=30_000, topic_data=[data])
        code = answer.responses[0].partition_responses[0].error_code
        if code in ACCEPTED:
            self._published(at)
            self.sent = []
        else:
            self.world.history.count(f"Produce: error {code}")
            await asyncio.sleep(self.chance.uniform(0.1, 2))


class KafkaReader(Client):
    """Reads one partition from its committed offset on, and commits where it is."""

    def __init__(self, world: World, name: str, topic: str, partition: int, mean: float) -> None:
        super().__init__(world, name, mean)
        self._group = GroupPartition(PartitionName(f"kafka:{topic}", partition), f"kafka-{name}")
        self._topic, self._partition = topic, partition
        world.history.progress(self._group).starts_at_zero = True

    async def work(self) -> None:
        peer, history = await KafkaPeer.open(self.world), self.world.history
        group, topic, partition = self._group.group, self._topic, self._partition
        asked_at, position = CLOCK.now, await peer.committed(group, topic, partition)
        after: tuple[int, int] | None = None
        while True:
            found = await peer.fetch(topic, partition, position)
            if found is None:
                history.count("Fetch refused")
                await asyncio.sleep(self.chance.uniform(0.1, 2))
            quiet = self.world.is_quiet
            self.empty_in_quiet = self.empty_in_quiet + 1 if quiet and not found else 0
            if found:
                history.delivered(self._group, found, asked_at, after)
                after = found[-1][0].following
                position = after[0]
                if self.chance.random() < 0.4 or quiet:
                    history.acknowledging(self._group, after)
                    if code := await peer.commit(group, topic, partition, position):
                        history.count(f"OffsetCommit: error {code}")
                    else:
                        history.confirmed(self._group, after, peer.boot)
            await self.pause()
            if self.chance.random() < 0.005:
                peer.stream.close()
                raise GoneError
