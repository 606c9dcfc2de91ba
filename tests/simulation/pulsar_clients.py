"""Raw clients of Pulsar: a producer that is deduplicated, and an exclusive consumer."""

from __future__ import annotations

from typing import Any, Final

from router.model import Message
from router.wire.pulsar import pack, unpack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.simulation.history import GroupPartition, PartitionName, Place
from tests.simulation.protocols import Client, Numbered, value_of
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import DEDUPLICATE, GoneError, PulsarPeer, World

LIMIT: Final = 1 << 20
MIN_PERMITS: Final = 20
SILENCE_SECONDS: Final = 90.0
"""Without even a ping for so long a subscriber takes its connection for lost."""


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
            message = Message(value_of(name, self.chance))
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
        self._is_fresh = False
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
            # In the quiet time a connection may have fallen silent before.
            renews = self.world.is_quiet and not self._is_fresh
            if CLOCK.now - peer.heard_at < SILENCE_SECONDS and not renews:
                return None
            self._is_fresh = self._is_fresh or renews
            peer.stream.close()
            raise GoneError from None


def _pulsar_messages(command: Any, payload: bytes) -> list[tuple[Place, str]]:
    entry = command.message_id.entryId
    found = unpack(payload, LIMIT, command.ack_set)
    size = max(1, found[-1].batch_index + 1)
    return [
        (Place(entry, max(0, one.batch_index), size), one.message.value.split(b" ")[0].decode())
        for one in found
    ]
