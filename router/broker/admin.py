"""Administration: what CommandAdmin asks for, answered from topics, leases and counters.

Requests that workers make all the time (tokens, metrics) are answered at once, within the call; the
others may wait for the disk. A failure is an answer with the failure's stable code, so that the
front raises what would have been raised here; ERROR with one of Pulsar's numbers could not say it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from router.broker.ledger import StoreError
from router.broker.topics import Topics
from router.errors import BadRequestError, DiskFullError, RouterError
from router.model import Policies, TopicInfo, TopicStats
from router.wire.pulsar import pulsar_pb2 as pb

MAX_NAME: Final = 1_024


class Counting(Protocol):
    """The node's counters, as administration uses them."""

    def inc(self, name: str, labels: tuple[tuple[str, str], ...] = (), value: float = 1) -> None:
        """Add to a counter."""
        ...

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Have a gauge read whenever metrics are shown."""
        ...

    def push(self, peer: object, pushed: pb.PushMetrics) -> None:
        """Add what a worker counted."""
        ...

    def gone(self, peer: object) -> None:
        """Forget a worker's gauges."""
        ...

    def take_token(self, asked: pb.TakeToken) -> pb.TokenAnswer:
        """Take one token of a bucket."""
        ...

    def render(self) -> str:
        """Return everything in the Prometheus text format."""
        ...


class Forgetting(Protocol):
    """The node's leases, as administration uses them."""

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop positions left for a next poll."""
        ...


class Admin:
    """Answers administration's requests; who may ask is decided before."""

    def __init__(
        self, topics: Topics, counters: Counting, leases: Forgetting, drain: Callable[[], None]
    ) -> None:
        self._topics = topics
        self._counters = counters
        self._leases = leases
        self._drain = drain
        self.watch = counters.watch
        counters.watch("router_broker_topics", lambda: topics.count)

    def answer_now(self, peer: object, asked: pb.CommandAdmin) -> pb.CommandAdminResponse | None:
        """Answer what needs no waiting; None: `answer` does it."""
        response = pb.CommandAdminResponse(request_id=asked.request_id)
        if asked.HasField("take_token"):
            response.token.CopyFrom(self._counters.take_token(asked.take_token))
        elif asked.HasField("push_metrics"):
            self._counters.push(peer, asked.push_metrics)
        elif asked.HasField("get_metrics"):
            self._count()
            response.metrics = self._counters.render()
        elif asked.HasField("drain"):
            self._drain()
        else:
            return None
        return response

    async def answer(self, asked: pb.CommandAdmin) -> pb.CommandAdminResponse:
        """Answer a request about topics; a failure is an answer too."""
        response = pb.CommandAdminResponse(request_id=asked.request_id)
        try:
            await self._answer(asked, response)
        except RouterError as failure:
            response.code, response.message = failure.code, str(failure)
        except StoreError as failure:
            response.code, response.message = DiskFullError.code, str(failure)
        return response

    def gone(self, peer: object) -> None:
        """Forget what a worker's connection told of itself."""
        self._counters.gone(peer)

    async def _answer(self, asked: pb.CommandAdmin, response: pb.CommandAdminResponse) -> None:
        if asked.HasField("create_topic"):
            await self._create_topic(asked.create_topic)
        elif asked.HasField("delete_topic"):
            await self._delete_topic(asked.delete_topic)
        elif asked.HasField("list_topics"):
            response.topics.extend(self._list(asked.list_topics))
        elif asked.HasField("describe_topic"):
            name = self._topics.parse(asked.describe_topic.topic)
            response.stats.CopyFrom(_stats(await self._topics.describe(name)))
        else:
            await self._answer_subscription(asked)

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
        name = self._topics.parse(asked.topic)
        await self._topics.subscribe(name, asked.subscription, earliest=asked.earliest)

    async def _delete_subscription(self, asked: pb.SubscriptionRef) -> None:
        name = self._topics.parse(asked.topic)
        for subscription in self._topics.subscriptions(name, asked.subscription):
            await subscription.partition.delete(subscription)
        self._leases.forget(str(name), asked.subscription)

    async def _reset_subscription(self, asked: pb.ResetSubscription) -> None:
        name = self._topics.parse(asked.topic)
        if [asked.earliest, asked.latest, asked.HasField("timestamp_ms")].count(True) != 1:
            raise BadRequestError("exactly one of earliest, latest and a time is needed")
        for subscription in self._topics.subscriptions(name, asked.subscription):
            ledger = subscription.ledger
            if asked.HasField("timestamp_ms"):
                entry = await ledger.find_time(asked.timestamp_ms)
            else:
                entry = ledger.first_entry if asked.earliest else ledger.durable_entry
            await subscription.reset_durably(entry)
        self._leases.forget(str(name), asked.subscription)

    def _list(self, asked: pb.ListTopics) -> list[pb.TopicInfo]:
        if not asked.HasField("namespace"):
            return [_info(info) for info in self._topics.list()]
        tenant, _, namespace = asked.namespace.partition("/")
        return [_info(info) for info in self._topics.list(tenant, namespace)]

    def _count(self) -> None:
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
