"""A transactional producer over the router's codec, by either version of the protocol."""

from __future__ import annotations

from typing import Any

from router.wire.kafka.record_batches import build_batch
from router.wire.kafka.records import write_record
from tests.unit.broker.kafka.serving import KafkaClient

TRANSACTIONAL = 1 << 4


class TransactionalClient:
    """A producer with a transactional id; `second`: it speaks the second version (KIP-890)."""

    def __init__(self, client: KafkaClient, name: str = "tx", *, second: bool = False) -> None:
        self.client = client
        self.name = name
        self.second = second
        self.producer, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, timeout_ms: int = 60_000, **fields: Any) -> int:
        """Begin; return the error code."""
        answer = await self.client.ask(
            "InitProducerId",
            5 if self.second else 4,
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            **fields,
        )
        if not answer.error_code:
            self._take(answer)
        return int(answer.error_code)

    def _take(self, answer: Any) -> None:
        if (self.producer, self.epoch) != (answer.producer_id, answer.producer_epoch):
            self.sequences.clear()
        self.producer, self.epoch = answer.producer_id, answer.producer_epoch

    async def add(self, topic: str = "t", *indexes: int) -> int:
        """Add partitions of a topic; return the code of the first."""
        made = self.client.struct(
            "AddPartitionsToTxnRequest",
            "AddPartitionsToTxnTopic",
            name=topic,
            partitions=list(indexes or (0,)),
        )
        answer = await self.client.ask(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[made],
        )
        (found,) = answer.results_by_topic_v3_and_below
        return int(found.results_by_partition[0].partition_error_code)

    async def send(self, *values: bytes, topic: str = "t", index: int = 0) -> int:
        """Write a batch, without adding its partition before; return the error code."""
        sequence = self.sequences.get((topic, index), 0)
        records = [write_record(n, n, b"k", value) for n, value in enumerate(values)]
        batch = build_batch(
            records,
            1_000,
            1_000,
            producer=(self.producer, self.epoch, sequence),
            attributes=TRANSACTIONAL,
        )
        part = self.client.struct(
            "ProduceRequest", "PartitionProduceData", index=index, records=bytes(batch)
        )
        data = self.client.struct(
            "ProduceRequest", "TopicProduceData", name=topic, partition_data=[part]
        )
        answer = await self.client.ask(
            "Produce",
            12 if self.second else 9,
            transactional_id=self.name,
            acks=-1,
            timeout_ms=1_000,
            topic_data=[data],
        )
        code = int(answer.responses[0].partition_responses[0].error_code)
        if not code:
            self.sequences[topic, index] = sequence + len(values)
        return code

    async def write(self, *values: bytes, topic: str = "t", index: int = 0) -> int:
        """Write a batch as the protocol's version does; return the first error code."""
        if not self.second and (code := await self.add(topic, index)):
            return code
        return await self.send(*values, topic=topic, index=index)

    async def add_offsets(self, group: str) -> int:
        """Announce positions of a group; return the error code."""
        answer = await self.client.ask(
            "AddOffsetsToTxn",
            3,
            transactional_id=self.name,
            producer_id=self.producer,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return int(answer.error_code)

    async def commit_offset(self, group: str, offset: int, topic: str = "t", index: int = 0) -> int:
        """Send a position of a group; return the error code."""
        (code,) = await self.commit_offsets(group, {index: offset}, topic)
        return code

    async def commit_offsets(
        self, group: str, offsets: dict[int, int], topic: str, **fields: Any
    ) -> list[int]:
        """Send positions of a group by partitions; return the error codes."""
        parts = [
            self.client.struct(
                "TxnOffsetCommitRequest",
                "TxnOffsetCommitRequestPartition",
                partition_index=index,
                committed_offset=offset,
                committed_metadata="",
            )
            for index, offset in offsets.items()
        ]
        made = self.client.struct(
            "TxnOffsetCommitRequest", "TxnOffsetCommitRequestTopic", name=topic, partitions=parts
        )
        answer = await self.client.ask(
            "TxnOffsetCommit",
            5 if self.second else 3,
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer,
            producer_epoch=self.epoch,
            topics=[made],
            **fields,
        )
        return [int(part.error_code) for part in answer.topics[0].partitions]

    async def end(self, *, commit: bool) -> int:
        """Commit or abort; return the error code."""
        answer = await self.client.ask(
            "EndTxn",
            5 if self.second else 3,
            transactional_id=self.name,
            producer_id=self.producer,
            producer_epoch=self.epoch,
            committed=commit,
        )
        if self.second and not answer.error_code:
            self._take(answer)
        return int(answer.error_code)


async def group_offset(client: KafkaClient, group: str, *, stable: bool = False) -> tuple[int, int]:
    """Return the code and the offset of a group on the partition t-0."""
    topic = client.struct(
        "OffsetFetchRequest", "OffsetFetchRequestTopic", name="t", partition_indexes=[0]
    )
    answer = await client.ask(
        "OffsetFetch", 7, group_id=group, topics=[topic], require_stable=stable
    )
    part = answer.topics[0].partitions[0]
    return part.error_code, part.committed_offset
