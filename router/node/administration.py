"""The administration of the node's own broker, in values of the model.

Each call is one request of the node protocol, or one for each page of a list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from threading import BoundedSemaphore
from typing import Any, Final, TypedDict, Unpack

import orjson

from router.clocks import deadline_in
from router.errors import BackendTimeoutError
from router.model import Position, Schema, Subscription, TopicInfo, TopicName, TopicStats
from router.model.administration import (
    BackupCut,
    ClientInfo,
    CursorDescription,
    EntryChoice,
    JournalCut,
    Namespace,
    NamespacePolicies,
    SchemaVersion,
    StoredEntry,
    Tenant,
)
from router.node.requests import after, after_cursor, ask, described, listed, partition_count
from router.pulsar_client.link import PulsarLink
from router.pulsar_client.refusals import refusal
from router.wire.node import conversions
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from router.wire.pulsar import schemas

MAX_CONCURRENT_CALLS: Final = 32
"""Calls of one worker that the broker has before it; it ends a connection that has too many."""

MODES: Final = tuple(pb.CommandGetTopicsOfNamespace.Mode.keys())
_NO_ENTRY: Final = 2**64 - 1
BEGIN_SECONDS: Final = 120.0
"""The broker writes down what is in memory, on a disk that is busy."""


class SubscriptionPlace(TypedDict, total=False):
    """Where a subscription begins or goes on: one of these; the position of one partition."""

    earliest: bool
    latest: bool
    timestamp_ms: int
    position: Position


class Skipped(TypedDict, total=False):
    """What a subscription skips: one of these; `count` is of entries."""

    count: int
    all: bool
    before_ms: int


class Administration:
    """Administers the node's broker; calls may be made from many threads or greenlets.

    All raise what the broker answers, BackendUnavailableError and BackendTimeoutError.
    """

    def __init__(self, link: PulsarLink, timeout: float) -> None:
        self._link = link
        self._timeout = timeout
        self._calls = BoundedSemaphore(MAX_CONCURRENT_CALLS)

    def partitions(self, topic: TopicName, *, create: bool = False) -> int:
        """Return the number of partitions, 0: not partitioned; raise TopicNotFoundError.

        With `create`, a missing topic is one that would be made by its first use.
        """
        return partition_count(self._call, topic, create=create)

    def look_up(self, topic: TopicName) -> None:
        """Return if the broker serves a topic, or would make it; raise NamespaceNotFoundError."""

        def make(request_id: int) -> pb.BaseCommand:
            command = pb.CommandLookupTopic(topic=str(topic), request_id=request_id)
            return pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=command)

        answer = self._call(make)
        if answer.response == pb.CommandLookupTopicResponse.Failed:
            raise refusal(answer.error, answer.message)

    def names(self, namespace: str, mode: str) -> list[str]:
        """Return the topics of a namespace that exists, each partition by its own name.

        The mode is one of MODES. Raises NamespaceNotFoundError.
        """
        self.namespace(namespace)

        def make(request_id: int) -> pb.BaseCommand:
            command = pb.CommandGetTopicsOfNamespace(
                namespace=namespace, request_id=request_id, mode=mode
            )
            kind = pb.BaseCommand.GET_TOPICS_OF_NAMESPACE
            return pb.BaseCommand(type=kind, getTopicsOfNamespace=command)

        return list(self._call(make).topics)

    def topics(self, namespace: str) -> Iterator[TopicInfo]:
        """Yield the topics of a namespace that exists; raise NamespaceNotFoundError."""
        self.namespace(namespace)
        request = npb.ListTopics(namespace=namespace)
        for found in self._listed("topics", after("topic"), list_topics=request):
            yield conversions.TOPIC_INFO.decode(found)

    def create_topic(
        self, topic: TopicName, partitions: int, properties: Mapping[str, str]
    ) -> None:
        """Create a topic, with 0 partitions one that is not partitioned; raise TopicExistsError."""
        command = npb.CreateTopic(
            topic=str(topic), partitions=partitions, properties=conversions.to_pairs(properties)
        )
        self._ask(again=False, create_topic=command)

    def delete_topic(self, topic: TopicName) -> None:
        """Delete a topic with all that it holds; raise TopicNotFoundError."""
        self._ask(again=False, delete_topic=npb.TopicRef(topic=str(topic)))

    def grow(self, topic: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions; raise TopicNotFoundError, NotAllowedError."""
        self._ask(update_partitions=npb.UpdatePartitions(topic=str(topic), partitions=partitions))

    def terminate(self, topic: TopicName) -> list[Position]:
        """Let a topic take no more messages; return the last position of each partition.

        Its entry is -1 where a partition has none.
        """
        found = self._ask(terminate_topic=npb.TopicRef(topic=str(topic))).last_positions
        return [
            Position(p.ledgerId, -1 if p.entryId == _NO_ENTRY else p.entryId, p.partition)
            for p in found
        ]

    def describe(self, topic: TopicName) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""
        return described(lambda request: self._ask(describe_topic=request), topic)

    def clients(self, topic: TopicName) -> Iterator[ClientInfo]:
        """Yield the producers and consumers of a topic; raise TopicNotFoundError."""

        def turn(request: Any, page: Any) -> None:
            request.after += len(page)

        request = npb.DescribeClients(topic=str(topic))
        for found in self._listed("clients", turn, describe_clients=request):
            yield conversions.CLIENT.decode(found)

    def cursors(self, topic: TopicName, *, earliest: bool = False) -> Iterator[CursorDescription]:
        """Yield where the subscriptions of a topic stand; raise TopicNotFoundError.

        With `earliest` also when the first message of each backlog was stored.
        """
        request = npb.DescribeCursors(topic=str(topic), earliest=earliest)
        for found in self._listed("cursors", after_cursor, describe_cursors=request):
            yield conversions.CURSOR.decode(found)

    def create_subscription(
        self, subscription: Subscription, **place: Unpack[SubscriptionPlace]
    ) -> None:
        """Make a subscription exist on all partitions; without a place it begins at the end."""
        place.pop("latest", None)
        command = npb.CreateSubscription(**_named(subscription), **_place(place))
        self._ask(create_subscription=command)

    def delete_subscription(self, subscription: Subscription, *, force: bool) -> None:
        """Delete a subscription; raise SubscriptionNotFoundError.

        Raises SubscriptionBusyError for one with consumers, unless by `force`.
        """
        command = npb.SubscriptionRef(**_named(subscription), force=force)
        self._ask(again=False, delete_subscription=command)

    def reset_subscription(
        self, subscription: Subscription, **place: Unpack[SubscriptionPlace]
    ) -> None:
        """Move a subscription; raise SubscriptionNotFoundError."""
        command = npb.ResetSubscription(**_named(subscription), **_place(place))
        self._ask(reset_subscription=command)

    def skip(self, subscription: Subscription, **skipped: Unpack[Skipped]) -> None:
        """Acknowledge what comes next; raise SubscriptionNotFoundError."""
        command = npb.SkipMessages(**_named(subscription), **skipped)
        self._ask(again=False, skip_messages=command)

    def read_entry(self, topic: TopicName, choice: EntryChoice) -> StoredEntry | None:
        """Return an entry of a partition, None: there is none; raise TopicNotFoundError."""
        command = conversions.ENTRY_CHOICE.encode(choice)
        command.topic = str(topic)
        found = self._ask(read_entry=command)
        return conversions.STORED_ENTRY.decode(found.entry) if found.HasField("entry") else None

    def tenants(self) -> Iterator[Tenant]:
        """Yield the tenants by name."""
        for found in self._listed("tenants", after("name"), list_tenants=npb.ListNames()):
            yield conversions.TENANT.decode(found)

    def put_tenant(self, tenant: Tenant, *, exists: bool) -> None:
        """Create a tenant, or change one that `exists`.

        Raises ConflictError, NamespaceNotFoundError.
        """
        command = npb.PutTenant(tenant=conversions.TENANT.encode(tenant), exists=exists)
        self._ask(again=exists, put_tenant=command)

    def delete_tenant(self, name: str) -> None:
        """Delete a tenant without namespaces; raise NamespaceNotFoundError, ConflictError."""
        self._ask(again=False, delete_tenant=name)

    def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant; raise NamespaceNotFoundError."""
        request = npb.ListNames(under=tenant)
        found = self._listed("namespaces", after("name"), list_namespaces=request)
        return [namespace.name for namespace in found]

    def namespace(self, name: str) -> Namespace:
        """Return a namespace; raise NamespaceNotFoundError."""
        return conversions.NAMESPACE.decode(self._ask(get_namespace=name).namespaces[0])

    def create_namespace(self, name: str, policies: NamespacePolicies) -> None:
        """Create a namespace of a tenant that exists; raise ConflictError."""
        encoded = conversions.NAMESPACE_POLICIES.encode(policies)
        command = npb.CreateNamespace(namespace=name, policies=encoded)
        self._ask(again=False, create_namespace=command)

    def delete_namespace(self, name: str, *, force: bool) -> None:
        """Delete a namespace, by force with all its topics; raise NamespaceNotFoundError."""
        command = npb.DeleteNamespace(namespace=name, force=force)
        self._ask(again=False, delete_namespace=command)

    def change_policies(self, of: str | TopicName, policies: Mapping[str, Any]) -> None:
        """Set policies of a namespace or topic by their names, and clear those that are None.

        Raises NamespaceNotFoundError, TopicNotFoundError, BadRequestError.
        """
        given = {name: value for name, value in policies.items() if value is not None}
        name = {"topic": str(of)} if isinstance(of, TopicName) else {"namespace": of}
        command = npb.ChangePolicies(
            **name, policies=npb.Policies(**given), clear=policies.keys() - given
        )
        self._ask(change_policies=command)

    def schemas(self, topic: TopicName, first: int = 0) -> Iterator[SchemaVersion]:
        """Yield the versions of a topic's schema from one on; raise TopicNotFoundError."""

        def turn(request: Any, page: Any) -> None:
            request.first = page[-1].version + 1

        request = npb.ListSchemas(topic=str(topic), first=first)
        for found in self._listed("schemas", turn, list_schemas=request):
            yield conversions.SCHEMA_VERSION.decode(found)

    def put_schema(self, topic: TopicName, schema: Schema, *, try_only: bool = False) -> int:
        """Give a topic a schema and return its version; raise IncompatibleSchemaError.

        With `try_only` nothing is stored.
        """
        command = npb.PutSchema(topic=str(topic), schema=schemas.to_wire(schema), try_only=try_only)
        version: int = self._ask(put_schema=command).schemas[0].version
        return version

    def delete_schema(self, topic: TopicName) -> int:
        """Let a topic have no schema from now on; return the version that says so."""
        answer = self._ask(again=False, delete_schema=npb.TopicRef(topic=str(topic)))
        version: int = answer.schemas[0].version
        return version

    def metrics(self) -> str:
        """Return the metrics of the node in Prometheus' format."""
        text: str = self._ask(get_metrics=npb.Nothing()).metrics
        return text

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call of `broker/topics/calls.py`; raise what it raises."""
        command = npb.AdminCall(name=name, arguments=orjson.dumps(arguments))
        return orjson.loads(self._ask(call=command).value)

    def _listed(
        self, field: str, turn: Callable[[Any, Any], None], **request: Any
    ) -> Iterator[Any]:
        ((name, first),) = request.items()
        return listed(lambda page: self._ask(**{name: page}), first, field, turn)

    def _ask(self, *, again: bool = True, **request: Any) -> Any:
        """Return the answer to a request, which is not made `again` where that could do harm."""
        command = npb.CommandAdmin(**request)
        return self._in_time(lambda deadline: ask(self._link, command, deadline, again=again))

    def _call(self, make: Callable[[int], pb.BaseCommand]) -> Any:
        return self._in_time(lambda deadline: self._link.call(make, deadline))

    def _in_time(self, call: Callable[[float], Any]) -> Any:
        deadline = deadline_in(self._timeout)
        if not self._calls.acquire(timeout=max(0.001, deadline - time.monotonic())):
            raise BackendTimeoutError("the administration has too much to do")
        try:
            return call(deadline)
        finally:
            self._calls.release()


def _named(subscription: Subscription) -> dict[str, Any]:
    return {"topic": str(subscription.topic), "subscription": subscription.name}


def _place(place: SubscriptionPlace) -> dict[str, Any]:
    fields: dict[str, Any] = {**place}
    if position := place.get("position"):
        fields["position"] = conversions.to_message_id(position)
    return fields


class BackupCalls:
    """Begins and ends the backup of a broker's folder."""

    def __init__(self, link: PulsarLink) -> None:
        self._link = link

    def begin(self) -> BackupCut:
        """Have the broker hold its files; raise ConflictError if another backup is taken."""
        command = npb.CommandAdmin(begin_backup=npb.Nothing())
        cut = ask(self._link, command, time.monotonic() + BEGIN_SECONDS, again=False).backup
        if not cut.HasField("journal_size"):
            return BackupCut(cut.id, None)
        journal = JournalCut(cut.journal_first, cut.journal_last, cut.journal_size)
        return BackupCut(cut.id, journal)

    def end(self, cut: BackupCut) -> None:
        """Let the files go.

        Raises ConflictError if they were not held until now, BackendUnavailableError if the broker
        is gone.
        """
        command = npb.CommandAdmin(end_backup=cut.id)
        ask(self._link, command, time.monotonic() + BEGIN_SECONDS, again=False)
