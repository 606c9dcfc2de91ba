"""DescribeProducers (61): the idempotent producers that partitions remember."""

from __future__ import annotations

from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import LEADER_EPOCH
from router.broker.kafka.failures import REFUSALS, error_code, error_message
from router.broker.kafka.sequences import active_producers

NO_COORDINATOR: Final = -1
"""The epoch of the coordinator, of which there is one for good."""
NO_TRANSACTION: Final = -1
"""The first offset of a producer that has no transaction open."""


def describe_producers(request: KafkaRequest) -> Any:
    """Answer the producers of each partition, with the last record that each one stored.

    What is named several times is answered once, as it costs more than its name.
    """
    named: dict[str, dict[int, None]] = {}
    for topic in request.body.topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = [
        request.struct(
            "TopicResponse",
            name=name,
            partitions=[_partition(request, name, index) for index in indexes],
        )
        for name, indexes in named.items()
    ]
    return request.response(topics=topics)


def _partition(request: KafkaRequest, topic: str, index: int) -> Any:
    described = request.struct("PartitionResponse", partition_index=index)
    try:
        partition = request.client.partition(topic, index, Right.VIEW, LEADER_EPOCH)
    except REFUSALS as failure:
        described.error_code = error_code(failure)
        described.error_message = error_message(failure)
        return described
    started = request.context.producers.started(partition.ledger)
    described.active_producers = [
        request.struct(
            "ProducerState",
            producer_id=found.producer,
            producer_epoch=found.epoch,
            last_sequence=found.last_sequence,
            last_timestamp=found.time_ms,
            coordinator_epoch=NO_COORDINATOR,
            current_txn_start_offset=started.get(found.producer, NO_TRANSACTION),
        )
        for found in active_producers(partition.ledger.producers)
    ]
    return described


DESCRIBE_PRODUCERS: Final = KafkaApi(61, "DescribeProducers", (0, 0), describe_producers)
