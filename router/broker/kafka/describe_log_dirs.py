"""DescribeLogDirs (35): the data folder, its disk, and the sizes of partitions in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import ErrorCode, error_code
from router.broker.kafka.metadata import visible_topics
from router.broker.storage import Store, StoreError, TopicRecord

MAX_TOPICS_PER_SLICE: Final = 200
"""Whose sizes are read before other clients have their turn."""


async def describe_log_dirs(request: KafkaRequest) -> Any:
    """Answer the sizes of the partitions that are named, or of all, to administrators."""
    if not request.client.identity.administers:
        response = request.response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        request.count_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return response
    store, body = request.context.topics.store, request.body
    named = None if body.topics is None else {t.topic: set(t.partitions) for t in body.topics}
    folder = request.struct("DescribeLogDirsResult", log_dir=str(store.folder))
    try:
        usage = await store.disk_usage()
    except (StoreError, OSError) as failure:
        folder.error_code = error_code(failure)
    else:
        folder.total_bytes, folder.usable_bytes = usage.disk, usage.free
    topics = []
    for number, (name, record) in enumerate(visible_topics(request.client), 1):
        if number % MAX_TOPICS_PER_SLICE == 0:
            await asyncio.sleep(0)
        count = range(max(1, record.partitions))
        chosen = count if named is None else sorted(named.get(name, set()).intersection(count))
        if chosen:
            partitions = _partitions(request, store, record, chosen)
            topics.append(request.struct("DescribeLogDirsTopic", name=name, partitions=partitions))
    folder.topics = topics
    return request.response(results=[folder])


def _partitions(
    request: KafkaRequest, store: Store, record: TopicRecord, indexes: Sequence[int]
) -> list[Any]:
    return [
        request.struct(
            "DescribeLogDirsPartition",
            partition_index=index,
            partition_size=_size_bytes(store, record.ledger_ids[index]),
        )
        for index in indexes
    ]


def _size_bytes(store: Store, ledger_id: int) -> int:
    """Return what a partition takes; one that is not in use stays so."""
    idle = store.idle(ledger_id)
    return store.look(ledger_id)[0].size_bytes if idle is None else idle.size


DESCRIBE_LOG_DIRS: Final = KafkaApi(35, "DescribeLogDirs", (1, 4), describe_log_dirs)
