"""Kafka's transactions over two partitions: what is committed is seen whole, once and in order.

The position of a group, one for each transactional id, is committed with the messages.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from router.wire.kafka.error_codes import ErrorCode
from router.wire.kafka.record_batches import build_batch, next_offset, open_batch
from router.wire.kafka.records import read_records, write_record
from tests.histories.kafka_client import MAX_RESPONSE, KafkaConnection, expect, struct
from tests.histories.recording import Output
from tests.histories.scenarios import Scenario, Step, required
from tests.wire.kafka.batches import split_batches

PARTITIONS: Final = 2
TRANSACTIONAL: Final = 1 << 4
TIMEOUT_MS: Final = 300_000
"""Longer than a history: none is aborted for its time."""
INIT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 0.01
READ_COMMITTED: Final = 1
MAX_POSITION: Final = 1000
REFUSED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Nothing was done: another client has the transactional id."""


class TransactionalConnection(KafkaConnection):
    """A producer of one transactional id at a time, or a reader of what is committed."""

    isolation = READ_COMMITTED

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._id = ""
        self._producer = (-1, -1)
        self._sequences: dict[int, int] = {}

    def init(self, transactional_id: str) -> Output:
        """Become the producer of an id: what it has open is aborted."""
        until = time.monotonic() + INIT_SECONDS
        while True:
            answer = self.request(
                "InitProducerId",
                4,
                transactional_id=transactional_id,
                transaction_timeout_ms=TIMEOUT_MS,
            )
            is_busy = answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            if not is_busy or time.monotonic() > until:
                break
            time.sleep(RETRY_SECONDS)
        expect(answer.error_code)
        self._id, self._producer = transactional_id, (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()
        return {}

    def append_in(self, topic: str, partition: int, value: str) -> Output:
        """Add a partition to the transaction, and produce one record in it."""
        request = "AddPartitionsToTxnRequest"
        added = self.request(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[
                struct(request, "AddPartitionsToTxnTopic", name=topic, partitions=[partition])
            ],
        )
        (found,) = added.results_by_topic_v3_and_below
        code = found.results_by_partition[0].partition_error_code
        return _output(code) or self._produce(topic, partition, value)

    def commit_in(self, topic: str, offset: int) -> Output:
        """Add the group of the transactional id, and commit a position of partition 0 in it."""
        own = {
            "transactional_id": self._id,
            "producer_id": self._producer[0],
            "producer_epoch": self._producer[1],
            "group_id": self._id,
        }
        added = self.request("AddOffsetsToTxn", 3, **own)
        if output := _output(added.error_code):
            return output
        request = "TxnOffsetCommitRequest"
        part = struct(
            request,
            f"{request}Partition",
            partition_index=0,
            committed_offset=offset,
            committed_metadata="",
        )
        named = struct(request, f"{request}Topic", name=topic, partitions=[part])
        answer = self.request("TxnOffsetCommit", 3, topics=[named], **own)
        return _output(answer.topics[0].partitions[0].error_code)

    def end_transaction(self, *, commit: bool) -> Output:
        """Commit or abort."""
        answer = self.request(
            "EndTxn",
            3,
            transactional_id=self._id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=commit,
        )
        return _output(answer.error_code)

    def read_committed(self, topic: str, partition: int) -> Output:
        """Fetch all that is committed, until an answer has nothing more."""
        found: dict[str, list[Any]] = {"values": [], "offsets": []}
        position = 0
        while data := self._fetch(topic, partition, position):
            for header, batch in split_batches(data):
                for record in read_records(open_batch(header, batch, MAX_RESPONSE), header.records):
                    if (offset := header.base_offset + record.offset) >= position:
                        found["values"].append((record.value or b"").decode())
                        found["offsets"].append(offset)
            position = next_offset(data, position)
        return found

    def _produce(self, topic: str, partition: int, value: str) -> Output:
        sequence, now_ms = self._sequences.get(partition, 0), time.time_ns() // 1_000_000
        batch = build_batch(
            [write_record(0, 0, None, value.encode())],
            now_ms,
            now_ms,
            producer=(*self._producer, sequence),
            attributes=TRANSACTIONAL,
        )
        request = "ProduceRequest"
        part = struct(request, "PartitionProduceData", index=partition, records=bytes(batch))
        data = struct(request, "TopicProduceData", name=topic, partition_data=[part])
        answer = self.request(
            "Produce", 9, transactional_id=self._id, acks=-1, timeout_ms=5_000, topic_data=[data]
        )
        found = answer.responses[0].partition_responses[0]
        output = _output(found.error_code)
        self._sequences[partition] = sequence + 1
        return output or {"offset": found.base_offset}

    def _fetch(self, topic: str, partition: int, position: int) -> bytes:
        part = struct(
            "FetchRequest",
            "FetchPartition",
            partition=partition,
            fetch_offset=position,
            partition_max_bytes=1 << 20,
            current_leader_epoch=-1,
        )
        named = struct("FetchRequest", "FetchTopic", topic=topic, partitions=[part])
        fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
        answer = self.request("Fetch", 11, isolation_level=self.isolation, topics=[named], **fields)
        expect(answer.error_code)
        found = answer.responses[0].partitions[0]
        expect(found.error_code)
        return bytes(found.records or b"")


def _output(code: int) -> Output:
    """Return what the judge takes for a call that did nothing, {} if it did; raise the others."""
    if code in REFUSED:
        return {"status": "refused", "reason": ErrorCode(code).name}
    expect(code)
    return {}


class Transactions(Scenario):
    """Two producers that fence each other, one with an id of its own, and two readers."""

    model, label = "transactions", "transactions"
    Kafka: type[TransactionalConnection] = TransactionalConnection
    keys: tuple[str, ...] = ("shared", "shared", "own")
    """Of the producers."""

    def prepare(self) -> None:
        self.create_topic(PARTITIONS)

    def workers(self) -> list[Step]:
        producers = [
            _Producer(self, f"producer-{n}", f"{self.name}-{key}").step
            for n, key in enumerate(self.keys)
        ]
        return [*producers, self._reader("reader-0"), self._reader("reader-1")]

    def conclude(self) -> None:
        kafka = self.transactional()
        for key in dict.fromkeys(self.keys):
            required(_init(self, "last", kafka, f"{self.name}-{key}"))
            required(self.fetch("last", kafka, key))
        for partition in range(PARTITIONS):
            required(self.read("last", kafka, partition))

    def transactional(self) -> TransactionalConnection:
        """Return a new connection."""
        made: TransactionalConnection = self.Kafka(self._ports.kafka)
        return self._owned.enter_context(closing(made))

    def read(self, label: str, kafka: TransactionalConnection, partition: int) -> Output | None:
        """Record a read of what is committed."""
        return self.history.record(
            label, "read", lambda: kafka.read_committed(self.name, partition), partition=partition
        )

    def fetch(self, label: str, kafka: TransactionalConnection, key: str) -> Output | None:
        """Record a fetch of the position of a transactional id's group; `key`: of the scenario."""
        group = f"{self.name}-{key}"
        return self.history.record(
            label, "fetch", lambda: kafka.committed(group, self.name), key=group
        )

    def _reader(self, label: str) -> Step:
        kafka = self.transactional()

        def step(chance: random.Random) -> None:
            if chance.random() < 0.3:
                self.fetch(label, kafka, chance.choice(self.keys))
            else:
                self.read(label, kafka, chance.randrange(PARTITIONS))

        return step


class _Producer:
    """Writes transactions; a call without an answer, or a refusal, makes it begin again."""

    def __init__(self, scenario: Transactions, label: str, key: str) -> None:
        self._scenario, self._label, self._key = scenario, label, key
        self._kafka = scenario.transactional()
        self._began = False
        self._number = self._messages = 0

    def step(self, chance: random.Random) -> None:
        """Make one operation."""
        if not self._began and self._number and chance.random() < 0.7:
            # Another producer of the id can end a transaction meanwhile.
            self._scenario.read(self._label, self._kafka, chance.randrange(PARTITIONS))
        elif not self._began:
            self._began = _init(self._scenario, self._label, self._kafka, self._key) is not None
            self._next()
        elif self._messages and chance.random() < 0.1 + 0.2 * self._messages:
            commit = chance.random() < 0.75
            self._record("end", lambda: self._kafka.end_transaction(commit=commit), commit=commit)
            self._next()
        elif chance.random() < 0.25:
            name, offset = self._scenario.name, chance.randrange(MAX_POSITION)
            self._record("place", lambda: self._kafka.commit_in(name, offset), offset=offset)
            self._messages += 1
        else:
            name, value = self._scenario.name, self._scenario.value(self._label)
            partition = chance.randrange(PARTITIONS)
            self._record(
                "append",
                lambda: self._kafka.append_in(name, partition, value),
                partition=partition,
                value=value,
            )
            self._messages += 1

    def _next(self) -> None:
        self._number += 1
        self._messages = 0

    def _record(self, op: str, call: Callable[[], Output], **inputs: Any) -> None:
        transaction = f"{self._label}-{self._number}"
        done = self._scenario.history.record(
            self._label, op, call, key=self._key, transaction=transaction, **inputs
        )
        if done is None or "status" in done:
            self._began = False


def _init(
    scenario: Transactions, label: str, kafka: TransactionalConnection, key: str
) -> Output | None:
    return scenario.history.record(label, "init", lambda: kafka.init(key), key=key)
