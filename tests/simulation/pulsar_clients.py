"""Raw clients of Pulsar: a producer that is deduplicated, and consumers.

Those of exclusive and failover subscriptions acknowledge cumulatively, those of shared and
key_shared ones message by message; a message's key follows from its number.
"""

from __future__ import annotations

from typing import Any, Final

from router.model import Message
from router.wire.pulsar import pack, unpack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.simulation.history import GroupPartition, InFlight, PartitionName, Place, name_of
from tests.simulation.protocols import Client, Numbered, value_of
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import GoneError, PulsarPeer, World

LIMIT: Final = 1 << 20
MIN_PERMITS: Final = 20
SILENCE_SECONDS: Final = 90.0
"""Without even a ping for so long a subscriber takes its connection for lost."""
RENEW_ODDS: Final = 0.3
KEYS: Final = 7
MAX_HELD: Final = 12
"""Messages that a shared consumer has before it acknowledges some."""


def key_of(message: str) -> str:
    """Return the key of a message by its name."""
    return f"k{int(message.partition(':')[2]) % KEYS}"


class PulsarPublisher(Numbered):
    """Sends entries of one partition, several at once, and waits for their receipts."""

    def __init__(self, world: World, name: str, topic: str, partition: int, mean: float) -> None:
        super().__init__(world, name, mean)
        self._log = PartitionName(topic, partition)
        self._topic = topic if partition < 0 else f"{topic}-partition-{partition}"
        self._epoch = 0

    async def work(self) -> None:
        peer = await PulsarPeer.open(self.world, "pulsar")
        self._epoch += 1
        await peer.produce(self._topic, 1, self.name, self._epoch)
        while not self.world.is_quiet or self.sent:
            if not self.sent:
                await self.pause()
                self.next_messages(self.chance.randint(1, 8))
            await self._send(peer)
        peer.stream.close()

    async def _send(self, peer: PulsarPeer) -> None:
        at = CLOCK.now
        for name in self.sent:
            sequence = int(name.partition(":")[2])
            message = Message(value_of(name, self.chance), key=key_of(name).encode())
            payload = pack([message], self.name, sequence, int(CLOCK.time() * 1000))
            peer.send("SEND", payload, producer_id=1, sequence_id=sequence, num_messages=1)
        for name in list(self.sent):
            frame = await peer.frame()
            if frame.command.type != pb.BaseCommand.SEND_RECEIPT:
                peer.stream.close()
                raise GoneError
            self.world.history.published(self._log, [name], at)
            self.sent.remove(name)


class PulsarConsumer(Client):
    """A consumer of a subscription on one partition."""

    kind = pb.CommandSubscribe.Exclusive

    def __init__(
        self, world: World, name: str, group: str, topic: str, partition: int, mean: float
    ) -> None:
        super().__init__(world, name, mean)
        self._group = GroupPartition(PartitionName(topic, partition), group)
        self._topic = topic if partition < 0 else f"{topic}-partition-{partition}"
        self._is_fresh = False
        world.history.progress(self._group).starts_at_zero = True

    async def _subscribe(self) -> PulsarPeer:
        self.empty_in_quiet = 0
        peer = await PulsarPeer.open(self.world, "pulsar")
        request_id = peer.next_id()
        peer.send(
            "SUBSCRIBE",
            topic=self._topic,
            subscription=self._group.group,
            subType=self.kind,
            consumer_id=1,
            consumer_name=self.name,
            request_id=request_id,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        if await peer.answer(request_id, "SUCCESS") is None:
            peer.stream.close()
            raise GoneError
        return peer

    async def _frame(self, peer: PulsarPeer) -> Any:
        """Return the next frame, None: none came for a while; raise GoneError."""
        try:
            return await peer.frame(5.0, closes=False)
        except TimeoutError:
            # In the quiet time a connection may have fallen silent before. Not all consumers of a
            # subscription go at once: what one holds is for those that are there.
            is_stale = self.world.is_quiet and not self._is_fresh
            renews = is_stale and self.chance.random() < RENEW_ODDS
            if CLOCK.now - peer.heard_at < SILENCE_SECONDS and not renews:
                counts = self.world.is_quiet and not is_stale
                self.empty_in_quiet = self.empty_in_quiet + 1 if counts else 0
                return None
            self._is_fresh = self._is_fresh or renews
            peer.stream.close()
            raise GoneError from None

    def _acknowledge(self, peer: PulsarPeer, message_id: Any, kind: Any) -> int:
        """Send an acknowledgement and return the number of its request."""
        request_id = peer.next_id()
        peer.send(
            "ACK",
            consumer_id=1,
            message_id=[message_id],
            ack_type=kind,
            request_id=request_id,
        )
        return request_id


class PulsarSubscriber(PulsarConsumer):
    """The one consumer of an exclusive subscription, or one of those of a failover one."""

    async def work(self) -> None:
        asked_at, history = CLOCK.now, self.world.history
        peer = await self._subscribe()
        after: tuple[int, int] | None = None
        is_active, permits = self.kind == pb.CommandSubscribe.Exclusive, 0
        acks: dict[int, tuple[int, int]] = {}
        while True:
            if permits < MIN_PERMITS:
                peer.send("FLOW", consumer_id=1, messagePermits=100)
                permits += 100
            frame = await self._frame(peer)
            if frame is None:
                continue
            found = frame.command
            if found.type == pb.BaseCommand.MESSAGE:
                if not is_active:
                    text = f"{self._group}: {self.name} at {found.message.message_id.entryId}"
                    history.violation("a message for a consumer that is not active", text)
                messages = read_messages(found.message, frame.payload)
                history.delivered(self._group, messages, asked_at, after)
                after = messages[-1][0].following
                permits -= len(messages)
                self._took(peer, found.message.message_id, after, acks)
            elif found.type == pb.BaseCommand.ACTIVE_CONSUMER_CHANGE:
                is_active, after = found.active_consumer_change.is_active, None
            else:
                self._answered(peer, found, acks)

    def _took(
        self,
        peer: PulsarPeer,
        message_id: Any,
        end: tuple[int, int],
        acks: dict[int, tuple[int, int]],
    ) -> None:
        """Acknowledge up to a message, sooner or later; raise GoneError now and then."""
        self.empty_in_quiet = 0
        if self.chance.random() < 0.5 or self.world.is_quiet:
            self.world.history.acknowledging(self._group, end)
            acks[self._acknowledge(peer, message_id, pb.CommandAck.Cumulative)] = end
        if self.chance.random() < 0.002:
            peer.stream.close()
            raise GoneError

    def _answered(self, peer: PulsarPeer, found: Any, acks: dict[int, tuple[int, int]]) -> None:
        """Take note of the answer to an acknowledgement, or of the end of the consumer."""
        if found.type == pb.BaseCommand.ACK_RESPONSE:
            end = acks.pop(found.ackResponse.request_id)
            self.world.history.confirmed(self._group, end, peer.boot)
        elif found.type == pb.BaseCommand.CLOSE_CONSUMER:
            peer.stream.close()
            raise GoneError


class FailoverSubscriber(PulsarSubscriber):
    """One of the consumers of a failover subscription, of which one is active."""

    kind = pb.CommandSubscribe.Failover


class SharedConsumer(PulsarConsumer):
    """One of the consumers of a shared subscription; it gives some messages back, and may go."""

    kind = pb.CommandSubscribe.Shared

    async def work(self) -> None:
        peer = await self._subscribe()
        try:
            await self._consume(peer)
        finally:
            self.world.history.release_all(self._group, self.name)

    async def _consume(self, peer: PulsarPeer) -> None:
        permits = 0
        acks: dict[int, str] = {}
        held: dict[str, Any] = {}
        while True:
            if permits < MIN_PERMITS:
                peer.send("FLOW", consumer_id=1, messagePermits=2 * MIN_PERMITS)
                permits += 2 * MIN_PERMITS
            frame = await self._frame(peer)
            if frame is None:
                self._part(peer, held, self._limit(), acks)
                continue
            found = frame.command
            if found.type == pb.BaseCommand.ACK_RESPONSE:
                message = acks.pop(found.ackResponse.request_id)
                self.world.history.confirmed_one(self._group, message)
            elif found.type == pb.BaseCommand.MESSAGE:
                permits -= 1
                self.empty_in_quiet = 0
                await self._take(peer, found.message, frame.payload, held)
                self._part(peer, held, self._limit(), acks)
            elif found.type == pb.BaseCommand.CLOSE_CONSUMER:
                peer.stream.close()
                raise GoneError

    def _limit(self) -> int:
        """Return how many messages it goes on to hold.

        With its first connection of the quiet time go those that it holds: they come again.
        """
        is_last = self.world.is_quiet and self._is_fresh
        return 0 if is_last else self.chance.randint(0, MAX_HELD)

    async def _take(
        self, peer: PulsarPeer, command: Any, payload: bytes, held: dict[str, Any]
    ) -> None:
        history, group = self.world.history, self._group
        ((place, message),) = read_messages(command, payload)
        key = key_of(message) if self.kind == pb.CommandSubscribe.Key_Shared else ""
        # What the client reads of a connection that is lost may be elsewhere by now.
        is_open = peer.is_open
        if is_open:
            history.hold_one(group, place, message, InFlight(self.name, peer, key))
        history.delivered_one(group, place, message, CLOCK.now if is_open else 0.0)
        held[message] = command.message_id
        fate = 1.0 if self.world.is_quiet else self.chance.random()
        if fate < 0.002:
            peer.stream.close()
            raise GoneError
        if fate < 0.2:
            await self.world.pause(self.chance, 0.5)

    def _part(
        self, peer: PulsarPeer, held: dict[str, Any], limit: int, acks: dict[int, str]
    ) -> None:
        """Acknowledge messages in any order, or give them back, until so many are held."""
        while len(held) > limit:
            message = self.chance.choice(list(held))
            message_id = held.pop(message)
            self.world.history.release_one(self._group, message, self.name)
            if self.chance.random() < 0.05 and not self.world.is_quiet:
                kind = "REDELIVER_UNACKNOWLEDGED_MESSAGES"
                peer.send(kind, consumer_id=1, message_ids=[message_id])
            else:
                self.world.history.acknowledging_one(self._group, message)
                acks[self._acknowledge(peer, message_id, pb.CommandAck.Individual)] = message


class KeySharedConsumer(SharedConsumer):
    """One of the consumers of a key_shared subscription."""

    kind = pb.CommandSubscribe.Key_Shared


def read_messages(command: Any, payload: bytes) -> list[tuple[Place, str]]:
    """Return the messages of a delivered entry with their places."""
    entry = command.message_id.entryId
    found = unpack(payload, LIMIT, command.ack_set)
    size = max(1, found[-1].batch_index + 1)
    return [
        (Place(entry, max(0, one.batch_index), size), name_of(one.message.value)) for one in found
    ]
