"""DeleteRecords (21): the oldest messages of partitions, exactly those before an offset.

The answer says from where on messages are left. All go if the offset is the high watermark. A topic
that is only compacted keeps them, as with Apache Kafka.
"""

from __future__ import annotations

from typing import Any, Final

import structlog

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code

MAX_PARTITIONS: Final = 1_000
"""Of one request; those behind them are refused."""
HIGH_WATERMARK: Final = -1
NO_WATERMARK: Final = -1

_log = structlog.get_logger(__name__)


async def delete_records(request: KafkaRequest) -> Any:
    """Delete from one partition after the other; each has its own result."""
    topics, left = [], MAX_PARTITIONS
    for topic in request.body.topics:
        results = []
        for requested in topic.partitions:
            result = request.struct(
                "DeleteRecordsPartitionResult",
                partition_index=requested.partition_index,
                low_watermark=NO_WATERMARK,
            )
            try:
                if left <= 0:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION)
                result.low_watermark = await _delete(request, topic.name, requested)
            except REFUSALS as failure:
                result.error_code = error_code(failure)
            left -= 1
            results.append(result)
        topics.append(
            request.struct("DeleteRecordsTopicResult", name=topic.name, partitions=results)
        )
    return request.response(topics=topics)


async def _delete(request: KafkaRequest, topic: str, requested: Any) -> int:
    """Return the number of the first message that is left; raise KafkaError."""
    record = request.client.topic(topic, Right.MANAGE)
    if not record.policies.deletes:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    visible = request.context.partition(record, requested.partition_index).visible
    end = visible.ledger.durable_number
    before = end if requested.offset == HIGH_WATERMARK else requested.offset
    if not 0 <= before <= end:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if before > visible.first_number:
        await request.context.topics.store.delete_before(visible.ledger, before)
        user = request.client.identity.principal.name
        _log.info("records-deleted", topic=record.name, before=before, user=user)
    return int(min(visible.first_number, end))


DELETE_RECORDS: Final = KafkaApi(21, "DeleteRecords", (0, 2), delete_records)
