"""DeleteTopics (20): topics with all they hold."""

from __future__ import annotations

from typing import Any, Final

import structlog

from router.access.authorizer import TOPIC_RECORDS
from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code, error_message
from router.model import TopicName

NO_ID: Final = bytes(16)
MAX_TOPICS: Final = 1_000
"""Of one request; those behind them are refused."""

_log = structlog.get_logger(__name__)


async def delete_topics(request: KafkaRequest) -> Any:
    """Delete the topics one after the other; each has its own result."""
    body = request.body
    requested = dict.fromkeys((name, NO_ID) for name in body.topic_names)
    requested |= dict.fromkeys((topic.name, topic.topic_id) for topic in body.topics)
    results = []
    for number, (name, topic_id) in enumerate(requested):
        result = request.struct("DeletableTopicResult", name=name, topic_id=topic_id)
        try:
            if number >= MAX_TOPICS:
                limit = f"a request deletes at most {MAX_TOPICS} topics"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, limit)
            await _delete(request, result)
        except REFUSALS as failure:
            result.error_code, result.error_message = error_code(failure), error_message(failure)
        results.append(result)
    return request.response(responses=results)


async def _delete(request: KafkaRequest, result: Any) -> None:
    """Delete the topic of a result, which is given the topic's name if it has only the id."""
    context, client = request.context, request.client
    topic = result.topic_id if result.name is None else result.name
    if result.name is None and (found := context.find_topic(topic)) is not None:
        result.name = context.topics.kafka_names.of(TopicName.parse(found.name))
    record = client.topic(topic, Right.DELETE)
    await context.topics.delete(TopicName.parse(record.name))
    context.broker.leases.forget(record.name)
    await context.broker.registry.delete(TOPIC_RECORDS, record.name)
    _log.info("topic-deleted", topic=record.name, user=client.identity.principal.name)


DELETE_TOPICS: Final = KafkaApi(20, "DeleteTopics", (1, 6), delete_topics)
