"""Administration of topics, as CommandAdmin asks for it, and who answers its other requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol, cast, runtime_checkable

from router.broker.admin import Counting
from router.broker.cursor_admin import CursorAdmin, Forgetting
from router.broker.descriptions import PAGE
from router.broker.dispatch import Partition
from router.broker.extents import Extents
from router.broker.fleeting import Topic as FleetingTopic
from router.broker.ledger import DamagedError
from router.broker.namespace_admin import NamespaceAdmin
from router.broker.schema_admin import SchemaAdmin
from router.broker.schemas import TopicSchemas
from router.broker.topic_changes import grow, terminate
from router.broker.topics import Topics
from router.errors import BadRequestError, ReadFailedError, TopicNotFoundError
from router.model import NOT_PARTITIONED, Policies, TopicInfo, TopicName, TopicStats
from router.wire.pulsar import pulsar_pb2 as pb

NOWHERE: Final = 2**64 - 1
LIST_BYTES: Final = 192 * 1024
"""Of a page of topics; more could have more fields than a frame may have."""
CLIENTS: Final = 1_000
"""Of a page of producers and consumers."""
MOST_CLIENTS: Final = 1 << 32
"""Of all pages."""

Answering = Callable[[Any, pb.CommandAdminResponse], Awaitable[None]]
"""Answers one kind of request; raises RouterError, StoreError."""


@runtime_checkable
class Client(Protocol):
    """A producer's or consumer's connection that can be named to people."""

    peer: str
    client: str


class TopicAdmin:
    """Answers requests about the topics of the log."""

    def __init__(
        self,
        topics: Topics,
        counters: Counting,
        leases: Forgetting,
        schemas: TopicSchemas | None = None,
    ) -> None:
        self._topics = topics
        self._counters = counters
        self._leases = leases
        cursors, namespaces = CursorAdmin(topics, leases), NamespaceAdmin(topics, self.delete)
        of_schemas = SchemaAdmin(topics, schemas or TopicSchemas())
        self._answers: Mapping[str, Answering] = {
            "create_topic": self._create_topic,
            "delete_topic": self._delete_topic,
            "list_topics": self._list,
            "describe_topic": self._describe,
            "describe_clients": self._describe_clients,
            "terminate_topic": self._terminate,
            "update_partitions": self._grow,
            "create_subscription": cursors.create,
            "delete_subscription": cursors.delete,
            "reset_subscription": cursors.reset,
            "acknowledge": cursors.acknowledge,
            "describe_cursors": cursors.describe,
            "skip_messages": cursors.skip,
            "read_entry": cursors.read,
            "locate_messages": Extents(topics).locate,
            "list_tenants": namespaces.tenants,
            "put_tenant": namespaces.put_tenant,
            "delete_tenant": namespaces.delete_tenant,
            "list_namespaces": namespaces.namespaces,
            "get_namespace": namespaces.namespace,
            "create_namespace": namespaces.create,
            "delete_namespace": namespaces.delete,
            "change_policies": namespaces.change_policies,
            "list_schemas": of_schemas.versions,
            "put_schema": of_schemas.put,
            "delete_schema": of_schemas.delete,
        }
        counters.watch("router_broker_topics", lambda: topics.count)

    async def answer(self, asked: pb.CommandAdmin, response: pb.CommandAdminResponse) -> None:
        """Fill in the response; raise RouterError, StoreError."""
        for field, body in asked.ListFields():
            if (answering := self._answers.get(field.name)) is not None:
                try:
                    await answering(body, response)
                except (DamagedError, OSError) as failure:
                    raise ReadFailedError(str(failure)) from failure
                return
        raise BadRequestError("this broker does not know the request")

    async def delete(self, name: TopicName) -> None:
        """Delete a topic, with the positions that polls left; raise TopicNotFoundError."""
        if self._topics.fleeting.serves(str(name)):
            self._fleeting(str(name)).close()
            return
        await self._topics.delete(name)
        self._leases.forget(str(name))

    async def _create_topic(self, asked: pb.CreateTopic, _: pb.CommandAdminResponse) -> None:
        properties = {pair.key: pair.value for pair in asked.properties}
        policies = _policies(asked.policies)
        name = self._topics.parse(asked.topic)
        await self._topics.create(name, asked.partitions, policies, properties)

    async def _delete_topic(self, asked: pb.TopicRef, _: pb.CommandAdminResponse) -> None:
        fleeting = self._topics.fleeting.serves(asked.topic)
        await self.delete(
            TopicName.parse(asked.topic) if fleeting else self._topics.parse(asked.topic)
        )

    async def _grow(self, asked: pb.UpdatePartitions, _: pb.CommandAdminResponse) -> None:
        await grow(self._topics, self._topics.parse(asked.topic), asked.partitions)

    async def _terminate(self, asked: pb.TopicRef, response: pb.CommandAdminResponse) -> None:
        for last in await terminate(self._topics, self._topics.parse(asked.topic)):
            entry = NOWHERE if last.entry < 0 else last.entry
            response.last_positions.add(
                ledgerId=last.ledger, entryId=entry, partition=last.partition
            )

    async def _describe(self, asked: pb.TopicRef, response: pb.CommandAdminResponse) -> None:
        """Answer a page of what a topic holds."""
        if self._topics.fleeting.serves(asked.topic):
            response.stats.CopyFrom(_fleeting_stats(self._fleeting(asked.topic)))
            return
        after = (asked.after_partition, asked.after_subscription)
        first = not asked.HasField("after_subscription")
        name = self._topics.parse(asked.topic)
        stats = await self._topics.describe(name, None if first else after)
        response.stats.CopyFrom(_stats(stats))
        response.more = len(stats.subscriptions) == PAGE

    async def _describe_clients(
        self, asked: pb.DescribeClients, response: pb.CommandAdminResponse
    ) -> None:
        """Answer a page of a topic's producers and consumers."""
        if self._topics.fleeting.serves(asked.topic):
            found = _fleeting_clients(self._fleeting(asked.topic))
        else:
            found = _clients(self._topics.pieces(self._topics.parse(asked.topic)))
        after = min(asked.after, MOST_CLIENTS)
        size = 0
        for info in islice(found, after, None):
            if size > LIST_BYTES or len(response.clients) == CLIENTS:
                response.more = True
                break
            size += info.ByteSize()
            response.clients.append(info)

    async def _list(self, asked: pb.ListTopics, response: pb.CommandAdminResponse) -> None:
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

    def _fleeting(self, text: str) -> FleetingTopic:
        found = self._topics.fleeting.find(TopicName.parse(text))
        if found is None:
            raise TopicNotFoundError(f"there is no topic {text}")
        return found

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


def _fleeting_stats(topic: FleetingTopic) -> pb.TopicStats:
    return pb.TopicStats(
        info=pb.TopicInfo(topic=str(topic.name)),
        partitions=[
            pb.PartitionStats(
                partition=NOT_PARTITIONED,
                messages=topic.messages,
                bytes=topic.size,
                producers=len(topic.producers),
            )
        ],
        subscriptions=[
            pb.SubscriptionStats(
                name=subscription.name,
                partition=NOT_PARTITIONED,
                backlog=0,
                consumers=len(subscription.consumers),
                durable=False,
            )
            for subscription in topic.subscriptions.values()
        ],
    )


def _clients(partitions: list[Partition]) -> Iterator[pb.ClientInfo]:
    for partition in partitions:
        for producer in partition.producers:
            info = _client(partition.index, producer, producer.producer_id)
            info.access = cast("pb.ProducerAccessMode", int(producer.access))
            yield info
        for subscription in partition.subscriptions.values():
            for consumer in subscription.consumers:
                info = _client(partition.index, consumer, consumer.consumer_id)
                info.subscription = subscription.name
                info.permits = max(0, consumer.permits)
                info.unacked = consumer.held_messages
                yield info


def _fleeting_clients(topic: FleetingTopic) -> Iterator[pb.ClientInfo]:
    for producer in topic.producers.values():
        info = _client(NOT_PARTITIONED, producer, producer.producer_id)
        info.access = pb.Shared
        yield info
    for subscription in topic.subscriptions.values():
        for consumer in subscription.consumers:
            info = _client(NOT_PARTITIONED, consumer, consumer.consumer_id)
            info.subscription = subscription.name
            info.permits = max(0, consumer.permits)
            info.dropped = consumer.dropped
            yield info


class _Opened(Protocol):
    """A producer or a consumer."""

    @property
    def name(self) -> str: ...
    @property
    def link(self) -> object: ...
    @property
    def since_ms(self) -> int: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...


def _client(partition: int, opened: _Opened, identity: int) -> pb.ClientInfo:
    return pb.ClientInfo(
        partition=partition,
        name=opened.name,
        id=identity,
        connected_ms=opened.since_ms,
        metadata=[pb.KeyValue(key=key, value=value) for key, value in opened.metadata.items()],
        **_whereabouts(opened.link),
    )


def _whereabouts(link: object) -> dict[str, Any]:
    return {"address": link.peer, "version": link.client} if isinstance(link, Client) else {}
