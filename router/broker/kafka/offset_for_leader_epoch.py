"""OffsetForLeaderEpoch (23): where the records of a leader's epoch end; there is one epoch."""

from __future__ import annotations

from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import LEADER_EPOCH
from router.broker.kafka.failures import REFUSALS, error_code


def offset_for_leader_epoch(request: KafkaRequest) -> Any:
    """Answer the end of each partition for the only epoch, and nothing for others."""
    topics = [
        request.struct(
            "OffsetForLeaderTopicResult",
            topic=topic.topic,
            partitions=[_partition(request, topic.topic, one) for one in topic.partitions],
        )
        for topic in request.body.topics
    ]
    return request.response(topics=topics)


def _partition(request: KafkaRequest, topic: str, requested: Any) -> Any:
    found = request.struct("EpochEndOffset", partition=requested.partition)
    try:
        index, epoch = requested.partition, requested.current_leader_epoch
        ledger = request.client.partition(topic, index, Right.VIEW, epoch).ledger
    except REFUSALS as failure:
        found.error_code = error_code(failure)
    else:
        if requested.leader_epoch == LEADER_EPOCH:
            found.leader_epoch, found.end_offset = LEADER_EPOCH, ledger.durable_number
    return found


OFFSET_FOR_LEADER_EPOCH: Final = KafkaApi(
    23, "OffsetForLeaderEpoch", (2, 4), offset_for_leader_epoch
)
