"""OffsetForLeaderEpoch (23): where the records of a leader's epoch end; there is one epoch."""

from __future__ import annotations

from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import Api, Request
from router.broker.kafka.context import LEADER_EPOCH
from router.broker.kafka.failures import ErrorCode, error_code
from router.errors import RouterError
from router.model import TopicName


def offset_for_leader_epoch(request: Request) -> Any:
    """Answer the end of each partition for the only epoch, and nothing for others."""
    topics = [
        request.struct(
            "OffsetForLeaderTopicResult",
            topic=topic.topic,
            partitions=[_partition(request, topic.topic, asked) for asked in topic.partitions],
        )
        for topic in request.body.topics
    ]
    return request.response(topics=topics)


def _partition(request: Request, topic: str, asked: Any) -> Any:
    found = request.struct("EpochEndOffset", partition=asked.partition)
    record = request.context.topics.find_kafka(topic)
    if record is None:
        found.error_code = request.client.missing(topic)
    elif not request.client.may(TopicName.parse(record.name), Right.VIEW):
        found.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif asked.current_leader_epoch > LEADER_EPOCH:
        found.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
    else:
        try:
            visible = request.context.partition(record, asked.partition).visible
        except RouterError as failure:
            found.error_code = error_code(failure)
        else:
            if asked.leader_epoch == LEADER_EPOCH:
                found.leader_epoch, found.end_offset = LEADER_EPOCH, visible.end_number
    return found


OFFSET_FOR_LEADER_EPOCH: Final = Api(23, "OffsetForLeaderEpoch", (2, 4), offset_for_leader_epoch)
