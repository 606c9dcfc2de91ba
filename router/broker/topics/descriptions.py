"""Descriptions of topics for administration: in pages, because a frame has bounds.

A frame holds 5 MB and 100,000 fields; a thousand groups on a hundred partitions, or the names of
100,000 topics, are more. An answer that broke the bounds would end the connection, and with it all
polls of the worker that asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import Final, Protocol, runtime_checkable

from router.broker.consume import (
    BacklogCounter,
    ClientConsumer,
    Partition,
    PartitionSubscription,
    Producer,
)
from router.broker.consume.dispatch.non_persistent import NonPersistentPartition
from router.broker.consume.visible import Visible
from router.broker.storage import TopicRecord
from router.model import (
    NOT_PARTITIONED,
    PartitionStats,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.administration import ClientInfo

MAX_SUBSCRIPTIONS_PER_PAGE: Final = 1_000
"""Names have at most 1,024 characters of 4 bytes."""

Place = tuple[int, str]
"""A subscription: the index of its partition and its name."""


@runtime_checkable
class DescribedClient(Protocol):
    """A producer's or consumer's connection that can be named to people."""

    peer: str
    client: str


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
    """Return a page of what a topic holds, with the subscriptions that come `after` this one.

    At most MAX_SUBSCRIPTIONS_PER_PAGE. The first page has all partitions, later ones none.
    """
    counter = BacklogCounter()
    page = list(islice(subscriptions_after(partitions, after), MAX_SUBSCRIPTIONS_PER_PAGE))
    found = [await _subscription_stats(subscription, counter) for subscription in page]
    if len(page) < MAX_SUBSCRIPTIONS_PER_PAGE:
        found += islice(
            _groups_without_position(partitions), MAX_SUBSCRIPTIONS_PER_PAGE - len(page) - 1
        )
    described = () if after else [await _partition_stats(partition) for partition in partitions]
    return TopicStats(topic_info(record), tuple(described), tuple(found))


def _groups_without_position(partitions: Sequence[Partition]) -> Iterator[SubscriptionStats]:
    """Yield the groups that have members and have committed nothing: all is before them."""
    for partition in partitions:
        live = partition.context.live_members
        for name in live.groups(partition.topic_name):
            if name not in partition.subscriptions:
                readers = live.readers(partition.topic_name, name, partition.index)
                yield SubscriptionStats(
                    name, partition.index, partition.ledger.messages, readers, durable=True
                )


def subscriptions_after(
    partitions: Sequence[Partition], after: Place | None
) -> Iterator[PartitionSubscription]:
    """Yield the subscriptions by partition and name, beginning after this one."""
    for partition in partitions:
        if after is not None and partition.index < after[0]:
            continue
        for name, subscription in sorted(partition.subscriptions.items()):
            if after is None or (partition.index, name) > after:
                yield subscription


async def _partition_stats(partition: Partition) -> PartitionStats:
    ledger = partition.ledger
    first, deleted = ledger.first_entry, 0
    if partition.visible.leaves_out and ledger.messages > 0:
        first, deleted = await _visible_begin(partition.visible)
    end = partition.visible.end_entry
    rates = partition.arrival_rates(monotonic())
    return PartitionStats(
        partition=partition.index,
        ledger=ledger.id,
        first_entry=first,
        next_entry=end,
        messages=ledger.messages,
        bytes=ledger.size_bytes,
        producers=len(partition.producers),
        deleted=deleted,
        undecided=max(0, ledger.durable_entry - end),
        message_rate=rates.messages,
        byte_rate=rates.bytes,
    )


async def _visible_begin(visible: Visible) -> tuple[int, int]:
    """Return the first entry with a message that is visible, and how many behind it are not."""
    ledger = visible.ledger
    try:
        first = min(await ledger.entry_of_number(visible.first_number), ledger.durable_entry)
        before = await ledger.number_before(first)
    except OSError:  # reading reports it
        return ledger.first_entry, visible.leaves_out
    end = ledger.durable_number
    return first, end - before - visible.count(before, end)


async def _subscription_stats(
    subscription: PartitionSubscription, counter: BacklogCounter
) -> SubscriptionStats:
    return SubscriptionStats(
        name=subscription.name,
        partition=subscription.partition.index,
        backlog=await counter.backlog(subscription.visible, subscription.cursor),
        consumers=len(subscription.consumers) + _live_readers(subscription),
        durable=subscription.durable,
        last_used_ms=0 if subscription.record is None else subscription.record.last_used_ms,
    )


def _live_readers(subscription: PartitionSubscription) -> int:
    """Return how many members of a protocol without consumers read a subscription."""
    place = subscription.topic_name, subscription.name, subscription.partition_index
    return subscription.context.live_members.readers(*place)


def non_persistent_stats(topic: NonPersistentPartition) -> TopicStats:
    """Return what a topic that is not persistent has now."""
    rates = [producer.flow.rates(monotonic()) for producer in topic.producers]
    partition = PartitionStats(
        NOT_PARTITIONED,
        messages=topic.messages,
        bytes=topic.bytes,
        producers=len(topic.producers),
        message_rate=sum(rate.messages for rate in rates),
        byte_rate=sum(rate.bytes for rate in rates),
    )
    subscriptions = (
        SubscriptionStats(one.name, NOT_PARTITIONED, 0, len(one.consumers), durable=False)
        for one in topic.subscriptions.values()
    )
    return TopicStats(TopicInfo(topic.name), (partition,), tuple(subscriptions))


def clients(partitions: Sequence[Partition | NonPersistentPartition]) -> Iterator[ClientInfo]:
    """Yield the producers and consumers of partitions."""
    for partition in partitions:
        for producer in partition.producers:
            info = _client(partition.index, producer, producer.producer_id)
            info.access = producer.access
            yield info
        for subscription in partition.subscriptions.values():
            for consumer in subscription.consumers:
                info = _client(partition.index, consumer, consumer.consumer_id)
                info.subscription = subscription.name
                info.permits = max(0, consumer.permits)
                info.unacked = consumer.held_messages
                info.dropped = consumer.dropped
                yield info


def _client(partition: int, opened: Producer | ClientConsumer, identity: int) -> ClientInfo:
    info = ClientInfo(partition, opened.name, identity, opened.since_ms, opened.metadata)
    rates = opened.flow.rates(monotonic())
    info.messages, info.bytes = opened.flow.messages, opened.flow.bytes
    info.message_rate, info.byte_rate = rates.messages, rates.bytes
    info.redelivery_rate, info.ack_rate = rates.redelivered, rates.acknowledged
    if isinstance(opened.link, DescribedClient):
        info.address, info.version = opened.link.peer, opened.link.client
    return info
