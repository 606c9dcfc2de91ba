"""Publishers and pollers of the node protocol, as the router's workers are.

A publisher numbers its entries, and repeats one under its number on another connection until it is
acknowledged: the broker stores it once. A poller polls, takes its time, and says that it is done,
or dies before that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any, Final

from router.backends.pulsar.entries import read_entry
from router.model import Message, PollOutcome
from router.wire import node
from router.wire.node import node_pb2 as npb
from router.wire.node.conversions import OUTCOMES
from router.wire.pulsar import Frame, PulsarFrameReader, command, encode, pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.simulation.history import GroupPartition, History, PartitionName, Place, name_of
from tests.simulation.loop import ProcessLoop
from tests.simulation.network import Network, Stream
from tests.simulation.seeded import CLOCK

ANSWER_SECONDS: Final = 40.0
CLOSES_CONSUMER: Final = bytes((8, pb.BaseCommand.CLOSE_CONSUMER))
"""What each command begins with that closes a consumer."""
EMPTY_POLLS: Final = 3
"""A client that found nothing so often in the quiet time has settled."""
QUIET_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 900.0
"""So that nobody sleeps through the quiet time of an hour."""
SETTLED_PAUSE_SECONDS: Final = 4.0
"""Shorter than the session of a member of a Kafka group."""
DEDUPLICATE: Final = [pb.KeyValue(key="router-dedup", value="true")]


class GoneError(Exception):
    """The connection is gone, or its end does not answer: the client begins with another one."""


class World:
    """What all clients share; `is_quiet`: publish no more, and read what there is."""

    def __init__(self, seed: str, loop: ProcessLoop, network: Network, history: History) -> None:
        self.seed, self.loop, self.network, self.history = seed, loop, network, history
        self.is_quiet = False

    async def pause(self, chance: Random, mean: float, empty_in_quiet: int = 0) -> None:
        """Wait as people and programs do: mostly little, now and then long.

        In the quiet time little, and longer if so many polls found nothing.
        """
        seconds = min(chance.expovariate(1 / mean), LONGEST_PAUSE_SECONDS)
        if self.is_quiet:
            has_settled = empty_in_quiet >= EMPTY_POLLS
            seconds = SETTLED_PAUSE_SECONDS if has_settled else min(seconds, QUIET_PAUSE_SECONDS)
        await asyncio.sleep(seconds)


class PulsarPeer:
    """One connection of the Pulsar protocol, its handshake made."""

    def __init__(self, stream: Stream, boot: int) -> None:
        self.stream, self.boot = stream, boot
        self.heard_at = CLOCK.now
        self._reader = PulsarFrameReader()
        self._frames: deque[Frame] = deque()
        self._ids = 0

    @classmethod
    async def open(cls, world: World, name: str) -> PulsarPeer:
        """Connect to a socket of the broker; raise GoneError."""
        try:
            stream = await world.network.connect(world.loop, name)
        except ConnectionRefusedError as error:
            raise GoneError from error
        peer = cls(stream, world.history.boot)
        peer.send("CONNECT", client_version="simulated", protocol_version=20)
        frame = await peer.frame()
        if frame.command.type != pb.BaseCommand.CONNECTED:
            raise GoneError
        return peer

    @property
    def is_open(self) -> bool:
        """Return whether the broker sees it open and has closed no consumer of it.

        A consumer that it closed holds nothing, whether it has read that or not.
        """
        sent, unread = list(self._frames), self.stream.unread
        if CLOSES_CONSUMER in self._reader._held + unread:
            sent += deepcopy(self._reader).receive(unread)
        closes = any(one.command.type == pb.BaseCommand.CLOSE_CONSUMER for one in sent)
        return self.stream.is_open and not closes

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        value: Any = pb.BaseCommand.Type.Value(kind)
        self.stream.write(encode(command(value, **fields), payload))

    async def frame(self, seconds: float = ANSWER_SECONDS, *, closes: bool = True) -> Frame:
        """Return the next frame that is no ping; raise GoneError.

        If none comes in time the connection is closed, unless `closes` is False: TimeoutError then.
        """
        until = CLOCK.now + seconds
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.command.type != pb.BaseCommand.PING:
                    return frame
                self.send("PONG")
            try:
                data = await self.stream.read(until - CLOCK.now)
            except TimeoutError:
                if not closes:
                    raise
                self.stream.close()
                raise GoneError from None
            if not data:
                self.stream.close()
                raise GoneError
            self.heard_at = CLOCK.now
            self._frames.extend(self._reader.receive(data))

    async def answer(self, request_id: int, *kinds: str) -> Any:
        """Return the command that answers a request; raise GoneError."""
        while True:
            frame = await self.frame()
            found: Any = frame.command
            kind = pb.BaseCommand.Type.Name(found.type)
            body = next((v for field, v in found.ListFields() if field.name != "type"), None)
            if getattr(body, "request_id", None) == request_id:
                return body if kind in kinds else None

    async def produce(self, topic: str, producer_id: int, name: str, epoch: int) -> Any:
        """Open a deduplicated producer; raise GoneError, with the connection closed.

        Such as: the broker has not noticed yet that the producer's last connection is gone.
        """
        request_id = self.next_id()
        self.send(
            "PRODUCER",
            topic=topic,
            producer_id=producer_id,
            request_id=request_id,
            producer_name=name,
            user_provided_producer_name=True,
            epoch=epoch,
            metadata=DEDUPLICATE,
        )
        opened = await self.answer(request_id, "PRODUCER_SUCCESS")
        if opened is None:
            self.stream.close()
            raise GoneError
        return opened

    async def admin(self, **body: Any) -> npb.CommandAdminResponse:
        """Return the answer of a request of the node protocol; raise GoneError."""
        request_id = self.next_id()
        self.stream.write(node.frame(admin={"request_id": request_id, **body}))
        while True:
            frame = await self.frame()
            if frame.command.type == pb.BaseCommand.EXTENSION:
                found = node.read(frame.command.extension)
                if found.WhichOneof("body") == "admin_response":
                    return found.admin_response

    async def polled(self, poll_id: int, seconds: float) -> tuple[list[tuple[Any, bytes]], str]:
        """Return the entries that answer a poll, and the code of an error; raise GoneError."""
        entries: list[tuple[Any, bytes]] = []
        while True:
            frame = await self.frame(seconds + ANSWER_SECONDS)
            if frame.command.type != pb.BaseCommand.EXTENSION:
                continue
            answer = node.read(frame.command.extension)
            if answer.WhichOneof("body") != "polled" or answer.polled.poll_id != poll_id:
                continue
            polled, at = answer.polled, 0
            for entry in polled.entries:
                entries.append((entry, bytes(frame.payload[at : at + entry.size])))
                at += entry.size
            if not polled.more:
                return entries, polled.code if polled.HasField("code") else ""


class Publisher:
    """Publishes to the partitions of a topic, each entry until it is acknowledged."""

    def __init__(self, world: World, name: str, topic: str, partitions: int, mean: float) -> None:
        self.name = name
        self._world, self._topic, self._mean = world, topic, mean
        self._partitions = list(range(partitions)) if partitions else [-1]
        self._chance = Random(f"{world.seed}:{self.name}")
        self._sequences = dict.fromkeys(self._partitions, 0)
        self._epoch = 0
        self._count = 0
        self._unacknowledged: list[tuple[int, int, list[str], bytes]] = []

    async def run(self) -> None:
        while not self._world.is_quiet or self._unacknowledged:
            try:
                peer = await PulsarPeer.open(self._world, "node")
                await self._publish(peer)
            except GoneError:
                self._world.history.count("publisher reconnected")
            await asyncio.sleep(self._chance.uniform(0.01, 1))

    async def _publish(self, peer: PulsarPeer) -> None:
        for partition in self._partitions:
            await self._open(peer, partition)
        while not self._world.is_quiet or self._unacknowledged:
            if not self._unacknowledged:
                await self._world.pause(self._chance, self._mean)
                if self._world.is_quiet:
                    break
                self._prepare()
            await self._append(peer)
            if self._chance.random() < 0.01:
                break
        peer.stream.close()

    async def _open(self, peer: PulsarPeer, partition: int) -> None:
        topic = self._topic if partition < 0 else f"{self._topic}-partition-{partition}"
        self._epoch += 1
        await peer.produce(topic, partition + 1, f"router-{self.name}", self._epoch)

    def _prepare(self) -> None:
        chance = self._chance
        count = chance.randint(1, len(self._partitions))
        for partition in sorted(chance.sample(self._partitions, count)):
            names = []
            for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
                self._count += 1
                names.append(f"{self.name}:{self._count}")
            messages = self._messages(partition, names)
            sequence = self._sequences[partition]
            self._sequences[partition] += 1
            payload = pack(messages, f"router-{self.name}", sequence, int(CLOCK.time() * 1000))
            self._unacknowledged.append((partition, sequence, names, payload))

    def _messages(self, _partition: int, names: Sequence[str]) -> list[Message]:
        """Return messages, which are sent for the first time, of an entry."""
        filler = b"." * self._chance.choice((0, 10, 100, 1000))
        return [Message(b"%s %s" % (name.encode(), filler)) for name in names]

    def _published(self, partition: int, names: Sequence[str], at: float) -> None:
        """Note that messages, which were sent last at a time, were acknowledged."""
        self._world.history.published(PartitionName(self._topic, partition), names, at)

    async def _append(self, peer: PulsarPeer) -> None:
        sent, request_id, at = list(self._unacknowledged), peer.next_id(), CLOCK.now
        appends = pb.CommandAppends(
            request_id=request_id,
            producer_ids=[one[0] + 1 for one in sent],
            sequence_ids=[one[1] for one in sent],
            sizes=[len(one[3]) for one in sent],
        )
        body = pb.BaseCommand(type=pb.BaseCommand.APPENDS, appends=appends)
        peer.stream.write(encode(body, b"".join(one[3] for one in sent)))
        while True:
            frame = await peer.frame()
            if frame.command.type == pb.BaseCommand.APPENDS_RESPONSE:
                break
        refused = {failure.entry for failure in frame.command.appendsResponse.failures}
        for place, (partition, _, names, _) in enumerate(sent):
            if place not in refused:
                self._published(partition, names, at)
        self._unacknowledged = [one for place, one in enumerate(sent) if place in refused]
        if refused:
            self._world.history.count("appends refused", len(refused))
            # A sequence must not be overtaken: begin with what the broker has.
            await asyncio.sleep(self._chance.uniform(0.1, 2))


class Poller:
    """Polls as one consumer of a group."""

    def __init__(self, world: World, number: int, topic: str, group: str, mean: float) -> None:
        self.name = f"c{number}"
        self._world, self._topic, self._group, self._mean = world, topic, group, mean
        self._chance = Random(f"{world.seed}:{self.name}")
        self._done: dict[GroupPartition, tuple[int, int]] = {}
        self.empty_in_quiet = 0

    async def run(self) -> None:
        while True:
            try:
                peer = await PulsarPeer.open(self._world, "node")
                self._done.clear()
                while True:
                    await self._poll(peer)
                    await self._world.pause(self._chance, self._mean, self.empty_in_quiet)
                    if self._chance.random() < 0.005:
                        peer.stream.close()
                        break
            except GoneError:
                self._world.history.count("poller reconnected")
            await asyncio.sleep(self._chance.uniform(0.01, 1))

    async def _poll(self, peer: PulsarPeer) -> None:
        chance, world = self._chance, self._world
        poll_id, asked_at = peer.next_id(), CLOCK.now
        limit = 1000 if world.is_quiet else chance.choice((1, 3, 10, 100))
        seconds = 0.5 if world.is_quiet else chance.choice((0.0, 1.0, 5.0, 20.0))
        poll = npb.CommandPoll(
            poll_id=poll_id,
            topic=self._topic,
            subscription=self._group,
            consumer=self.name,
            limit=limit,
            max_bytes=1 << 20,
            timeout_ms=int(seconds * 1000),
            earliest=True,
            max_inflated=1 << 20,
        )
        peer.stream.write(node.frame(poll=poll))
        entries, code = await peer.polled(poll_id, seconds)
        found: dict[GroupPartition, list[tuple[Place, str]]] = {}
        for entry, piece in entries:
            group = GroupPartition(self._partition(entry, asked_at), self._group)
            found.setdefault(group, []).extend(messages_of(entry, piece))
        for done, end in self._done.items():
            world.history.processed(done, end, peer.boot)
        self._done.clear()
        if code:
            world.history.count(f"poll: {code}")
            await asyncio.sleep(chance.uniform(0.1, 2))
            return
        self.empty_in_quiet = self.empty_in_quiet + 1 if world.is_quiet and not found else 0
        if found:
            await self._take(peer, poll_id, found, asked_at)

    def _partition(self, entry: Any, _asked_at: float) -> PartitionName:
        """Return the partition of an entry that a poll, sent at a time, was answered with."""
        return PartitionName(self._topic, entry.partition)

    async def _take(
        self,
        peer: PulsarPeer,
        poll_id: int,
        found: dict[GroupPartition, list[tuple[Place, str]]],
        asked_at: float,
    ) -> None:
        history, chance = self._world.history, self._chance
        for group, messages in found.items():
            history.delivered(group, messages, asked_at)
            history.hold(group, self.name, peer.stream)
        if chance.random() < 0.3 and not self._world.is_quiet:
            await self._world.pause(chance, 1.0)
        for group in found:
            history.release(group, self.name)
        fate = 1.0 if self._world.is_quiet else chance.random()
        if fate < 0.02:
            peer.stream.close()
            raise GoneError
        outcome = PollOutcome.DELIVERED if fate > 0.05 else PollOutcome.REFUSED
        if outcome is PollOutcome.DELIVERED:
            for group, messages in found.items():
                self._done[group] = messages[-1][0].following
                history.acknowledging(group, self._done[group])
        peer.stream.write(node.frame(done={"poll_id": poll_id, "outcome": OUTCOMES[outcome]}))


def messages_of(entry: Any, piece: bytes) -> list[tuple[Place, str]]:
    """Return the messages of an entry of an answer."""
    unpacked, size = read_entry(piece, entry.ack_set, (entry.ledger, entry.entry), 1 << 20)
    first = entry.first if entry.batch_size else 0
    size = entry.batch_size or size
    return [
        (
            Place(entry.entry, first + max(0, one.batch_index), size),
            name_of(one.message.value),
        )
        for one in unpacked
    ]
