"""Administration of topics and subscriptions, as CommandAdmin asks for it."""

from __future__ import annotations

from typing import Final, Protocol

from router.broker.admin import Counting
from router.broker.descriptions import PAGE
from router.broker.dispatch import Whence
from router.broker.ledger import DamagedError
from router.broker.topics import Topics
from router.errors import BadRequestError, ReadFailedError
from router.model import Policies, TopicInfo, TopicStats
from router.wire.pulsar import pulsar_pb2 as pb

MAX_NAME: Final = 1_024
LIST_BYTES: Final = 192 * 1024
"""Of a page of topics; more could have more fields than a frame may have."""


class Forgetting(Protocol):
    """The node's leases, as the administration of topics uses them."""

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop positions left for a next poll."""
        ...


class TopicAdmin:
    """Answers requests about the topics of the log."""

    def __init__(self, topics: Topics, counters: Counting, leases: Forgetting) -> None:
        self._topics = topics
        self._counters = counters
        self._leases = leases
        counters.watch("router_broker_topics", lambda: topics.count)

    async def answer(self, asked: pb.CommandAdmin, response: pb.CommandAdminResponse) -> None:
        """Fill in the response; raise RouterError, StoreError."""
        if asked.HasField("create_topic"):
            await self._create_topic(asked.create_topic)
        elif asked.HasField("delete_topic"):
            await self._delete_topic(asked.delete_topic)
        elif asked.HasField("list_topics"):
            self._list(asked.list_topics, response)
        elif asked.HasField("describe_topic"):
            await self._describe(asked.describe_topic, response)
        else:
            try:
                await self._answer_subscription(asked)
            except (DamagedError, OSError) as failure:
                raise ReadFailedError(str(failure)) from failure

    async def _describe(self, asked: pb.TopicRef, response: pb.CommandAdminResponse) -> None:
        """Answer a page of what a topic holds."""
        after = (asked.after_partition, asked.after_subscription)
        first = not asked.HasField("after_subscription")
        name = self._topics.parse(asked.topic)
        stats = await self._topics.describe(name, None if first else after)
        response.stats.CopyFrom(_stats(stats))
        response.more = len(stats.subscriptions) == PAGE

    async def _answer_subscription(self, asked: pb.CommandAdmin) -> None:
        if asked.HasField("create_subscription"):
            await self._create_subscription(asked.create_subscription)
        elif asked.HasField("delete_subscription"):
            await self._delete_subscription(asked.delete_subscription)
        elif asked.HasField("reset_subscription"):
            await self._reset_subscription(asked.reset_subscription)
        else:
            raise BadRequestError("this broker does not know the request")

    async def _create_topic(self, asked: pb.CreateTopic) -> None:
        properties = {pair.key: pair.value for pair in asked.properties}
        policies = _policies(asked.policies)
        name = self._topics.parse(asked.topic)
        await self._topics.create(name, asked.partitions, policies, properties)

    async def _delete_topic(self, asked: pb.TopicRef) -> None:
        name = self._topics.parse(asked.topic)
        await self._topics.delete(name)
        self._leases.forget(str(name))

    async def _create_subscription(self, asked: pb.CreateSubscription) -> None:
        if not 1 <= len(asked.subscription) <= MAX_NAME:
            raise BadRequestError(f"a subscription's name has 1 to {MAX_NAME} characters")
        when = asked.timestamp_ms if asked.HasField("timestamp_ms") else None
        name = self._topics.parse(asked.topic)
        await self._topics.subscribe(name, asked.subscription, Whence(asked.earliest, when))

    async def _delete_subscription(self, asked: pb.SubscriptionRef) -> None:
        name = self._topics.parse(asked.topic)
        await self._topics.unsubscribe(name, asked.subscription)
        self._leases.forget(str(name), asked.subscription)

    async def _reset_subscription(self, asked: pb.ResetSubscription) -> None:
        name = self._topics.parse(asked.topic)
        if [asked.earliest, asked.latest, asked.HasField("timestamp_ms")].count(True) != 1:
            raise BadRequestError("exactly one of earliest, latest and a time is needed")
        when = asked.timestamp_ms if asked.HasField("timestamp_ms") else None
        await self._topics.reset(name, asked.subscription, Whence(asked.earliest, when))
        self._leases.forget(str(name), asked.subscription)

    def _list(self, asked: pb.ListTopics, response: pb.CommandAdminResponse) -> None:
        """Answer a page of topics."""
        size = 0
        for info in self._topics.listed_after(asked.after):
            if size > LIST_BYTES:
                response.more = True
                return
            namespace = f"{info.topic.tenant}/{info.topic.namespace}"
            if not asked.HasField("namespace") or asked.namespace == namespace:
                response.topics.append(_info(info))
                size += response.topics[-1].ByteSize()

    def count(self) -> None:
        """Hand the counters what grew since they were shown last."""
        tally = self._topics.tally
        for name, value in (
            ("router_broker_entries_total", tally.entries),
            ("router_broker_bytes_total", tally.bytes),
            ("router_broker_dispatched_total", tally.dispatched),
            ("router_broker_damaged_entries_total", tally.damaged),
        ):
            self._counters.inc(name, value=value)
        tally.clear()


def _policies(asked: pb.Policies) -> Policies:
    return Policies(
        retention_ms=asked.retention_ms if asked.HasField("retention_ms") else None,
        retention_bytes=asked.retention_bytes if asked.HasField("retention_bytes") else None,
        backlog_bytes=asked.backlog_bytes if asked.HasField("backlog_bytes") else None,
        deduplication=asked.deduplication if asked.HasField("deduplication") else None,
    )


def _info(info: TopicInfo) -> pb.TopicInfo:
    policies = info.policies
    return pb.TopicInfo(
        topic=str(info.topic),
        partitions=info.partitions,
        policies=pb.Policies(
            retention_ms=policies.retention_ms,
            retention_bytes=policies.retention_bytes,
            backlog_bytes=policies.backlog_bytes,
            deduplication=policies.deduplication,
        ),
        properties=[pb.KeyValue(key=k, value=v) for k, v in info.properties.items()],
        created_ms=info.created_ms,
    )


def _stats(stats: TopicStats) -> pb.TopicStats:
    return pb.TopicStats(
        info=_info(stats.info),
        partitions=[
            pb.PartitionStats(
                partition=partition.partition,
                ledger_id=partition.ledger,
                first_entry=partition.first_entry,
                next_entry=partition.next_entry,
                messages=partition.messages,
                bytes=partition.bytes,
                producers=partition.producers,
            )
            for partition in stats.partitions
        ],
        subscriptions=[
            pb.SubscriptionStats(
                name=subscription.name,
                partition=subscription.partition,
                backlog=subscription.backlog,
                consumers=subscription.consumers,
                durable=subscription.durable,
            )
            for subscription in stats.subscriptions
        ],
    )
