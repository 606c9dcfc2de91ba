"""DeleteTopics (20): topics with all they hold."""

from __future__ import annotations

from typing import Any, Final

import structlog

from router.access.authorizer import TOPIC_RECORDS
from router.access.permissions import Right
from router.broker.kafka.client import Api, Request
from router.broker.kafka.failures import ErrorCode, error_code, error_message
from router.broker.storage import StoreError, TopicRecord
from router.errors import RouterError
from router.model import TopicName

NO_ID: Final = bytes(16)
MAX_TOPICS: Final = 1_000
"""Of one request; those behind them are refused."""

_log = structlog.get_logger(__name__)


async def delete_topics(request: Request) -> Any:
    """Delete the topics one after the other; each has its own result."""
    body = request.body
    asked = list(
        dict.fromkeys(
            [
                *((name, NO_ID) for name in body.topic_names),
                *((topic.name, topic.topic_id) for topic in body.topics),
            ]
        )
    )
    results = [await _result(request, *topic) for topic in asked[:MAX_TOPICS]]
    for name, topic_id in asked[MAX_TOPICS:]:
        message = f"a request deletes at most {MAX_TOPICS} topics"
        results.append(_answer(request, name, ErrorCode.POLICY_VIOLATION, message))
        results[-1].topic_id = topic_id
    return request.response(responses=results)


async def _result(request: Request, kafka_name: str | None, topic_id: bytes) -> Any:
    context = request.context
    if kafka_name is not None:
        record = context.topics.find_kafka(kafka_name)
        if record is None:
            return _answer(request, kafka_name, request.client.missing(kafka_name))
        return await _deleted(request, record, kafka_name)
    record = context.find_id(topic_id)
    if record is None:
        found = _answer(request, None, ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        kafka_name = context.topics.kafka_names.of(TopicName.parse(record.name))
        found = await _deleted(request, record, kafka_name)
    found.topic_id = topic_id
    return found


async def _deleted(request: Request, record: TopicRecord, kafka_name: str) -> Any:
    context, client = request.context, request.client
    name = TopicName.parse(record.name)
    if not client.may(name, Right.DELETE):
        return _answer(request, kafka_name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        await context.topics.delete(name)
        context.broker.leases.forget(record.name)
        await context.broker.registry.delete(TOPIC_RECORDS, record.name)
    except (RouterError, StoreError) as failure:
        return _answer(request, kafka_name, error_code(failure), error_message(failure))
    _log.info("topic-deleted", topic=record.name, user=client.identity.principal.name)
    return _answer(request, kafka_name, ErrorCode.NONE)


def _answer(request: Request, name: str | None, code: ErrorCode, message: str | None = None) -> Any:
    return request.struct("DeletableTopicResult", name=name, error_code=code, error_message=message)


DELETE_TOPICS: Final = Api(20, "DeleteTopics", (1, 6), delete_topics)
