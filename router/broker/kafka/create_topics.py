"""CreateTopics (19): topics with their partitions and policies, owned by the client's principal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import structlog

from router.access.authorizer import TOPIC_RECORDS, TopicRights
from router.access.permissions import Right
from router.broker.kafka.client import Api, Request
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import ErrorCode, error_code, error_message
from router.broker.kafka.metadata import new_topic
from router.broker.kafka.topic_configs import (
    InvalidConfigError,
    config_change,
    given_properties,
    topic_values,
)
from router.broker.storage import StoreError, TopicRecord
from router.broker.topics.names import MAX_PARTITIONS, check_new
from router.errors import ConflictError, RouterError, TopicExistsError
from router.model import Policies, TopicName
from router.sharing.registry import NEW

MAX_TOPICS: Final = 1_000
"""Of one request."""
REPLICAS: Final = (NODE_ID,)
UNSET: Final = -1
"""A number of partitions or replicas that is left to the broker."""

_log = structlog.get_logger(__name__)


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """A topic cannot be created as it is asked for."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code = code
        super().__init__(message)


async def create_topics(request: Request) -> Any:
    """Create the topics one after the other; each has its own result."""
    body = request.body
    end = asyncio.get_running_loop().time() + max(0, body.timeout_ms) / 1000
    counted = Counter(topic.name for topic in body.topics)
    asked = {topic.name: topic for topic in body.topics}
    results: list[Any] = []
    for name, topic in asked.items():
        if len(asked) > MAX_TOPICS:
            refusal = ErrorCode.POLICY_VIOLATION, f"a request creates at most {MAX_TOPICS} topics"
        elif counted[name] > 1:
            refusal = ErrorCode.INVALID_REQUEST, "the request names the topic more than once"
        elif results and asyncio.get_running_loop().time() > end:
            refusal = ErrorCode.REQUEST_TIMED_OUT, "the time of the request is over"
        else:
            results.append(await _result(request, topic))
            continue
        results.append(_refused(request, name, *refusal))
    return request.response(topics=results)


async def _result(request: Request, asked: Any) -> Any:
    try:
        record = await _created(request, asked)
    except Refusal as refusal:
        return _refused(request, asked.name, refusal.code, str(refusal))
    except InvalidConfigError as error:
        return _refused(request, asked.name, ErrorCode.INVALID_CONFIG, str(error))
    except (RouterError, StoreError) as failure:
        return _refused(request, asked.name, error_code(failure), error_message(failure))
    result = request.struct("CreatableTopicResult", name=asked.name)
    result.replication_factor = len(REPLICAS)
    result.num_partitions = max(1, record.partitions)
    result.configs = [
        request.struct(
            "CreatableTopicConfigs",
            name=found.config.name,
            value=found.value,
            read_only=found.config.read is None,
            config_source=found.source,
        )
        for found in topic_values(request.context, record)
    ]
    return result


def _refused(request: Request, name: str, code: ErrorCode, message: str) -> Any:
    return request.struct(
        "CreatableTopicResult", name=name, error_code=code, error_message=message, configs=None
    )


async def _created(request: Request, asked: Any) -> TopicRecord:
    """Return the new topic, or what it would be."""
    context, client = request.context, request.client
    name = new_topic(context, asked.name)
    if not client.may(name, Right.CREATE):
        raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to create the topic")
    if context.topics.find_kafka(asked.name) is not None:
        raise TopicExistsError(f"the topic {asked.name} exists already")
    partitions = _partitions(asked, context.topics.options.auto_partitions)
    given = [(config.name, config.value) for config in asked.configs]
    change = config_change(context.broker.settings, given)
    policies, properties = change.over(Policies()), given_properties(change)
    if request.body.validate_only:
        check_new(name, partitions, properties)
        context.topics.namespaces.check(name)
        return TopicRecord(0, str(name), partitions, policies, properties, 0, ())
    record = await _create_owned(request, name, partitions, policies, properties)
    _log.info("topic-created", topic=str(name), user=client.identity.principal.name)
    return record


def _partitions(asked: Any, default: int) -> int:
    """Return the number of partitions, 0: the topic is not partitioned."""
    if asked.assignments:
        places = sorted(place.partition_index for place in asked.assignments)
        if (asked.num_partitions, asked.replication_factor) != (UNSET, UNSET):
            raise Refusal(ErrorCode.INVALID_REQUEST, "there are both assignments and numbers")
        replicas = {tuple(place.broker_ids) for place in asked.assignments}
        if places != list(range(len(places))) or replicas != {REPLICAS}:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"every replica is at the broker {NODE_ID}"
            )
        return len(places)
    if asked.replication_factor not in {UNSET, len(REPLICAS)}:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "there is one broker")
    if asked.num_partitions == UNSET:
        return default
    if not 0 < asked.num_partitions <= MAX_PARTITIONS:
        raise Refusal(ErrorCode.INVALID_PARTITIONS, f"a topic has 1 to {MAX_PARTITIONS} partitions")
    return int(asked.num_partitions)


async def _create_owned(
    request: Request,
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


CREATE_TOPICS: Final = Api(19, "CreateTopics", (2, 7), create_topics)
