"""DeleteRecords (21): the oldest messages of partitions, exactly those before an offset.

The answer says from where on messages are left. All go if the offset is the high watermark.
"""

from __future__ import annotations

from typing import Any, Final

import structlog

from router.access.permissions import Right
from router.broker.kafka.client import Api, Request
from router.broker.kafka.failures import ErrorCode, error_code
from router.broker.storage import StoreError, TopicRecord
from router.errors import RouterError
from router.model import TopicName

MAX_PARTITIONS: Final = 1_000
"""Of one request; those behind them are refused."""
HIGH_WATERMARK: Final = -1
NO_WATERMARK: Final = -1

_log = structlog.get_logger(__name__)


async def delete_records(request: Request) -> Any:
    """Delete from one partition after the other; each has its own result."""
    topics, left = [], MAX_PARTITIONS
    for topic in request.body.topics:
        results = []
        for asked in topic.partitions:
            code, low = ErrorCode.POLICY_VIOLATION, NO_WATERMARK
            if left > 0:
                code, low = await _delete(request, topic.name, asked)
            left -= 1
            result = request.struct("DeleteRecordsPartitionResult", error_code=code)
            result.partition_index, result.low_watermark = asked.partition_index, low
            results.append(result)
        topics.append(
            request.struct("DeleteRecordsTopicResult", name=topic.name, partitions=results)
        )
    return request.response(topics=topics)


async def _delete(request: Request, topic: str, asked: Any) -> tuple[ErrorCode, int]:
    """Return the outcome and the number of the first message that is left."""
    client = request.client
    record = request.context.topics.find_kafka(topic)
    if record is None:
        return client.missing(topic), NO_WATERMARK
    if not client.may(TopicName.parse(record.name), Right.MANAGE):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, NO_WATERMARK
    try:
        return await _deleted(request, record, asked)
    except (RouterError, StoreError) as failure:
        return error_code(failure), NO_WATERMARK


async def _deleted(request: Request, record: TopicRecord, asked: Any) -> tuple[ErrorCode, int]:
    visible = request.context.partition(record, asked.partition_index).visible
    end = visible.ledger.durable_number
    before = end if asked.offset == HIGH_WATERMARK else asked.offset
    if not 0 <= before <= end:
        return ErrorCode.OFFSET_OUT_OF_RANGE, NO_WATERMARK
    if before > visible.first_number:
        await request.context.topics.store.delete_before(visible.ledger, before)
        user = request.client.identity.principal.name
        _log.info("records-deleted", topic=record.name, before=before, user=user)
    return ErrorCode.NONE, min(visible.first_number, end)


DELETE_RECORDS: Final = Api(21, "DeleteRecords", (0, 2), delete_records)
