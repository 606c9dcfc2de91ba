"""Raw clients of Pulsar's transactions: writers, and transformers that copy what they acknowledge.

A transformer reads a partition through a subscription, and writes a copy of each message in the
transaction that acknowledges it. That of an exclusive subscription acknowledges cumulatively, those
of a shared one message by message, in two transactions at a time, which now and then want the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from router.broker.storage import words
from router.model import Message
from router.wire.pulsar import Frame, pack, unpack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.simulation.protocols import Client, frequent, value_of
from tests.simulation.pulsar_clients import LIMIT, PulsarConsumer, read_messages
from tests.simulation.seeded import CLOCK
from tests.simulation.transactional_clients import (
    MAX_PAUSE_SECONDS,
    SOURCE,
    TIMEOUTS_MS,
    Ending,
    divided,
)
from tests.simulation.transactions import TransactionLaw
from tests.simulation.workers import GoneError, PulsarPeer, World

TRANSFORMED: Final = "transformed"
SOURCE_NAME: Final = f"persistent://public/default/{SOURCE}"
TRANSFORMED_NAME: Final = f"persistent://public/default/{TRANSFORMED}"
ORDERED_PARTITION: Final = 0
"""Is transformed by one consumer that acknowledges cumulatively, others by consumers that share."""
MAX_HELD: Final = 6
"""Entries that a transformer takes into its transactions."""
PERMITS: Final = 100
Ids = dict[str, int]


class FailedError(Exception):
    """A transaction cannot go on: what it was to have was refused."""


class Exchange:
    """A connection on which answers are awaited, and what else comes is kept."""

    def __init__(self, world: World, peer: PulsarPeer) -> None:
        self.peer, self.deliveries = peer, deque[tuple[Frame, float]]()
        self._world = world
        self._sequence = 0

    async def ask(self, kind: str, **fields: Any) -> Any:
        """Return the body of the answer to a request; raise GoneError."""
        request_id = self.peer.next_id()
        self.peer.send(kind, request_id=request_id, **fields)
        return await self._answer(request_id=request_id)

    async def begin(self, timeout_ms: int) -> Ids:
        """Begin a transaction; raise FailedError."""
        body = await self._granted("NEW_TXN", tc_id=0, txn_ttl_seconds=timeout_ms)
        return {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}

    async def open_producer(self, topic: str, partition: int) -> None:
        """Have a producer of a partition, whose number is its own."""
        body = await self.ask(
            "PRODUCER", topic=f"{topic}-partition-{partition}", producer_id=partition
        )
        if not isinstance(body, pb.CommandProducerSuccess):
            self.peer.stream.close()
            raise GoneError

    async def write(self, partition: int, values: Sequence[bytes], ids: Ids) -> None:
        """Write an entry in a transaction; raise FailedError."""
        self._sequence += 1
        payload = pack([Message(v) for v in values], "", self._sequence, int(CLOCK.time() * 1000))
        own = {"producer_id": partition, "sequence_id": self._sequence}
        self.peer.send("SEND", payload, num_messages=len(values), **own, **ids)
        body = await self._answer(**own)
        if not isinstance(body, pb.CommandSendReceipt):
            self._world.history.count(f"SEND in a transaction: {pb.ServerError.Name(body.error)}")
            raise FailedError

    async def acknowledge(self, message_id: Any, kind: Any, ids: Ids) -> None:
        """Acknowledge in a transaction; raise FailedError."""
        await self._granted("ACK", consumer_id=1, message_id=[message_id], ack_type=kind, **ids)

    async def _granted(self, kind: str, **fields: Any) -> Any:
        body = await self.ask(kind, **fields)
        if body.HasField("error"):
            self._world.history.count(f"{kind} refused: {pb.ServerError.Name(body.error)}")
            raise FailedError
        return body

    async def _answer(self, **fields: int) -> Any:
        while True:
            frame = await self.peer.frame()
            found = frame.command
            if found.type in {pb.BaseCommand.CLOSE_CONSUMER, pb.BaseCommand.CLOSE_PRODUCER}:
                self.peer.stream.close()
                raise GoneError
            body = next(value for name, value in found.ListFields() if name.name != "type")
            if all(getattr(body, name, None) == value for name, value in fields.items()):
                return body
            if found.type == pb.BaseCommand.MESSAGE:
                self.deliveries.append((frame, CLOCK.now))


async def end(client: Client, exchange: Exchange, ids: Ids, *, commit: bool) -> Ending:
    """Commit or abort, on other connections until that is answered; return how it ended."""
    repeats = 0
    while True:
        try:
            action = pb.COMMIT if commit else pb.ABORT
            body = await exchange.ask("END_TXN", txn_action=action, **ids)
        except GoneError:
            repeats += 1
            exchange = await _other(client)
        else:
            if not body.HasField("error"):
                return Ending.DONE
            client.world.history.count(f"END_TXN: {pb.ServerError.Name(body.error)}")
            if body.error == pb.TransactionNotFound:
                return Ending.UNKNOWN if repeats else Ending.REFUSED
            repeats += 1
            await asyncio.sleep(client.chance.uniform(0.01, 2))


async def _other(client: Client) -> Exchange:
    while True:
        await asyncio.sleep(client.chance.uniform(0.01, 2))
        with suppress(GoneError):
            return Exchange(client.world, await PulsarPeer.open(client.world, "pulsar"))


class PulsarTransactionalWriter(Client):
    """Writes transactions to the partitions of the source."""

    def __init__(
        self, world: World, law: TransactionLaw, name: str, partitions: int, mean: float
    ) -> None:
        super().__init__(world, name, frequent(mean, MAX_PAUSE_SECONDS))
        self._law, self._partitions = law, range(partitions)
        self._timeout_ms = self.chance.choice(TIMEOUTS_MS)

    @property
    def has_work(self) -> bool:
        return False

    async def work(self) -> None:
        exchange = Exchange(self.world, await PulsarPeer.open(self.world, "pulsar"))
        for partition in self._partitions:
            await exchange.open_producer(SOURCE_NAME, partition)
        while True:
            await self.world.pause(self.chance, self.mean)
            if self.world.is_quiet:
                break
            await self._transact(exchange)
        exchange.peer.stream.close()

    async def _transact(self, exchange: Exchange) -> None:
        chance, history = self.chance, self.world.history
        chosen = chance.sample(self._partitions, chance.randint(1, len(self._partitions)))
        counts = {partition: chance.choice((1, 1, 2, 5)) for partition in sorted(chosen)}
        number, transaction = self._law.begin(self.name, counts)
        try:
            ids = await exchange.begin(self._timeout_ms)
            for partition, count in counts.items():
                for places in divided(count, chance.randint(1, 2)):
                    names = [f"{self.name}:{number}:{place}" for place in places]
                    values = [value_of(name, chance) for name in names]
                    await exchange.write(partition, values, ids)
                    if chance.random() < 0.2:
                        await self.world.pause(chance, 1.0)
        except FailedError:
            return
        fate = chance.random()
        if fate < 0.08:
            history.count("transactions of Pulsar forgotten")
            return
        if fate < 0.14:
            await asyncio.sleep(1.5 * self._timeout_ms / 1000)
        commit = fate > 0.35
        transaction.may_be_seen = commit
        ending = await end(self, exchange, ids, commit=commit)
        history.count(f"{'commit' if commit else 'abort'} of Pulsar: {ending.name}")
        if commit and ending is Ending.DONE:
            transaction.must_be_seen = True
        elif commit and ending is Ending.REFUSED:
            self._law.refused(transaction)


@dataclass
class Delivery:
    """An entry that a transformer has: its id, how many messages it is of, and those that came."""

    message_id: Any
    size: int
    names: dict[int, str] = field(default_factory=dict)

    def id_of(self, indexes: Sequence[int], *, cumulative: bool = False) -> Any:
        """Return the id that acknowledges some of the messages; cumulative: and all before."""
        found = pb.MessageIdData()
        found.CopyFrom(self.message_id)
        found.ClearField("ack_set")
        acked = range(indexes[-1] + 1) if cumulative else indexes
        if self.size > 1 and len(acked) < self.size:
            found.ack_set[:] = words((1 << self.size) - 1 - sum(1 << index for index in acked))
            found.batch_size = self.size
        return found


@dataclass
class Taken:
    """What one transaction has of the deliveries: indexes by their place in the list."""

    indexes: dict[int, list[int]] = field(default_factory=dict)

    def names(self, held: Sequence[Delivery]) -> list[str]:
        """Return the names of the messages, in their order."""
        return [held[at].names[index] for at, found in self.indexes.items() for index in found]


class Transformer(PulsarConsumer):
    """The consumer of an exclusive subscription, which acknowledges cumulatively."""

    kind = pb.CommandSubscribe.Exclusive

    def __init__(
        self, world: World, law: TransactionLaw, name: str, partition: int, mean: float
    ) -> None:
        super().__init__(world, name, f"transformers-{partition}", SOURCE_NAME, partition, mean)
        self._law, self._partition = law, partition
        self._timeout_ms = self.chance.choice(TIMEOUTS_MS)

    async def work(self) -> None:
        peer = await self._subscribe()
        exchange = Exchange(self.world, peer)
        await exchange.open_producer(TRANSFORMED_NAME, self._partition)
        peer.send("FLOW", consumer_id=1, messagePermits=PERMITS)
        held: list[Delivery] = []
        while True:
            frame, at = exchange.deliveries.popleft() if exchange.deliveries else (None, 0.0)
            if frame is None:
                frame, at = await self._frame(peer), CLOCK.now
            if frame is not None and frame.command.type == pb.BaseCommand.CLOSE_CONSUMER:
                break
            if frame is not None and frame.command.type == pb.BaseCommand.MESSAGE:
                self.empty_in_quiet = 0
                held.append(self._received(peer, frame, at))
                peer.send("FLOW", consumer_id=1, messagePermits=held[-1].size)
                if len(held) < self.chance.randint(1, MAX_HELD):
                    continue
            if held and not await self.transform(exchange, held):
                # What was not acknowledged is to come again.
                break
        peer.stream.close()
        raise GoneError

    def _received(self, peer: PulsarPeer, frame: Frame, at: float) -> Delivery:
        command = frame.command.message
        names = {place.number: name for place, name in read_messages(command, frame.payload)}
        size = len(unpack(frame.payload, LIMIT))
        # What the client reads of a connection that is lost may be acknowledged elsewhere.
        is_open = peer.stream.is_open
        self._law.delivered(self._group, names.values(), at if is_open else 0.0)
        return Delivery(command.message_id, size, names)

    async def transform(self, exchange: Exchange, held: list[Delivery]) -> bool:
        """Copy and acknowledge what is held; return False if some of it was not."""
        taken = Taken({at: list(one.names) for at, one in enumerate(held)})
        last, indexes = held[-1], taken.indexes[len(held) - 1]
        if self.chance.random() < 0.3 and len(indexes) > 1:
            # A part of the last entry is left for the next transaction.
            del indexes[self.chance.randint(1, len(indexes) - 1) :]
        try:
            ids = await exchange.begin(self._timeout_ms)
            await self._write(exchange, taken.names(held), ids)
            message_id = last.id_of(indexes, cumulative=True)
            await exchange.acknowledge(message_id, pb.CommandAck.Cumulative, ids)
        except FailedError:
            return False
        if not await self._end(exchange, ids, taken.names(held)):
            return False
        left = {index: name for index, name in last.names.items() if index not in indexes}
        held[:] = [Delivery(last.message_id, last.size, left)] if left else []
        return True

    async def _write(self, exchange: Exchange, names: Sequence[str], ids: Ids) -> None:
        for places in divided(len(names), self.chance.randint(1, 2)):
            values = [value_of(names[place], self.chance) for place in places]
            await exchange.write(self._partition, values, ids)
        if self.chance.random() < 0.1:
            await self.world.pause(self.chance, 2.0)

    async def _end(self, exchange: Exchange, ids: Ids, names: Sequence[str]) -> bool:
        """End a transaction in one of the ways there are; return whether it was committed."""
        history = self.world.history
        fate = 1.0 if self.world.is_quiet else self.chance.random()
        if fate < 0.05:
            history.count("transformations forgotten")
            return False
        if fate < 0.08:
            await asyncio.sleep(1.5 * self._timeout_ms / 1000)
        commit = fate > 0.2
        ending = await end(self, exchange, ids, commit=commit)
        history.count(f"transformations: {ending.name}" if commit else "transformations aborted")
        if not commit or ending is not Ending.DONE:
            return False
        self._law.acknowledged(self._group, names)
        return True


class SharedTransformer(Transformer):
    """One of the consumers of a shared subscription, which acknowledge message by message."""

    kind = pb.CommandSubscribe.Shared

    async def transform(self, exchange: Exchange, held: list[Delivery]) -> bool:
        """Copy and acknowledge what is held, in one transaction or in two that are open at once.

        All is acknowledged before one of them ends.
        """
        chance = self.chance
        parts = [Taken() for _ in range(chance.choice((1, 1, 2)))]
        for at, one in enumerate(held):
            if len(parts) > 1:
                self._law.divided(self._group, one.names.values())
            for index in one.names:
                takers = len(parts) if chance.random() < 0.05 else 1
                for part in chance.sample(parts, takers):
                    part.indexes.setdefault(at, []).append(index)
        open_parts: list[tuple[Ids, Taken]] = []
        is_whole = True
        for part in parts:
            try:
                ids = await exchange.begin(self._timeout_ms)
                await self._take(exchange, held, part, ids)
            except FailedError:
                is_whole = False
            else:
                open_parts.append((ids, part))
        for ids, part in chance.sample(open_parts, len(open_parts)):
            await self._end(exchange, ids, part.names(held))
        held.clear()
        return is_whole

    async def _take(
        self, exchange: Exchange, held: Sequence[Delivery], part: Taken, ids: Ids
    ) -> None:
        if part.indexes:
            await self._write(exchange, part.names(held), ids)
        for at, indexes in part.indexes.items():
            # Only an acknowledgement of a part names its messages: that of a whole entry is no
            # conflict if some of them were acknowledged before.
            whole = len(indexes) == held[at].size > 1
            for named in (indexes[:1], indexes[1:]) if whole else (indexes,):
                message_id = held[at].id_of(named)
                await exchange.acknowledge(message_id, pb.CommandAck.Individual, ids)
