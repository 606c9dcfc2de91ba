"""Polls with acknowledgements of their own: PIP 64 fetches, and those with `ack=explicit`."""

from __future__ import annotations

from typing import Any, Final

from router.model import PollOutcome, Position
from router.wire import node
from router.wire.node import node_pb2 as npb
from router.wire.node.conversions import OUTCOMES, to_message_id
from router.wire.pulsar import pulsar_pb2 as pb
from tests.simulation.history import GroupPartition, PartitionName, Place
from tests.simulation.protocols import Client
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import GoneError, PulsarPeer, World, messages_of

ACK_SECONDS: Final = 10
WORD_BITS: Final = 64


class PollingClient(Client):
    """Polls all partitions of a topic as one consumer id of a group."""

    def __init__(
        self, world: World, name: str, group: str, topic: tuple[str, int], mean: float
    ) -> None:
        super().__init__(world, name, mean)
        self._topic, partitions = topic
        self._name = group
        for partition in range(partitions) if partitions else [-1]:
            world.history.progress(self._group(partition)).starts_at_zero = True

    def _group(self, partition: int) -> GroupPartition:
        return GroupPartition(PartitionName(self._topic, partition), self._name)

    def _request(self, peer: PulsarPeer, seconds: float) -> npb.CommandPoll:
        limit = 1000 if self.world.is_quiet else self.chance.choice((1, 3, 10, 100))
        return npb.CommandPoll(
            poll_id=peer.next_id(),
            topic=self._topic,
            subscription=self._name,
            consumer=self.name,
            limit=limit,
            max_bytes=1 << 20,
            timeout_ms=int(seconds * 1000),
            earliest=True,
            max_inflated=1 << 20,
        )

    async def _answer(
        self, peer: PulsarPeer, request: npb.CommandPoll, seconds: float
    ) -> tuple[list[tuple[Any, list[tuple[Place, str]]]], str]:
        """Send a poll; return the entries of its answer, each with its messages, and a code."""
        peer.stream.write(node.frame(poll=request))
        entries, code = await peer.polled(request.poll_id, seconds)
        if code:
            self.world.history.count(f"{type(self).__name__}: {code}")
        quiet = self.world.is_quiet and not code
        self.empty_in_quiet = self.empty_in_quiet + 1 if quiet and not entries else 0
        return [(entry, messages_of(entry, piece)) for entry, piece in entries], code

    def _done(self, peer: PulsarPeer, request: npb.CommandPoll) -> None:
        done = {"poll_id": request.poll_id, "outcome": OUTCOMES[PollOutcome.DELIVERED]}
        peer.stream.write(node.frame(done=done))


class Fetcher(PollingClient):
    """Fetches as PIP 64 does: what it gets is in flight until it is acknowledged, or due again."""

    def __init__(
        self, world: World, names: list[str], number: int, topic: tuple[str, int], mean: float
    ) -> None:
        super().__init__(world, names[number], "fetched", topic, mean)
        self._live = names

    async def work(self) -> None:
        peer = await PulsarPeer.open(self.world, "node")
        while True:
            # In the quiet time for longer than messages are in flight.
            seconds = 1.2 * ACK_SECONDS if self.world.is_quiet else self.chance.choice((0.0, 5.0))
            request, asked_at = self._request(peer, seconds), CLOCK.now
            request.fetch.ack_timeout_ms = ACK_SECONDS * 1000
            request.fetch.max_unacknowledged = 1000
            request.fetch.live.extend(self._live)
            request.fetch.live_at_ms = int(CLOCK.time() * 1000)
            found, _ = await self._answer(peer, request, seconds)
            for entry, messages in found:
                for place, message in messages:
                    group = self._group(entry.partition)
                    self.world.history.delivered_one(group, place, message, asked_at)
            if found:
                self._done(peer, request)
                await self._acknowledge(peer, found)
            await self.pause()
            if self.chance.random() < 0.005:
                peer.stream.close()
                raise GoneError

    async def _acknowledge(
        self, peer: PulsarPeer, found: list[tuple[Any, list[tuple[Place, str]]]]
    ) -> None:
        """Acknowledge most entries, a few or all of them by one request."""
        history, quiet = self.world.history, self.world.is_quiet
        chosen = [one for one in found if quiet or self.chance.random() >= 0.2]
        limit = self.chance.choice((1, 5, 1000))
        for start in range(0, len(chosen), limit):
            acknowledged = chosen[start : start + limit]
            request = {
                "topic": self._topic,
                "subscription": self._name,
                "message_id": [_position(*one) for one in acknowledged],
            }
            for entry, messages in acknowledged:
                for _, message in messages:
                    history.acknowledging_one(self._group(entry.partition), message)
            answer = await peer.admin(acknowledge=request)
            if answer.HasField("code"):
                history.count(f"acknowledge: {answer.code}")
                continue
            for entry, messages in acknowledged:
                for _, message in messages:
                    history.confirmed_one(self._group(entry.partition), message)


class ExplicitPoller(PollingClient):
    """Polls with `ack=explicit`: what it got is acknowledged when a later poll names it."""

    def __init__(self, world: World, name: str, topic: tuple[str, int], mean: float) -> None:
        super().__init__(world, name, "explicit", topic, mean)
        self._ends: dict[int, tuple[pb.MessageIdData, tuple[int, int]]] = {}

    async def work(self) -> None:
        peer = await PulsarPeer.open(self.world, "node")
        self._ends.clear()
        while True:
            await self._poll(peer)
            await self.pause()
            if self.chance.random() < 0.005:
                peer.stream.close()
                raise GoneError

    async def _poll(self, peer: PulsarPeer) -> None:
        history = self.world.history
        seconds = 0.5 if self.world.is_quiet else self.chance.choice((0.0, 5.0))
        request, asked_at = self._request(peer, seconds), CLOCK.now
        request.explicit_partitions = 3
        named = self._ends if self.chance.random() < 0.8 or self.world.is_quiet else {}
        for position, _ in named.values():
            request.acknowledged.append(position)
        only = bool(named) and self.chance.random() < 0.3
        if only:
            request.limit = 0
        for partition, (_, end) in named.items():
            history.acknowledging(self._group(partition), end)
        found, code = await self._answer(peer, request, seconds)
        if only:
            self.empty_in_quiet = 0
            if not code:
                for partition, (_, end) in named.items():
                    history.confirmed(self._group(partition), end, peer.boot)
        await self._take(peer, request, found, asked_at)

    async def _take(
        self,
        peer: PulsarPeer,
        request: npb.CommandPoll,
        found: list[tuple[Any, list[tuple[Place, str]]]],
        asked_at: float,
    ) -> None:
        history = self.world.history
        self._ends = {}
        by_partition: dict[int, list[tuple[Place, str]]] = {}
        for entry, messages in found:
            by_partition.setdefault(entry.partition, []).extend(messages)
            place = messages[-1][0]
            last = Position(
                entry.ledger, entry.entry, entry.partition, place.number, place.size, entry.epoch
            )
            self._ends[entry.partition] = (to_message_id(last), place.following)
        for partition, messages in by_partition.items():
            group = self._group(partition)
            history.delivered(group, messages, asked_at)
            history.hold(group, self.name, peer.stream)
        if found:
            await self.world.pause(self.chance, 0.5)
            for partition in by_partition:
                history.release(self._group(partition), self.name)
            self._done(peer, request)


def _position(entry: Any, messages: list[tuple[Place, str]]) -> pb.MessageIdData:
    """Return what acknowledges the messages that came of an entry."""
    position = to_message_id(
        Position(entry.ledger, entry.entry, entry.partition, epoch=entry.epoch)
    )
    size = messages[0][0].size
    if len(messages) < size:
        left = (1 << size) - 1
        for place, _ in messages:
            left &= ~(1 << place.number)
        position.ack_set.extend(_words(left, size))
    return position


def _words(bits: int, size: int) -> list[int]:
    """Return bits as the protocol's 64-bit words, which are signed, lowest message first."""
    words = []
    for start in range(0, size, WORD_BITS):
        word = bits >> start & ((1 << WORD_BITS) - 1)
        words.append(word - (1 << WORD_BITS) if word >> (WORD_BITS - 1) else word)
    return words
