"""CreatePartitions (37): more partitions for topics that are partitioned."""

from __future__ import annotations

from typing import Any, Final

import structlog

from router.access.permissions import Right
from router.broker.kafka.client import Api, Request
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import ErrorCode, error_code, error_message
from router.broker.storage import StoreError, TopicRecord
from router.broker.topics import changes
from router.broker.topics.names import MAX_PARTITIONS
from router.errors import RouterError
from router.model import TopicName

MAX_TOPICS: Final = 1_000
"""Of one request; those behind them are refused."""

_log = structlog.get_logger(__name__)
Outcome = tuple[ErrorCode, str | None]


async def create_partitions(request: Request) -> Any:
    """Grow the topics one after the other; each has its own result."""
    results = []
    for number, asked in enumerate(request.body.topics):
        if number < MAX_TOPICS:
            code, message = await _grow(request, asked)
        else:
            code, message = ErrorCode.POLICY_VIOLATION, f"at most {MAX_TOPICS} topics"
        results.append(
            request.struct(
                "CreatePartitionsTopicResult",
                name=asked.name,
                error_code=code,
                error_message=message,
            )
        )
    return request.response(results=results)


async def _grow(request: Request, asked: Any) -> Outcome:
    topics, client = request.context.topics, request.client
    record = topics.find_kafka(asked.name)
    if record is None:
        return client.missing(asked.name), None
    name = TopicName.parse(record.name)
    if not client.may(name, Right.MANAGE):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
    if (refusal := _refusal(record, asked)) is not None:
        return refusal
    if not request.body.validate_only:
        try:
            await changes.grow(topics, name, asked.count)
        except (RouterError, StoreError) as failure:
            return error_code(failure), error_message(failure)
        user = client.identity.principal.name
        _log.info("topic-grown", topic=record.name, partitions=asked.count, user=user)
    return ErrorCode.NONE, None


def _refusal(record: TopicRecord, asked: Any) -> Outcome | None:
    has = record.partitions
    if not has:
        sentence = "the topic was made without partitions: it cannot get more"
        return ErrorCode.INVALID_PARTITIONS, sentence
    if not has < asked.count <= MAX_PARTITIONS:
        sentence = f"expected {has + 1} to {MAX_PARTITIONS} partitions, not {asked.count}"
        return ErrorCode.INVALID_PARTITIONS, sentence
    if asked.assignments is not None:
        replicas = [tuple(place.broker_ids) for place in asked.assignments]
        if replicas != [(NODE_ID,)] * (asked.count - has):
            sentence = f"expected the broker {NODE_ID} for each new partition"
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, sentence
    return None


CREATE_PARTITIONS: Final = Api(37, "CreatePartitions", (0, 3), create_partitions)
