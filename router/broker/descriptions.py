"""What administration is told of topics: in pages, because a frame has bounds.

A frame holds 5 MB and 100,000 fields; a thousand groups on a hundred partitions, or the names of
100,000 topics, are more. An answer that broke the bounds would end the connection, and with it all
polls of the worker that asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from router.broker.dispatch import Counting, Partition, Subscription
from router.broker.ledger import TopicRecord
from router.model import PartitionStats, SubscriptionStats, TopicInfo, TopicName, TopicStats

PAGE: Final = 1_000
"""Names have at most 1,024 characters of 4 bytes."""

Place = tuple[int, str]
"""A subscription: the index of its partition and its name."""


def topic_info(record: TopicRecord) -> TopicInfo:
    """Return a topic as administration sees it."""
    return TopicInfo(
        TopicName.parse(record.name),
        record.partitions,
        record.policies,
        record.properties,
        record.created_ms,
    )


async def topic_stats(
    record: TopicRecord, partitions: Sequence[Partition], after: Place | None
) -> TopicStats:
    """Return a page of what a topic holds: at most PAGE subscriptions, those that come `after`.

    The first page has all partitions, later ones none.
    """
    counting = Counting()
    page = list(islice(subscriptions_after(partitions, after), PAGE))
    return TopicStats(
        topic_info(record),
        () if after else tuple(_partition_stats(partition) for partition in partitions),
        tuple([await _subscription_stats(subscription, counting) for subscription in page]),
    )


def subscriptions_after(
    partitions: Sequence[Partition], after: Place | None
) -> Iterator[Subscription]:
    """Yield the subscriptions by partition and name, beginning after this one."""
    for partition in partitions:
        if after is not None and partition.index < after[0]:
            continue
        for name, subscription in sorted(partition.subscriptions.items()):
            if after is None or (partition.index, name) > after:
                yield subscription


def _partition_stats(partition: Partition) -> PartitionStats:
    ledger = partition.ledger
    return PartitionStats(
        partition=partition.index,
        ledger=ledger.id,
        first_entry=ledger.first_entry,
        next_entry=ledger.durable_entry,
        messages=ledger.messages,
        bytes=ledger.size_bytes,
        producers=len(partition.producers),
    )


async def _subscription_stats(subscription: Subscription, counting: Counting) -> SubscriptionStats:
    return SubscriptionStats(
        name=subscription.name,
        partition=subscription.partition.index,
        backlog=await counting.backlog(subscription.ledger, subscription.cursor),
        consumers=len(subscription.consumers),
        durable=subscription.durable,
    )
