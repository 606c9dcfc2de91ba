"""Clients of a topic that is deleted with its messages and made again under its name; and the law.

Each topic of the name has a ledger of its own, which receipts and polls tell, so that what a client
sees belongs to one of them for certain: each is a log with groups of its own. Of a ledger that was
deleted nothing may be seen by who asks later. A message is sent once: one without a receipt may be
stored in any of them.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any, Final

from router.model import Message
from router.wire.pulsar import pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.simulation.history import GroupPartition, History, PartitionName
from tests.simulation.kafka_clients import KafkaPeer
from tests.simulation.protocols import Client, Numbered, value_of
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import GoneError, Poller, PulsarPeer, World

NAME: Final = "renewed"
TOPIC: Final = f"persistent://public/default/{NAME}"
GROUP: Final = "renewing"
NOT_PARTITIONED: Final = -1
NO_POSITION: Final = 2**64 - 1
LATE_SECONDS: Final = 300.0
"""A request whose connection is gone does nothing any more after so long."""
NOT_FOUND: Final = "topic-not-found"
KAFKA_DELETED: Final = frozenset({0, 3})
"""It is deleted, or there is none."""
MAX_PAUSE_SECONDS: Final = 300.0


class RenewalLaw:
    """What is known of the topics of the name, by their ledgers."""

    def __init__(self, history: History, topic: str = TOPIC) -> None:
        self.sent_at = -inf
        """When the last deletion was sent."""
        self.done_at = -inf
        """When the last deletion was known to be over."""
        self._history, self._topic = history, topic
        self._certain: set[int] = set()
        self._gone: dict[int, float] = {}
        self._names: dict[str, int] = {}

    @property
    def is_deleting(self) -> bool:
        """Return whether a deletion is under way."""
        return self.sent_at > self.done_at

    def unchanged_since(self, at: float) -> bool:
        """Return whether nothing was deleted since a time, nor is being deleted."""
        return not self.is_deleting and self.done_at < at

    def is_gone(self, at: float, asked_at: float) -> bool:
        """Return whether what was there at a time is deleted for who asks at another."""
        return at < self.sent_at < self.done_at < asked_at

    def deleting(self) -> None:
        """Note that a deletion is about to be sent, first of all or again."""
        if not self.is_deleting:
            self.sent_at = CLOCK.now
            for ledger in self._certain:
                self._history.deleted.add(self._log(ledger))

    def deleted(self) -> None:
        """Note that what there was before a deletion was sent is deleted, and nothing more will."""
        self.done_at = CLOCK.now
        self._gone.update(dict.fromkeys(self._certain, CLOCK.now))
        self._certain.clear()
        self._history.count("topics deleted and made again")

    def seen(self, ledger: int, asked_at: float) -> PartitionName:
        """Note that an answer to what was asked at a time tells of a ledger; return its log."""
        log, history = self._log(ledger), self._history
        if self._gone.get(ledger, asked_at) < asked_at:
            history.violation("a deleted topic came back", f"{log} asked for at {asked_at}")
        if ledger not in self._gone and ledger not in self._certain:
            if self.unchanged_since(asked_at):
                self._certain.add(ledger)
                history.deleted.discard(log)
            else:
                history.deleted.add(log)
        history.progress(GroupPartition(log, GROUP)).starts_at_zero = True
        return log

    def published(self, ledger: int, name: str, sent_at: float) -> None:
        """Note the receipt of a message."""
        if ledger == NO_POSITION:
            text = f"{self._topic}: {name}"
            self._history.violation("a new message was taken for a duplicate", text)
        log = self.seen(ledger, sent_at)
        self._names[name] = ledger
        self._history.published(log, [name], sent_at)

    def scanned(self, names: set[str], asked_at: float) -> None:
        """Check what one read of the whole topic, begun at a time, has."""
        for name in names & self._names.keys():
            if self._gone.get(self._names[name], asked_at) < asked_at:
                self._history.violation("a deleted message came back", f"{self._topic}: {name}")

    def required(self) -> set[str]:
        """Return what a read must have that begins now, if nothing is deleted meanwhile."""
        return {name for name, ledger in self._names.items() if ledger in self._certain}

    def _log(self, ledger: int) -> PartitionName:
        return PartitionName(f"{self._topic}#{ledger}", NOT_PARTITIONED)


class Renewer(Client):
    """Deletes the topic by one protocol or another, and makes it again unless its clients do."""

    pauses = 8.0
    """Between two deletions, in pauses of a client."""

    def __init__(self, world: World, law: RenewalLaw, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.law = law

    async def work(self) -> None:
        if self.law.is_deleting:
            await asyncio.sleep(LATE_SECONDS)
        peer = await self.opened()
        while not self.world.is_quiet or self.law.is_deleting:
            if not self.law.is_deleting:
                mean = min(self.pauses * self.mean, MAX_PAUSE_SECONDS)
                await self.world.pause(self.chance, mean)
            if self.world.is_quiet and not self.law.is_deleting:
                break
            self.law.deleting()
            if await self.delete(peer):
                self.law.deleted()
                if self.chance.random() < 0.5:
                    await self.make(peer)
            else:
                await asyncio.sleep(self.chance.uniform(0.1, 2))
        if await self.make(peer):
            self.empty_in_quiet += 1
        peer.stream.close()

    async def opened(self) -> Any:
        """Return a connection to delete and make it by."""
        return await PulsarPeer.open(self.world, "node")

    async def make(self, peer: Any) -> bool:
        """Make it if it is not there; return whether it is."""
        answer = await peer.admin(create_topic={"topic": TOPIC, "partitions": 0})
        return not answer.HasField("code") or answer.code == "topic-exists"

    async def delete(self, peer: Any) -> bool:
        """Return whether it is deleted for certain."""
        if self.chance.random() < 0.6:
            answer = await peer.admin(delete_topic={"topic": TOPIC})
            return not answer.HasField("code") or answer.code == NOT_FOUND
        return await self.delete_by_kafka(NAME)

    async def delete_by_kafka(self, name: str) -> bool:
        """Return whether the topic that Kafka knows by a name is deleted for certain."""
        kafka = await KafkaPeer.open(self.world)
        found = await kafka.ask("DeleteTopics", 5, topic_names=[name], timeout_ms=30_000)
        kafka.stream.close()
        return found.responses[0].error_code in KAFKA_DELETED


class RenewedPublisher(Numbered):
    """A deduplicated producer, which numbers its messages from the first of each topic on."""

    def __init__(self, world: World, law: RenewalLaw, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.law, self._prefix = law, name
        self._producers, self._epoch = 0, 0
        self._begin()

    def _begin(self) -> None:
        """Be another producer: of what is not answered it is not known where it is."""
        self.sent = []
        self._producers += 1
        self.name = f"{self._prefix}.{self._producers}"
        self._sequence, self._sent_at, self._stored_at = -1, -inf, -inf

    @property
    def has_work(self) -> bool:
        return False

    async def work(self) -> None:
        if self.sent:
            self._begin()
        peer = await PulsarPeer.open(self.world, "pulsar")
        await self._open(peer)
        while not self.world.is_quiet:
            await self.pause()
            await self._reopen(peer)
            await self._send(peer)
        peer.stream.close()

    async def _reopen(self, peer: PulsarPeer) -> None:
        """Open the producer again if the broker has closed it."""
        try:
            frame = await peer.frame(0.001, closes=False)
        except TimeoutError:
            return
        if frame.command.type != pb.BaseCommand.CLOSE_PRODUCER:
            peer.stream.close()
            raise GoneError
        await self._open(peer)

    async def _open(self, peer: PulsarPeer) -> None:
        asked_at = CLOCK.now
        self._epoch += 1
        answer = await peer.produce(TOPIC, 1, self.name, self._epoch)
        self._check(answer.last_sequence_id, asked_at)
        self._sequence = answer.last_sequence_id

    def _check(self, last: int, asked_at: float) -> None:
        """Check what a topic has of this producer, all of whose messages have receipts."""
        law, text = self.law, f"{self.name}: {last}, it sent {self._sequence}"
        if law.is_gone(self._stored_at, asked_at) and last != -1:
            self.world.history.violation("a new topic has a producer of the old one", text)
        if law.unchanged_since(self._sent_at) and last != self._sequence:
            self.world.history.violation("a topic forgot a producer", text)

    async def _send(self, peer: PulsarPeer) -> None:
        at = CLOCK.now
        for name in self.next_messages(self.chance.choice((1, 1, 3, 10))):
            self._sequence += 1
            message, sent_ms = Message(value_of(name, self.chance)), int(CLOCK.time() * 1000)
            payload = pack([message], self.name, self._sequence, sent_ms)
            peer.send("SEND", payload, producer_id=1, sequence_id=self._sequence, num_messages=1)
        for name in list(self.sent):
            frame = await peer.frame()
            if frame.command.type != pb.BaseCommand.SEND_RECEIPT:
                peer.stream.close()
                raise GoneError
            self.law.published(frame.command.send_receipt.message_id.ledgerId, name, at)
            self.sent.remove(name)
        self._sent_at, self._stored_at = at, CLOCK.now


class RenewedPoller(Poller):
    """Polls the topic of the name, whichever that is."""

    def __init__(self, world: World, law: RenewalLaw, number: int, mean: float) -> None:
        super().__init__(world, number, TOPIC, GROUP, mean)
        self._law = law

    def _partition(self, entry: Any, asked_at: float) -> PartitionName:
        return self._law.seen(entry.ledger, asked_at)


class RenewedScanner(Client):
    """Reads the whole topic by Kafka's protocol, and has a group commit how far it was."""

    def __init__(self, world: World, law: RenewalLaw, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.law = law
        self._groups = 0
        self._position, self._sent_at, self._committed_at = 0, -inf, -inf
        self._is_committing = False

    async def work(self) -> None:
        if self._is_committing or not self._groups:
            # A commit without an answer may come late.
            self._groups += 1
            self._position, self._sent_at, self._committed_at = 0, -inf, -inf
            self._is_committing = False
        peer = await KafkaPeer.open(self.world)
        while True:
            await self._scan(peer)
            await self.world.pause(self.chance, 3 * self.mean, self.empty_in_quiet)

    async def _scan(self, peer: KafkaPeer) -> None:
        history, law, group = self.world.history, self.law, f"{self.name}-{self._groups}"
        began, required, names, position = CLOCK.now, law.required(), set[str](), 0
        self._check(await peer.committed(group, NAME, 0), began)
        while True:
            asked_at = CLOCK.now
            if (found := await peer.fetch(NAME, 0, position)) is None:
                history.count("renewed: Fetch refused")
                return
            if not found:
                break
            law.scanned({name for _, name in found}, asked_at)
            names |= {name for _, name in found}
            position = found[-1][0].entry + 1
        if law.unchanged_since(began):
            if missing := required - names:
                text = f"{TOPIC}: {len(missing)}, {min(missing)}"
                history.violation("acknowledged and not delivered", text)
            self.empty_in_quiet += self.world.is_quiet
        self._is_committing, sent_at = True, CLOCK.now
        if await peer.commit(group, NAME, 0, position):
            peer.stream.close()
            raise GoneError
        self._position, self._sent_at, self._committed_at = position, sent_at, CLOCK.now
        self._is_committing = False

    def _check(self, committed: int, asked_at: float) -> None:
        """Check the position of a group all of whose commits are answered."""
        law, text = self.law, f"{self.name}-{self._groups}: {committed}, it was {self._position}"
        if law.is_gone(self._committed_at, asked_at) and committed:
            self.world.history.violation("a new topic has a group of the old one", text)
        if law.unchanged_since(self._sent_at) and committed != self._position:
            self.world.history.violation("a topic forgot a position", text)
