"""DescribeTopicPartitions (75): topics with their partitions, in pages of so many partitions."""

from __future__ import annotations

from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import LEADER_EPOCH, NODE_ID
from router.broker.kafka.failures import REFUSALS, error_code
from router.broker.kafka.metadata import MAX_TOPICS, visible_topics

MAX_PARTITIONS: Final = 2_000
"""Of one response, as with Apache Kafka."""
_REPLICAS: Final = (NODE_ID,)


def describe_topic_partitions(request: KafkaRequest) -> Any:
    """Answer the topics that are named, or all, in the order of names and from a cursor on."""
    body = request.body
    names = sorted(
        {topic.name for topic in body.topics[:MAX_TOPICS]}
        or {name for name, _ in visible_topics(request.client)}
    )
    left = min(max(1, body.response_partition_limit), MAX_PARTITIONS)
    topics, begin, first = [], "", 0
    if body.cursor is not None:
        begin, first = body.cursor.topic_name, max(0, body.cursor.partition_index)
    cursor = None
    for name in names:
        if name < begin:
            continue
        if left == 0:
            cursor = request.struct("Cursor", topic_name=name, partition_index=0)
            break
        topic, count = _topic(request, name, first if name == begin else 0, left)
        topics.append(topic)
        left -= len(topic.partitions)
        if topic.partitions and (end := topic.partitions[-1].partition_index + 1) < count:
            cursor = request.struct("Cursor", topic_name=name, partition_index=end)
            break
    return request.response(topics=topics, next_cursor=cursor)


def _topic(request: KafkaRequest, name: str, first: int, limit: int) -> tuple[Any, int]:
    """Return a topic with some of its partitions, and how many it has."""
    described = request.struct("DescribeTopicPartitionsResponseTopic", name=name)
    try:
        record = request.client.topic(name, Right.VIEW)
    except REFUSALS as failure:
        described.error_code = error_code(failure)
        return described, 0
    count = max(1, record.partitions)
    described.topic_id = request.context.topic_id(record)
    described.partitions = [
        request.struct(
            "DescribeTopicPartitionsResponsePartition",
            partition_index=index,
            leader_id=NODE_ID,
            leader_epoch=LEADER_EPOCH,
            replica_nodes=_REPLICAS,
            isr_nodes=_REPLICAS,
            eligible_leader_replicas=(),
            last_known_elr=(),
        )
        for index in range(first, min(count, first + limit))
    ]
    return described, count


DESCRIBE_TOPIC_PARTITIONS: Final = KafkaApi(
    75, "DescribeTopicPartitions", (0, 0), describe_topic_partitions
)
