"""WriteTxnMarkers (27): an administrator aborts the transaction of a producer in a partition.

Brokers of Apache Kafka send each other these requests to end transactions; here a client is served
that does it by hand, as `kafka-transactions.sh abort` does. A transaction is decided as a whole, so
it is aborted in all its partitions and its producer is fenced. Apache Kafka ends the part of the
one partition, and what the producer then commits has a part that is missing.

A marker of `TransactionVersion` 2 (KIP-1228) has the epoch to which its coordinator raised that of
the producer. One with the producer's own epoch is late then, of a transaction before, and is
refused, unless nothing is open: that is a repetition. Tools send markers of the version 0.
"""

from __future__ import annotations

from typing import Any, Final

from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code
from router.broker.kafka.sequences import active_producers
from router.broker.kafka.transactions import current_of
from router.broker.transactions import Refusal, TransactionError
from router.errors import TopicNotFoundError

RAISES_EPOCH: Final = 2
"""The first version of transactions that raises the producer's epoch with each."""


async def write_markers(request: KafkaRequest) -> Any:
    """Answer administrators when what they abort is aborted on disk; others are refused."""
    return request.response(
        markers=[
            request.struct(
                "WritableTxnMarkerResult",
                producer_id=marker.producer_id,
                topics=[
                    request.struct(
                        "WritableTxnMarkerTopicResult",
                        name=topic.name,
                        partitions=[
                            request.struct(
                                "WritableTxnMarkerPartitionResult",
                                partition_index=index,
                                error_code=await _code(request, marker, topic.name, index),
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.body.markers
        ]
    )


async def _code(request: KafkaRequest, marker: Any, topic: str, index: int) -> ErrorCode:
    code = ErrorCode.NONE
    try:
        await _end(request, marker, topic, index)
    except TransactionError as failure:
        # One that is being decided is decided soon: the tool repeats the request then.
        busy = failure.refusal is Refusal.BUSY
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if busy else error_code(failure)
    except REFUSALS as failure:
        code = error_code(failure)
    request.count_error(code)
    return code


async def _end(request: KafkaRequest, marker: Any, topic: str, index: int) -> None:
    """Abort what a producer has open in a partition; nothing is open: only check its epoch."""
    context, producer = request.context, current_of(marker)
    if not request.client.identity.administers:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (record := context.find_topic(topic)) is None:
        raise TopicNotFoundError
    ledger = context.partition(record, index).ledger
    if producer.producer in context.producers.started(ledger):
        if marker.transaction_result:
            sentence = "only its producer commits a transaction"
            raise TransactionError(Refusal.INVALID_STATE, sentence)
        await context.producers.abort(producer, raised=marker.transaction_version >= RAISES_EPOCH)
        return
    epochs = {one.producer: one.epoch for one in active_producers(ledger.producers)}
    if producer.epoch < epochs.get(producer.producer, producer.epoch):
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)


WRITE_TXN_MARKERS: Final = KafkaApi(27, "WriteTxnMarkers", (1, 2), write_markers)
