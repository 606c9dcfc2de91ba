"""CreateTopics (19): topics with their partitions and policies, owned by the client's principal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import structlog

from router.access.authorizer import TOPIC_RECORDS, TopicRights
from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code, error_message
from router.broker.kafka.metadata import new_topic
from router.broker.kafka.topic_configs import config_change, given_properties, topic_values
from router.broker.storage import TopicRecord
from router.broker.topics.names import MAX_PARTITIONS, check_new
from router.errors import ConflictError, RouterError, TopicExistsError
from router.model import TopicName
from router.model.policies import Policies
from router.sharing.registry import NEW

MAX_TOPICS: Final = 1_000
"""Of one request."""
REPLICAS: Final = (NODE_ID,)
UNSET: Final = -1
"""A number of partitions or replicas that is left to the broker."""

_log = structlog.get_logger(__name__)


async def create_topics(request: KafkaRequest) -> Any:
    """Create the topics one after the other; each has its own result."""
    body = request.body
    end = asyncio.get_running_loop().time() + max(0, body.timeout_ms) / 1000
    counted = Counter(topic.name for topic in body.topics)
    results: list[Any] = []
    for name, topic in {topic.name: topic for topic in body.topics}.items():
        try:
            if len(counted) > MAX_TOPICS:
                limit = f"a request creates at most {MAX_TOPICS} topics"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, limit)
            if counted[name] > 1:
                twice = "the request names the topic more than once"
                raise KafkaError(ErrorCode.INVALID_REQUEST, twice)
            if results and asyncio.get_running_loop().time() > end:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the time of the request is over")
            result = _result(request, name, await _created(request, topic))
        except REFUSALS as failure:
            result = request.struct(
                "CreatableTopicResult",
                name=name,
                error_code=error_code(failure),
                error_message=error_message(failure),
                configs=None,
            )
        results.append(result)
    return request.response(topics=results)


def _result(request: KafkaRequest, name: str, record: TopicRecord) -> Any:
    return request.struct(
        "CreatableTopicResult",
        name=name,
        replication_factor=len(REPLICAS),
        num_partitions=max(1, record.partitions),
        configs=[
            request.struct(
                "CreatableTopicConfigs",
                name=found.config.name,
                value=found.value,
                read_only=found.config.read is None,
                config_source=found.source,
            )
            for found in topic_values(request.context, record)
        ],
    )


async def _created(request: KafkaRequest, requested: Any) -> TopicRecord:
    """Return the new topic, or what it would be."""
    context, client = request.context, request.client
    name = new_topic(context, requested.name)
    if not client.may(name, Right.CREATE):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to create the topic")
    if context.topics.find_kafka(requested.name) is not None:
        raise TopicExistsError(f"the topic {requested.name} exists already")
    partitions = _partitions(requested, context.topics.options.auto_partitions)
    given = [(config.name, config.value) for config in requested.configs]
    change = config_change(context.broker.settings, given)
    policies, properties = change.over(Policies()), given_properties(change)
    if request.body.validate_only:
        check_new(name, partitions, properties)
        context.topics.namespaces.check(name)
        return TopicRecord(0, str(name), partitions, policies, properties, 0, ())
    record = await _create_owned(request, name, partitions, policies, properties)
    _log.info("topic-created", topic=str(name), user=client.identity.principal.name)
    return record


def _partitions(requested: Any, default: int) -> int:
    """Return the number of partitions, 0: the topic is not partitioned."""
    if requested.assignments:
        indexes = sorted(one.partition_index for one in requested.assignments)
        if (requested.num_partitions, requested.replication_factor) != (UNSET, UNSET):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "there are both assignments and numbers")
        replicas = {tuple(one.broker_ids) for one in requested.assignments}
        if indexes != list(range(len(indexes))) or replicas != {REPLICAS}:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"every replica is at the broker {NODE_ID}"
            )
        return len(indexes)
    if requested.replication_factor not in {UNSET, len(REPLICAS)}:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "there is one broker")
    if requested.num_partitions == UNSET:
        return default
    if not 0 < requested.num_partitions <= MAX_PARTITIONS:
        limit = f"a topic has 1 to {MAX_PARTITIONS} partitions"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, limit)
    return int(requested.num_partitions)


async def _create_owned(
    request: KafkaRequest,
    name: TopicName,
    partitions: int,
    policies: Policies,
    properties: Mapping[str, str],
) -> TopicRecord:
    """Create a topic with its owner, who is on record before the topic is there."""
    topics, registry = request.context.topics, request.context.broker.registry
    owner = request.client.identity.principal.name
    before = await registry.get(TOPIC_RECORDS, str(name))
    if owner:
        version = NEW if before is None else before.version
        try:
            await registry.put(TOPIC_RECORDS, str(name), TopicRights(owner).dump(), version)
        except ConflictError:
            raise TopicExistsError(f"another client creates the topic {name}") from None
    elif before is not None:
        await registry.delete(TOPIC_RECORDS, str(name))
    try:
        return await topics.create(name, partitions, policies, properties)
    except RouterError:
        if owner and topics.find(str(name)) is None:
            await registry.delete(TOPIC_RECORDS, str(name))
        raise


CREATE_TOPICS: Final = KafkaApi(19, "CreateTopics", (2, 7), create_topics)
