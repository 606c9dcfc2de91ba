"""Raw clients of Kafka's transactions: writers, copiers, and readers of what is committed.

A writer writes to several partitions, and commits, aborts, forgets its transaction or lets its time
run out; some share a transactional id and fence each other. A copier reads a partition from the
position of its group on, and commits its copy together with the position.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Any, Final

from router.wire.kafka.record_batches import build_batch
from router.wire.kafka.records import write_record
from tests.simulation.history import name_of
from tests.simulation.kafka_clients import ACCEPTED, KafkaPeer
from tests.simulation.protocols import Client, frequent, value_of
from tests.simulation.seeded import CLOCK
from tests.simulation.transactions import CopyCheck, TransactionLaw, View
from tests.simulation.workers import GoneError, World

SOURCE: Final = "transacted"
COPY: Final = "copied"
TRANSACTIONAL: Final = 1 << 4
COMMITTED: Final = 1
"""The isolation of readers that wait for decisions."""
TIMEOUTS_MS: Final = (5_000, 20_000, 60_000)
FATAL: Final = frozenset({45, 47, 48, 49, 59, 90})
"""Of a producer that is not one any more, or whose transaction is gone: it begins again."""
MAX_PAUSE_SECONDS: Final = 6.0
EMPTY_ANSWERS: Final = 2
AGAIN_MESSAGES: Final = 60
"""So many of the log are read again, on average, each time that a reader is at its end."""


class Ending(Enum):
    """How the end of a transaction was answered."""

    DONE = auto()
    REFUSED = auto()
    UNKNOWN = auto()


class TransactionalClient(Client):
    """A producer with a transactional id, which repeats what is not answered."""

    def __init__(
        self, world: World, law: TransactionLaw, name: str, transactional_id: str, mean: float
    ) -> None:
        super().__init__(world, name, frequent(mean, MAX_PAUSE_SECONDS))
        self.law = law
        self._id = transactional_id
        self._second = self.chance.random() < 0.5
        self._timeout_ms = self.chance.choice(TIMEOUTS_MS)
        self._peer: KafkaPeer | None = None
        self._repeats = 0
        self._producer = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}

    async def peer(self) -> KafkaPeer:
        """Return a connection; raise GoneError."""
        if self._peer is None:
            self._peer = await KafkaPeer.open(self.world)
        return self._peer

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        """Return the answer to a request, which is repeated on other connections until it comes."""
        while True:
            try:
                return await (await self.peer()).ask(name, version, **fields)
            except GoneError:
                self._peer = None
                self._repeats += 1
                await asyncio.sleep(self.chance.uniform(0.01, 2))

    async def begin_producer(self) -> None:
        """Fence whoever has the id."""
        while True:
            answer = await self.ask(
                "InitProducerId",
                5 if self._second else 4,
                transactional_id=self._id,
                transaction_timeout_ms=self._timeout_ms,
            )
            if not answer.error_code:
                self._take(answer)
                return
            await self._again("InitProducerId", answer.error_code)

    def _take(self, answer: Any) -> None:
        found = answer.producer_id, answer.producer_epoch
        if found != self._producer:
            self._producer = found
            self._sequences.clear()

    async def _again(self, name: str, code: int) -> bool:
        """Wait for another try after an error; return False if there is none."""
        self.world.history.count(f"{name}: error {code}")
        if code in FATAL:
            return False
        self._repeats += 1
        await asyncio.sleep(self.chance.uniform(0.1, 2))
        return True

    async def write(self, topic: str, partition: int, names: list[str]) -> bool:
        """Write messages; return False if the transaction is over."""
        if not self._second and not await self._add(topic, partition):
            return False
        place, now = (topic, partition), int(CLOCK.time() * 1000)
        sequence = self._sequences.get(place, 0)
        values = [write_record(n, 0, None, value_of(o, self.chance)) for n, o in enumerate(names)]
        producer = (*self._producer, sequence)
        batch = build_batch(values, now, now, producer=producer, attributes=TRANSACTIONAL)
        struct, request = KafkaPeer.struct, "ProduceRequest"
        part = struct(request, "PartitionProduceData", index=partition, records=bytes(batch))
        data = struct(request, "TopicProduceData", name=topic, partition_data=[part])
        while True:
            answer = await self.ask(
                "Produce",
                12 if self._second else 9,
                transactional_id=self._id,
                acks=-1,
                timeout_ms=30_000,
                topic_data=[data],
            )
            code = answer.responses[0].partition_responses[0].error_code
            if code in ACCEPTED:
                self._sequences[place] = sequence + len(names)
                return True
            if not await self._again("Produce in a transaction", code):
                return False

    async def _add(self, topic: str, partition: int) -> bool:
        request = "AddPartitionsToTxnRequest"
        part = KafkaPeer.struct(
            request, "AddPartitionsToTxnTopic", name=topic, partitions=[partition]
        )
        producer, epoch = self._producer
        while True:
            answer = await self.ask(
                "AddPartitionsToTxn",
                3,
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=producer,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[part],
            )
            (found,) = answer.results_by_topic_v3_and_below
            code = found.results_by_partition[0].partition_error_code
            if not code or not await self._again("AddPartitionsToTxn", code):
                return not code

    async def send_offset(self, group: str, topic: str, partition: int, offset: int) -> bool:
        """Send a position of a group; return False if the transaction is over."""
        producer, epoch = self._producer
        own = {"transactional_id": self._id, "producer_id": producer, "producer_epoch": epoch}
        while not self._second:
            answer = await self.ask("AddOffsetsToTxn", 3, group_id=group, **own)
            if not answer.error_code:
                break
            if not await self._again("AddOffsetsToTxn", answer.error_code):
                return False
        name = "TxnOffsetCommitRequest"
        part = KafkaPeer.struct(
            name,
            f"{name}Partition",
            partition_index=partition,
            committed_offset=offset,
            committed_metadata="",
        )
        made = KafkaPeer.struct(name, f"{name}Topic", name=topic, partitions=[part])
        version = 5 if self._second else 3
        while True:
            answer = await self.ask(
                "TxnOffsetCommit", version, group_id=group, topics=[made], **own
            )
            code = answer.topics[0].partitions[0].error_code
            if not code or not await self._again("TxnOffsetCommit", code):
                return not code

    async def end(self, *, commit: bool) -> Ending:
        """Commit or abort."""
        producer, epoch = self._producer
        before = self._repeats
        while True:
            answer = await self.ask(
                "EndTxn",
                5 if self._second else 3,
                transactional_id=self._id,
                producer_id=producer,
                producer_epoch=epoch,
                committed=commit,
            )
            if not answer.error_code:
                if self._second:
                    self._take(answer)
                return Ending.DONE
            if not await self._again("EndTxn", answer.error_code):
                return Ending.REFUSED if self._repeats == before else Ending.UNKNOWN


class TransactionalWriter(TransactionalClient):
    """Writes transactions to the partitions of the source."""

    def __init__(
        self,
        world: World,
        law: TransactionLaw,
        name: str,
        transactional_id: str,
        partitions: int,
        mean: float,
    ) -> None:
        super().__init__(world, law, name, transactional_id, mean)
        self._partitions = range(partitions)

    @property
    def has_work(self) -> bool:
        return False

    async def work(self) -> None:
        await self.begin_producer()
        while True:
            await self.pause()
            if self.world.is_quiet or not await self._transact():
                return

    async def _transact(self) -> bool:
        """Write a transaction; return False if the producer has to begin again."""
        chance, law, history = self.chance, self.law, self.world.history
        chosen = chance.sample(self._partitions, chance.randint(1, len(self._partitions)))
        counts = {partition: chance.choice((1, 1, 2, 5)) for partition in sorted(chosen)}
        number, transaction = law.begin(self.name, counts)
        for partition in sorted(chosen):
            for places in divided(counts[partition], chance.randint(1, 2)):
                names = [f"{self.name}:{number}:{place}" for place in places]
                if not await self.write(SOURCE, partition, names):
                    return False
                if chance.random() < 0.2:
                    await self.world.pause(chance, 1.0)
        fate = chance.random()
        if fate < 0.08:
            history.count("transactions forgotten")
            return False
        if fate < 0.14:
            await asyncio.sleep(1.5 * self._timeout_ms / 1000)
        if fate < 0.35:
            ending = await self.end(commit=False)
            history.count("transactions aborted")
            return ending is Ending.DONE
        transaction.may_be_seen = True
        ending = await self.end(commit=True)
        history.count(f"commit: {ending.name}")
        if ending is Ending.DONE:
            transaction.must_be_seen = True
        elif ending is Ending.REFUSED:
            law.refused(transaction)
        return ending is Ending.DONE


class Copier(TransactionalClient):
    """Copies a partition of the source, with its own position, exactly once."""

    def __init__(
        self, world: World, law: TransactionLaw, name: str, partition: int, mean: float
    ) -> None:
        super().__init__(world, law, name, f"copier-{partition}", mean)
        self._partition, self._group = partition, f"copiers-{partition}"

    async def work(self) -> None:
        await self.begin_producer()
        while await self._copy():
            await self.pause()
        # Another one has the id now: it gets time to work.
        await asyncio.sleep(self.chance.uniform(1, 60))

    async def _copy(self) -> bool:
        """Copy what there is; return False if the producer has to begin again."""
        chance, history = self.chance, self.world.history
        try:
            peer = await self.peer()
            at = await peer.committed(self._group, SOURCE, self._partition, stable=True)
            found = await peer.records(SOURCE, self._partition, at, isolation=COMMITTED)
        except GoneError:
            self._peer = None
            raise
        if not found:
            self.empty_in_quiet += self.world.is_quiet and found is not None
            return True
        names = [(offset, name_of(bytes(record.value or b""))) for offset, record in found]
        self.law.seen(self._partition, names)
        if not await self.write(COPY, self._partition, [name for _, name in names]):
            return False
        if chance.random() < 0.1:
            await self.world.pause(chance, 2.0)
        place = SOURCE, self._partition, names[-1][0] + 1
        if not await self.send_offset(self._group, *place):
            return False
        ending = await self.end(commit=chance.random() < 0.85)
        history.count(f"copies: {ending.name}")
        return ending is Ending.DONE


class CommittedReader(Client):
    """Reads a partition of the source from its start, to the end, and then again or further."""

    def __init__(
        self, world: World, law: TransactionLaw, name: str, partition: int, mean: float
    ) -> None:
        super().__init__(world, name, frequent(mean, MAX_PAUSE_SECONDS))
        self._law, self._partition = law, partition
        self._view = View()

    async def work(self) -> None:
        peer = await KafkaPeer.open(self.world)
        while True:
            found = await committed_from(peer, SOURCE, self._partition, self._view.position)
            if found:
                self._law.viewed(self._partition, self._view, found)
                continue
            if self.world.is_quiet and self._law.is_complete(self._partition, self._view):
                self.empty_in_quiet += 1
            if self.chance.random() < min(0.3, AGAIN_MESSAGES / (1 + self._view.position)):
                self._view = View()
            await self.pause()


class CopyReader(Client):
    """Reads a partition of a copy from its start on, which `check` compares with its source."""

    def __init__(
        self, world: World, check: CopyCheck, name: str, topic: str, partition: int, mean: float
    ) -> None:
        super().__init__(world, name, frequent(mean, MAX_PAUSE_SECONDS))
        self._check, self._topic, self._partition = check, topic, partition
        self._names: list[str] = []
        self._position = 0

    async def work(self) -> None:
        peer = await KafkaPeer.open(self.world)
        while True:
            found = await committed_from(peer, self._topic, self._partition, self._position)
            if found:
                self._names += [name for _, name in found]
                self._position = found[-1][0] + 1
                self._check(self._partition, self._names, complete=False)
                continue
            is_quiet = self.world.is_quiet
            if self._check(self._partition, self._names, complete=is_quiet):
                self.empty_in_quiet += is_quiet
            await self.pause()


async def committed_from(
    peer: KafkaPeer, topic: str, partition: int, position: int
) -> list[tuple[int, str]]:
    """Return offsets and names from an offset on, none: there are no more, or it was refused."""
    for _ in range(EMPTY_ANSWERS):
        found = await peer.records(topic, partition, position, isolation=COMMITTED)
        if found:
            return [(offset, name_of(bytes(one.value or b""))) for offset, one in found]
    return []


def divided(count: int, parts: int) -> list[range]:
    """Return numbers from 0 on, in so many runs or as many as there are numbers."""
    first = -(-count // parts)
    return [range(start, min(start + first, count)) for start in range(0, count, first)]
