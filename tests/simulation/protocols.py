"""Clients of Pulsar, Kafka and NATS: small raw ones, which say exactly what they mean to say."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any, Final

from router.kafka.definitions import definition_texts
from router.model import Message
from router.wire.kafka.engine import Messages, request_header_version, response_header_version
from router.wire.kafka.frames import SIZE
from router.wire.kafka.frames import FrameReader as KafkaFrameReader
from router.wire.kafka.record_batches import build_batch, open_batch
from router.wire.kafka.records import read_records, write_record
from router.wire.pulsar import pack, unpack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.simulation.history import GroupPartition, PartitionName, Place
from tests.simulation.network import Stream
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import (
    ANSWER_SECONDS,
    DEDUPLICATE,
    GoneError,
    PulsarPeer,
    World,
)
from tests.wire.kafka.batches import split_batches

MESSAGES: Final[Any] = Messages(definition_texts())
LIMIT: Final = 1 << 20
ACCEPTED: Final = frozenset({0, 46})
"""Stored, or stored before."""
MIN_PERMITS: Final = 20


class Client:
    """What all of them are: they connect, work, and begin again when the connection is gone."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        self.world, self.name, self.mean = world, name, mean
        self.chance = Random(f"{world.seed}:{name}")
        self.empty_in_quiet = 0

    @property
    def has_work(self) -> bool:
        """Return whether it must go on though it is quiet."""
        return True

    async def run(self) -> None:
        while not self.world.is_quiet or self.has_work:
            try:
                await self.work()
            except GoneError:
                self.world.history.count(f"{type(self).__name__} reconnected")
            await asyncio.sleep(self.chance.uniform(0.01, 2))

    async def work(self) -> None:
        """Connect and work until the connection is gone."""
        raise NotImplementedError


class Numbered(Client):
    """A publisher, which names its messages and repeats them until they are acknowledged."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.number = 0
        self.sent: list[str] = []

    @property
    def has_work(self) -> bool:
        return bool(self.sent)

    def next_messages(self, count: int) -> list[str]:
        first = self.number + 1
        self.number += count
        self.sent = [f"{self.name}:{number}" for number in range(first, first + count)]
        return self.sent


def _value(name: str, chance: Random) -> bytes:
    return name.encode() + b" " + b"." * chance.choice((0, 10, 300))


class PulsarPublisher(Numbered):
    """Sends entries of one partition, several at once, and waits for their receipts."""

    def __init__(self, world: World, name: str, topic: str, partition: int, mean: float) -> None:
        super().__init__(world, name, mean)
        self._log = PartitionName(topic, partition)
        self._topic = topic if partition < 0 else f"{topic}-partition-{partition}"
        self._epoch = 0

    async def work(self) -> None:
        peer = await PulsarPeer.open(self.world, "pulsar")
        request_id = peer.next_id()
        self._epoch += 1
        peer.send(
            "PRODUCER",
            topic=self._topic,
            producer_id=1,
            request_id=request_id,
            producer_name=self.name,
            user_provided_producer_name=True,
            epoch=self._epoch,
            metadata=DEDUPLICATE,
        )
        if await peer.answer(request_id, "PRODUCER_SUCCESS") is None:
            peer.stream.close()
            raise GoneError
        while not self.world.is_quiet or self.sent:
            if not self.sent:
                await self.world.pause(self.chance, self.mean)
                self.next_messages(self.chance.randint(1, 8))
            await self._send(peer)
        peer.stream.close()

    async def _send(self, peer: PulsarPeer) -> None:
        at = CLOCK.now
        for name in self.sent:
            sequence = int(name.partition(":")[2])
            message = Message(_value(name, self.chance))
            payload = pack([message], self.name, sequence, int(CLOCK.time() * 1000))
            peer.send("SEND", payload, producer_id=1, sequence_id=sequence, num_messages=1)
        for name in list(self.sent):
            frame = await peer.frame()
            if frame.command.type != pb.BaseCommand.SEND_RECEIPT:
                peer.stream.close()
                raise GoneError
            self.world.history.published(self._log, [name], at)
            self.sent.remove(name)


class PulsarSubscriber(Client):
    """The one consumer of an exclusive subscription, which acknowledges cumulatively."""

    def __init__(self, world: World, name: str, topic: str, partition: int, mean: float) -> None:
        super().__init__(world, name, mean)
        self._group = GroupPartition(PartitionName(topic, partition), f"pulsar-{name}")
        self._topic = topic if partition < 0 else f"{topic}-partition-{partition}"
        world.history.progress(self._group).starts_at_zero = True

    async def work(self) -> None:
        peer, history = await PulsarPeer.open(self.world, "pulsar"), self.world.history
        request_id, asked_at = peer.next_id(), CLOCK.now
        peer.send(
            "SUBSCRIBE",
            topic=self._topic,
            subscription=self._group.group,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=request_id,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        if await peer.answer(request_id, "SUCCESS") is None:
            peer.stream.close()
            raise GoneError
        after: tuple[int, int] | None = None
        permits = 0
        acks: dict[int, tuple[int, int]] = {}
        while True:
            if permits < MIN_PERMITS:
                peer.send("FLOW", consumer_id=1, messagePermits=100)
                permits += 100
            frame = await self._frame(peer)
            if frame is None:
                self.empty_in_quiet = self.empty_in_quiet + 1 if self.world.is_quiet else 0
                continue
            found = frame.command
            if found.type == pb.BaseCommand.ACK_RESPONSE:
                end = acks.pop(found.ackResponse.request_id)
                history.confirmed(self._group, end, peer.boot)
            elif found.type == pb.BaseCommand.MESSAGE:
                self.empty_in_quiet = 0
                messages = _pulsar_messages(found.message, frame.payload)
                history.delivered(self._group, messages, asked_at, after)
                after = messages[-1][0].following
                permits -= len(messages)
                if self.chance.random() < 0.5 or self.world.is_quiet:
                    request_id = peer.next_id()
                    acks[request_id] = after
                    history.acknowledging(self._group, after)
                    peer.send(
                        "ACK",
                        consumer_id=1,
                        message_id=[found.message.message_id],
                        ack_type=pb.CommandAck.Cumulative,
                        request_id=request_id,
                    )
                if self.chance.random() < 0.002:
                    peer.stream.close()
                    raise GoneError
            elif found.type == pb.BaseCommand.CLOSE_CONSUMER:
                peer.stream.close()
                raise GoneError

    async def _frame(self, peer: PulsarPeer) -> Any:
        """Return the next frame, None: none came for a while; raise GoneError."""
        try:
            return await peer.frame(5.0, closes=False)
        except TimeoutError:
            return None


def _pulsar_messages(command: Any, payload: bytes) -> list[tuple[Place, str]]:
    entry = command.message_id.entryId
    found = unpack(payload, LIMIT, command.ack_set)
    size = max(1, found[-1].batch_index + 1)
    return [
        (Place(entry, max(0, one.batch_index), size), one.message.value.split(b" ")[0].decode())
        for one in found
    ]


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

    def struct(self, message: str, struct: str, /, **fields: Any) -> Any:
        return MESSAGES.message(message).STRUCTS[struct](**fields)


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
                await self.world.pause(self.chance, self.mean)
                self._prepare()
            await self._produce(peer)
        peer.stream.close()

    def _prepare(self) -> None:
        first, now = self.number, int(CLOCK.time() * 1000)
        names = self.next_messages(self.chance.choice((1, 1, 3, 10)))
        records = [
            write_record(place, 0, None, _value(name, self.chance))
            for place, name in enumerate(names)
        ]
        self._batch = bytes(build_batch(records, now, now, producer=(self._producer, 0, first)))

    async def _produce(self, peer: KafkaPeer) -> None:
        at, request = CLOCK.now, "ProduceRequest"
        part = peer.struct(
            request, "PartitionProduceData", index=self._partition, records=self._batch
        )
        data = peer.struct(request, "TopicProduceData", name=self._topic, partition_data=[part])
        answer = await peer.ask("Produce", 9, acks=-1, timeout_ms=30_000, topic_data=[data])
        code = answer.responses[0].partition_responses[0].error_code
        if code in ACCEPTED:
            self.world.history.published(self._log, self.sent, at)
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
        asked_at, position = CLOCK.now, await self._committed(peer)
        after: tuple[int, int] | None = None
        while True:
            found = await self._fetch(peer, position)
            quiet = self.world.is_quiet
            self.empty_in_quiet = self.empty_in_quiet + 1 if quiet and not found else 0
            if found:
                history.delivered(self._group, found, asked_at, after)
                after = found[-1][0].following
                position = after[0]
                if self.chance.random() < 0.4 or quiet:
                    await self._commit(peer, position)
            await self.world.pause(self.chance, self.mean)
            if self.chance.random() < 0.005:
                peer.stream.close()
                raise GoneError

    async def _committed(self, peer: KafkaPeer) -> int:
        request, numbers = "OffsetFetchRequest", (self._partition,)
        topic = peer.struct(
            request, "OffsetFetchRequestTopic", name=self._topic, partition_indexes=numbers
        )
        group = self._group.group
        answer = await peer.ask("OffsetFetch", 7, group_id=group, topics=[topic])
        (part,) = answer.topics[0].partitions
        if answer.error_code or part.error_code:
            peer.stream.close()
            raise GoneError
        return max(0, int(part.committed_offset))

    async def _fetch(self, peer: KafkaPeer, position: int) -> list[tuple[Place, str]]:
        request = "FetchRequest"
        part = peer.struct(
            request,
            "FetchPartition",
            partition=self._partition,
            fetch_offset=position,
            partition_max_bytes=LIMIT,
        )
        topic = peer.struct(request, "FetchTopic", topic=self._topic, partitions=[part])
        answer = await peer.ask(
            "Fetch", 11, max_wait_ms=1000, min_bytes=1, max_bytes=LIMIT, topics=[topic]
        )
        (part,) = answer.responses[0].partitions
        if part.error_code:
            self.world.history.count(f"Fetch: error {part.error_code}")
            await asyncio.sleep(self.chance.uniform(0.1, 2))
            return []
        found = []
        for header, data in split_batches(bytes(part.records)):
            for record in read_records(open_batch(header, data, LIMIT), header.records):
                offset = header.base_offset + record.offset
                if offset >= position:
                    name = bytes(record.value or b"").split(b" ")[0].decode()
                    found.append((Place(offset), name))
        return found

    async def _commit(self, peer: KafkaPeer, position: int) -> None:
        history, request = self.world.history, "OffsetCommitRequest"
        history.acknowledging(self._group, (position, 0))
        part = peer.struct(
            request,
            "OffsetCommitRequestPartition",
            partition_index=self._partition,
            committed_offset=position,
            committed_metadata="",
        )
        topic = peer.struct(
            request, "OffsetCommitRequestTopic", name=self._topic, partitions=[part]
        )
        answer = await peer.ask("OffsetCommit", 7, group_id=self._group.group, topics=[topic])
        code = answer.topics[0].partitions[0].error_code
        if code:
            history.count(f"OffsetCommit: error {code}")
        else:
            history.confirmed(self._group, (position, 0), peer.boot)


class NatsPeer:
    """A connection of NATS, with an inbox."""

    def __init__(self, stream: Stream, boot: int) -> None:
        self.stream, self.boot = stream, boot
        self._data = bytearray()
        self._prefix = f"_INBOX.{stream.link.number}"
        self._inboxes = 0

    @classmethod
    async def open(cls, world: World) -> NatsPeer:
        try:
            stream = await world.network.connect(world.loop, "nats")
        except ConnectionRefusedError as error:
            raise GoneError from error
        peer = cls(stream, world.history.boot)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        stream.write(
            f"CONNECT {json.dumps(options)}\r\nSUB {peer._prefix}.> 1\r\nPING\r\n".encode()
        )
        while await peer._line() != "PONG":
            pass
        return peer

    async def _fill(self, seconds: float) -> None:
        try:
            data = await self.stream.read(seconds)
        except TimeoutError:
            self.stream.close()
            raise GoneError from None
        if not data:
            self.stream.close()
            raise GoneError
        self._data += data

    async def _line(self, seconds: float = ANSWER_SECONDS) -> str:
        while b"\r\n" not in self._data:
            await self._fill(seconds)
        line, _, rest = bytes(self._data).partition(b"\r\n")
        self._data = bytearray(rest)
        return line.decode()

    def publish(self, subject: str, payload: bytes, headers: bytes = b"") -> str:
        """Publish with an inbox of its own as reply, and return that."""
        self._inboxes += 1
        inbox = f"{self._prefix}.{self._inboxes}"
        verb = f"HPUB {subject} {inbox} {len(headers)}" if headers else f"PUB {subject} {inbox}"
        body = headers + payload
        self.stream.write(f"{verb} {len(body)}\r\n".encode() + body + b"\r\n")
        return inbox

    async def message(self) -> tuple[str, str, bytes, bytes]:
        """Return subject, reply, headers and payload of the next message; raise GoneError."""
        while True:
            line = await self._line()
            words = line.split(" ")
            if words[0] == "PING":
                self.stream.write(b"PONG\r\n")
            elif words[0] in {"MSG", "HMSG"}:
                headed = words[0] == "HMSG"
                size, split = int(words[-1]), int(words[-2]) if headed else 0
                while len(self._data) < size + 2:
                    await self._fill(ANSWER_SECONDS)
                body = bytes(self._data[:size])
                del self._data[: size + 2]
                reply = words[3] if len(words) == 5 + headed else ""
                return words[1], reply, body[:split], body[split:]

    async def ask(self, subject: str, payload: bytes, headers: bytes = b"") -> bytes:
        """Return the payload of the answer to a request."""
        inbox = self.publish(subject, payload, headers)
        while True:
            to, _, found, answer = await self.message()
            if to == inbox:
                return answer or found


STREAM: Final = "S"
HOUR_NS: Final = 3600 * 10**9


async def make_stream(peer: NatsPeer) -> None:
    """Make the stream of all NATS clients, if it is not there."""
    config = {"name": STREAM, "subjects": ["s.>"], "duplicate_window": 2 * HOUR_NS}
    await peer.ask(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(config).encode())


class NatsPublisher(Numbered):
    """Publishes into a stream, each message under an id until it is acknowledged."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self._log = PartitionName(f"nats:{STREAM}", 0)

    async def work(self) -> None:
        peer = await NatsPeer.open(self.world)
        await make_stream(peer)
        while not self.world.is_quiet or self.sent:
            if not self.sent:
                await self.world.pause(self.chance, self.mean)
                self.next_messages(1)
            (name,), at = self.sent, CLOCK.now
            headers = f"NATS/1.0\r\nNats-Msg-Id: {name}\r\n\r\n".encode()
            found = await peer.ask("s.a", _value(name, self.chance), headers)
            answer = json.loads(found) if found.startswith(b"{") else {"error": found}
            if "error" not in answer:
                self.world.history.published(self._log, [name], at)
                self.sent = []
            else:
                self.world.history.count("NATS publish refused")
                await asyncio.sleep(self.chance.uniform(0.1, 2))
        peer.stream.close()


class NatsPuller(Client):
    """Pulls from a durable consumer, and acknowledges each message by a request."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self._group = GroupPartition(PartitionName(f"nats:{STREAM}", 0), name)
        world.history.progress(self._group)

    async def work(self) -> None:
        peer = await NatsPeer.open(self.world)
        await make_stream(peer)
        config = {"durable_name": self.name, "ack_policy": "explicit", "ack_wait": 10 * 10**9}
        body = json.dumps({"stream_name": STREAM, "config": config}).encode()
        await peer.ask(f"$JS.API.CONSUMER.CREATE.{STREAM}.{self.name}", body)
        while True:
            found = await self._pull(peer)
            quiet = self.world.is_quiet
            self.empty_in_quiet = self.empty_in_quiet + 1 if quiet and not found else 0
            for reply, message in found:
                if quiet or self.chance.random() < 0.8:
                    await peer.ask(reply, b"+ACK")
                    self.world.history.confirmed_one(self._group, message)
            await self.world.pause(self.chance, self.mean)

    async def _pull(self, peer: NatsPeer) -> list[tuple[str, str]]:
        """Return the messages of a pull, with where each is acknowledged."""
        asked_at, found = CLOCK.now, []
        # Longer than messages that were not acknowledged are held back.
        body = {"batch": self.chance.randint(1, 20), "expires": 12 * 10**9}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self.name}"
        inbox = peer.publish(subject, json.dumps(body).encode())
        for _ in range(body["batch"]):
            while True:
                to, reply, headers, payload = await peer.message()
                if to == inbox or to.startswith("s."):
                    break
            if headers.startswith(b"NATS/1.0 ") or not reply:
                break
            message, sequence = payload.split(b" ")[0].decode(), int(reply.split(".")[5])
            history = self.world.history
            history.delivered_one(self._group, Place(sequence - 1), message, asked_at)
            found.append((reply, message))
        return found
