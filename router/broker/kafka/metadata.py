"""Metadata (3): the broker, its topics and their partitions; asking for a topic may create it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaClient, KafkaRequest
from router.broker.kafka.context import LEADER_EPOCH, NODE_ID, KafkaContext
from router.broker.kafka.failures import REFUSALS, error_code
from router.broker.storage import TopicRecord
from router.errors import BadNameError, ForbiddenError, TopicNotFoundError
from router.errors.quoting import quoted
from router.model import TopicName

MAX_TOPICS: Final = 10_000
"""Topics that one request may name."""
NULL_NAMES: Final = 12
"""The first version in which a topic may have no name."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


async def metadata(request: KafkaRequest) -> Any:
    """Answer with the topics that are named, or with all that the client may see."""
    body, context = request.body, request.context
    topics: list[Any]
    if body.topics is None or (request.version == 0 and not body.topics):
        topics = [_topic(request, *found) for found in visible_topics(request.client)]
    else:
        create = request.version < 4 or body.allow_auto_topic_creation
        named = dict.fromkeys((topic.name, topic.topic_id) for topic in body.topics[:MAX_TOPICS])
        topics = [
            _with_id(request, topic_id)
            if name is None
            else await _named(request, name, create=create)
            for name, topic_id in named
        ]
    host, port = context.address(request.client.connection)
    broker = request.struct("MetadataResponseBroker", node_id=NODE_ID, host=host, port=port)
    return request.response(
        brokers=[broker],
        cluster_id=await context.cluster_id(),
        controller_id=NODE_ID,
        topics=topics,
    )


def visible_topics(client: KafkaClient) -> Iterator[tuple[str, TopicRecord]]:
    """Yield all topics that a client may see, with their Kafka names."""
    topics = client.context.topics
    for record in topics.records():
        name = TopicName.parse(record.name)
        if client.may(name, Right.VIEW):
            yield topics.kafka_names.of(name), record


async def find_or_create(client: KafkaClient, name: str, *, create: bool) -> TopicRecord:
    """Return the topic of a Kafka name, created if it may be; raise RouterError."""
    topics = client.context.topics
    if topics.find_kafka(name) is not None:
        return client.topic(name, Right.VIEW)
    full = new_topic(client.context, name)
    if not client.may(full, Right.VIEW):
        raise ForbiddenError
    used = client.may(full, Right.PUBLISH) or client.may(full, Right.SUBSCRIBE)
    if not (create and used) or topics.creation(full) is None:
        raise TopicNotFoundError
    return await topics.create_missing(full)


def new_topic(context: KafkaContext, name: str) -> TopicName:
    """Return the name of the topic that a Kafka name stands for if there is none yet.

    Raises BadNameError.
    """
    if not _LEGAL.fullmatch(name):
        raise BadNameError(f"{quoted(name)} is no name of a Kafka topic")
    return context.topics.parse(name)


async def _named(request: KafkaRequest, name: str, *, create: bool) -> Any:
    try:
        return _topic(request, name, await find_or_create(request.client, name, create=create))
    except REFUSALS as failure:
        return request.struct("MetadataResponseTopic", error_code=error_code(failure), name=name)


def _with_id(request: KafkaRequest, topic_id: bytes) -> Any:
    try:
        record = request.client.topic(topic_id, Right.VIEW)
    except REFUSALS as failure:
        # A name of null is what version 12 and later have, and others of those with ids cannot.
        nameless = None if request.version >= NULL_NAMES else ""
        return request.struct(
            "MetadataResponseTopic",
            error_code=error_code(failure),
            name=nameless,
            topic_id=topic_id,
        )
    name = request.context.topics.kafka_names.of(TopicName.parse(record.name))
    return _topic(request, name, record)


def _topic(request: KafkaRequest, name: str, record: TopicRecord) -> Any:
    only = (NODE_ID,)
    partitions = [
        request.struct(
            "MetadataResponsePartition",
            partition_index=index,
            leader_id=NODE_ID,
            leader_epoch=LEADER_EPOCH,
            replica_nodes=only,
            isr_nodes=only,
        )
        for index in range(max(1, record.partitions))
    ]
    topic_id = request.context.topic_id(record)
    return request.struct(
        "MetadataResponseTopic", name=name, topic_id=topic_id, partitions=partitions
    )


METADATA: Final = KafkaApi(3, "Metadata", (0, 13), metadata)
