"""CreatePartitions (37): more partitions for topics that are partitioned."""

from __future__ import annotations

from typing import Any, Final

import structlog

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code, error_message
from router.broker.storage import TopicRecord
from router.broker.topics import changes
from router.broker.topics.names import MAX_PARTITIONS
from router.model import TopicName

MAX_TOPICS: Final = 1_000
"""Of one request; those behind them are refused."""

_log = structlog.get_logger(__name__)


async def create_partitions(request: KafkaRequest) -> Any:
    """Grow the topics one after the other; each has its own result."""
    results = []
    for number, requested in enumerate(request.body.topics):
        result = request.struct("CreatePartitionsTopicResult", name=requested.name)
        try:
            if number >= MAX_TOPICS:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"at most {MAX_TOPICS} topics")
            await _grow(request, requested)
        except REFUSALS as failure:
            result.error_code, result.error_message = error_code(failure), error_message(failure)
        results.append(result)
    return request.response(results=results)


async def _grow(request: KafkaRequest, requested: Any) -> None:
    client = request.client
    record = client.topic(requested.name, Right.MANAGE)
    _check(record, requested)
    if not request.body.validate_only:
        name = TopicName.parse(record.name)
        await changes.grow(request.context.topics, name, requested.count)
        user = client.identity.principal.name
        _log.info("topic-grown", topic=record.name, partitions=requested.count, user=user)


def _check(record: TopicRecord, requested: Any) -> None:
    """Raise KafkaError unless the topic can grow as requested."""
    present = record.partitions
    if not present:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "the topic was made without partitions: it cannot get more",
        )
    if not present < requested.count <= MAX_PARTITIONS:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"expected {present + 1} to {MAX_PARTITIONS} partitions, not {requested.count}",
        )
    if requested.assignments is not None:
        replicas = [tuple(one.broker_ids) for one in requested.assignments]
        if replicas != [(NODE_ID,)] * (requested.count - present):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"expected the broker {NODE_ID} for each new partition",
            )


CREATE_PARTITIONS: Final = KafkaApi(37, "CreatePartitions", (0, 3), create_partitions)
