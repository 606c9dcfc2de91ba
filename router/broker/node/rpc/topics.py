"""Requests of the node protocol about topics, and their answers, from and to terms of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from router.broker.consume import StartPosition
from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.entries import Transcoder
from router.broker.storage import PULSAR_FORMAT, DamagedError
from router.broker.topics import changes
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.calls import make_call
from router.broker.topics.cursor_administration import EntryAck
from router.broker.topics.descriptions import MAX_SUBSCRIPTIONS_PER_PAGE, Place
from router.broker.topics.extents import PartitionExtent, PartitionRange
from router.broker.topics.namespaces import NO_POLICIES, changed
from router.errors import BadRequestError, ReadFailedError, TopicNotFoundError
from router.model import Position
from router.model.administration import (
    CursorDescription,
    Namespace,
    SchemaVersion,
    StoredEntry,
    Tenant,
)
from router.wire.node import conversions
from router.wire.node import node_pb2 as npb
from router.wire.node.conversions import MessageCodec, from_pairs
from router.wire.pulsar import MAX_MESSAGE_SIZE, schemas
from router.wire.pulsar import pulsar_pb2 as pb

NO_ENTRY: Final = 2**64 - 1
MAX_TOPICS_BYTES: Final = 192 * 1024
"""Of a page of topics or clients; more could have more fields than a frame may have."""
MAX_TOPICS: Final = 1_000
"""Of a page: no publish is served while one is made, which takes about 16 us a topic."""
MAX_SCHEMAS_BYTES: Final = 512 * 1024
"""Of the definitions of a page."""
MAX_SCHEMAS: Final = 100
"""Of a page."""
MAX_NAMES: Final = 1_000
"""Of a page of tenants or namespaces."""
MAX_CLIENTS: Final = 1_000
"""Of a page of producers and consumers."""
MAX_SKIPPED_CLIENTS: Final = 1 << 32
"""Of all pages before one."""
MAX_LOCATED_PARTITIONS: Final = 1_000
"""In one answer, but for those of its last topic."""

_Named = TypeVar("_Named", Tenant, Namespace)
Response = npb.CommandAdminResponse
Answer = Callable[[Any, Response], Awaitable[None]]
"""Answers one kind of request; raises RouterError, StoreError."""

_EXTENT: Final = MessageCodec(PartitionExtent, npb.Extent)
_RANGE: Final = MessageCodec(PartitionRange, npb.PartitionRange)


class TopicRequests:
    """Answers requests about topics: `answers`, by the fields of CommandAdmin.

    They raise RouterError, StoreError.
    """

    def __init__(self, admin: TopicAdmin, transcoder: Transcoder) -> None:
        self._admin = admin
        self._topics = admin.topics
        cursors, namespaces = CursorRequests(admin, transcoder), NamespaceRequests(admin)
        answers: dict[str, Answer] = {
            "create_topic": self._create,
            "delete_topic": self._delete,
            "list_topics": self._list,
            "describe_topic": self._describe,
            "describe_clients": self._describe_clients,
            "terminate_topic": self._terminate,
            "update_partitions": self._grow,
            "locate_messages": self._locate,
            "call": self._call,
            "check_space": self._check_space,
            "create_subscription": cursors.create,
            "delete_subscription": cursors.delete,
            "reset_subscription": cursors.reset,
            "acknowledge": cursors.acknowledge,
            "describe_cursors": cursors.describe,
            "skip_messages": cursors.skip,
            "read_entry": cursors.read,
            "list_tenants": namespaces.tenants,
            "put_tenant": namespaces.put_tenant,
            "delete_tenant": namespaces.delete_tenant,
            "list_namespaces": namespaces.namespaces,
            "get_namespace": namespaces.namespace,
            "create_namespace": namespaces.create,
            "delete_namespace": namespaces.delete,
            "change_policies": namespaces.change_policies,
            "list_schemas": self._list_schemas,
            "put_schema": self._put_schema,
            "delete_schema": self._delete_schema,
        }
        self.answers = {name: _reading(answer) for name, answer in answers.items()}

    async def _call(self, command: npb.AdminCall, response: Response) -> None:
        response.value = await make_call(self._admin.calls, command.name, command.arguments)

    async def _create(self, command: npb.CreateTopic, _: Response) -> None:
        policies = conversions.POLICIES.decode(command.policies)
        properties = from_pairs(command.properties)
        await self._admin.create(command.topic, command.partitions, policies, properties)

    async def _delete(self, command: npb.TopicRef, _: Response) -> None:
        await self._admin.delete(command.topic)

    async def _check_space(self, _command: npb.Nothing, _: Response) -> None:
        self._topics.store.check_space()

    async def _grow(self, command: npb.UpdatePartitions, _: Response) -> None:
        await changes.grow(self._topics, self._topics.parse(command.topic), command.partitions)

    async def _terminate(self, command: npb.TopicRef, response: Response) -> None:
        for last in await changes.terminate(self._topics, self._topics.parse(command.topic)):
            entry = NO_ENTRY if last.entry < 0 else last.entry
            response.last_positions.add(
                ledgerId=last.ledger, entryId=entry, partition=last.partition
            )

    async def _describe(self, command: npb.TopicRef, response: Response) -> None:
        stats = await self._admin.describe(command.topic, _after(command))
        response.stats.CopyFrom(conversions.TOPIC_STATS.encode(stats))
        response.more = len(stats.subscriptions) == MAX_SUBSCRIPTIONS_PER_PAGE

    async def _describe_clients(self, command: npb.DescribeClients, response: Response) -> None:
        found = islice(
            self._admin.clients(command.topic), min(command.after, MAX_SKIPPED_CLIENTS), None
        )
        page = map(conversions.CLIENT.encode, found)
        response.more = _fill(response.clients, page, MAX_TOPICS_BYTES, MAX_CLIENTS)

    async def _list(self, command: npb.ListTopics, response: Response) -> None:
        namespace = command.namespace if command.HasField("namespace") else None
        found = self._topics.listed_after(command.after, namespace)
        page = map(conversions.TOPIC_INFO.encode, found)
        response.more = _fill(response.topics, page, MAX_TOPICS_BYTES, MAX_TOPICS)

    async def _locate(self, command: npb.LocateMessages, response: Response) -> None:
        """Answer the extents of topics in the order of the question, or the first of them.

        Each answer has the first topic at least, so that the client makes progress. A topic that
        does not exist is answered as missing.
        """
        partitions = 0
        for topic in command.topics:
            if partitions >= MAX_LOCATED_PARTITIONS:
                response.more = True
                return
            located = response.located.add()
            try:
                found = await self._admin.extents.of(topic.topic, map(_RANGE.decode, topic.ranges))
            except TopicNotFoundError:
                located.missing = True
                found = []
            located.extents.extend(map(_EXTENT.encode, found))
            partitions += max(1, len(found))
            # The ledgers of an idle topic answer from memory, so nothing above suspends.
            await asyncio.sleep(0)

    async def _list_schemas(self, command: npb.ListSchemas, response: Response) -> None:
        found = await self._admin.schemas.versions(command.topic, command.first)
        page = (
            conversions.SCHEMA_VERSION.encode(
                SchemaVersion(number, version.schema, version.created_ms)
            )
            for number, version in found
            if version.schema is not None
        )
        response.more = _fill(response.schemas, page, MAX_SCHEMAS_BYTES, MAX_SCHEMAS)

    async def _put_schema(self, command: npb.PutSchema, response: Response) -> None:
        schema = schemas.from_wire(command.schema)
        version = await self._admin.schemas.put(command.topic, schema, try_only=command.try_only)
        response.schemas.add(version=version)

    async def _delete_schema(self, command: npb.TopicRef, response: Response) -> None:
        response.schemas.add(version=await self._admin.schemas.delete(command.topic))


class CursorRequests:
    """Answers requests about subscriptions."""

    def __init__(self, admin: TopicAdmin, transcoder: Transcoder) -> None:
        self._cursors = admin.cursors
        self._transcoder = transcoder

    async def create(self, command: npb.CreateSubscription, _: Response) -> None:
        """Make a subscription exist."""
        await self._cursors.create(command.topic, command.subscription, _start(command))

    async def delete(self, command: npb.SubscriptionRef, _: Response) -> None:
        """Delete a subscription."""
        await self._cursors.delete(command.topic, command.subscription, force=command.force)

    async def reset(self, command: npb.ResetSubscription, _: Response) -> None:
        """Move a subscription."""
        given = [command.earliest, command.latest, command.HasField("timestamp_ms")]
        given += [command.HasField("position"), bool(command.positions)]
        if given.count(True) != 1:
            raise BadRequestError("exactly one of earliest, latest, a time, a position is needed")
        to = _starts(command.positions) if command.positions else _start(command)
        await self._cursors.reset(command.topic, command.subscription, to)

    async def acknowledge(self, command: npb.AcknowledgePositions, _: Response) -> None:
        """Acknowledge positions."""
        acks = [
            EntryAck(place.ledgerId, place.entryId, tuple(place.ack_set), place.router_epoch)
            for place in command.message_id
        ]
        await self._cursors.acknowledge(
            command.topic, command.subscription, acks, cumulative=command.cumulative
        )

    async def describe(self, command: npb.DescribeCursors, response: Response) -> None:
        """Answer where subscriptions stand on each partition."""
        if command.HasField("subscription"):
            found = await self._cursors.describe(command.topic, command.subscription)
        else:
            found, response.more = await self._cursors.describe_all(
                command.topic, _after(command), earliest=command.earliest
            )
        response.cursors.extend(map(_cursor_state, found))

    async def skip(self, command: npb.SkipMessages, _: Response) -> None:
        """Acknowledge what comes next."""
        if [command.HasField("count"), command.all, command.HasField("before_ms")].count(True) != 1:
            raise BadRequestError("exactly one of a count, all and a time is needed")
        await self._cursors.skip(
            command.topic,
            command.subscription,
            count=command.count if command.HasField("count") else None,
            before_ms=command.before_ms if command.HasField("before_ms") else None,
        )

    async def read(self, command: npb.ReadEntry, response: Response) -> None:
        """Answer one entry of a partition, if there is one."""
        choice = conversions.ENTRY_CHOICE.decode(command)
        named = [choice.entry is not None, choice.subscription is not None]
        if [*named, choice.earliest, choice.latest].count(True) != 1 or choice.nth < 1:
            raise BadRequestError("exactly one of entry, subscription, earliest, latest is needed")
        partition, entry = await self._cursors.read(command.topic, choice)
        if entry is None:
            return
        try:
            ledger_id = partition.ledger.id
            payload = await self._transcoder.transcoded(ledger_id, [entry], PULSAR_FORMAT)
            live, last = partition.visible.messages(entry), -1
            if live is not None:
                last = live.bit_length() - 1
                payload = await self._transcoder.left(entry, payload, PULSAR_FORMAT, live)
        except UnreadableEntryError as failure:
            raise ReadFailedError(f"the entry {entry.entry_id}: {failure}") from failure
        if len(payload) > MAX_MESSAGE_SIZE:
            raise ReadFailedError(f"the entry {entry.entry_id} is too large to be shown")
        place = Position(partition.ledger.id, entry.entry_id, partition.index, last)
        found = StoredEntry(place, payload, entry.timestamp_ms, entry.index)
        response.entry.CopyFrom(conversions.STORED_ENTRY.encode(found))


class NamespaceRequests:
    """Answers requests about tenants and namespaces."""

    def __init__(self, admin: TopicAdmin) -> None:
        self._admin = admin
        self._namespaces = admin.namespaces

    async def tenants(self, command: npb.ListNames, response: Response) -> None:
        """Answer a page of tenants."""
        page, response.more = _page(self._namespaces.tenants(), command.after)
        response.tenants.extend(map(conversions.TENANT.encode, page))

    async def put_tenant(self, command: npb.PutTenant, _: Response) -> None:
        """Create or change a tenant."""
        exists = command.exists if command.HasField("exists") else None
        await self._namespaces.put_tenant(conversions.TENANT.decode(command.tenant), exists=exists)

    async def delete_tenant(self, command: str, _: Response) -> None:
        """Delete a tenant."""
        await self._namespaces.delete_tenant(command)

    async def namespaces(self, command: npb.ListNames, response: Response) -> None:
        """Answer a page of the namespaces of a tenant, or of all."""
        under = command.under if command.HasField("under") else None
        page, response.more = _page(self._namespaces.namespaces(under), command.after)
        response.namespaces.extend(map(conversions.NAMESPACE.encode, page))

    async def namespace(self, command: str, response: Response) -> None:
        """Answer one namespace."""
        found = self._namespaces.namespace(command)
        response.namespaces.append(conversions.NAMESPACE.encode(found))

    async def create(self, command: npb.CreateNamespace, _: Response) -> None:
        """Create a namespace."""
        policies = changed(NO_POLICIES, _given(command.policies), ())
        await self._namespaces.create(command.namespace, policies)

    async def delete(self, command: npb.DeleteNamespace, _: Response) -> None:
        """Delete a namespace, with all its topics if that is requested."""
        await self._admin.delete_namespace(command.namespace, force=command.force)

    async def change_policies(self, command: npb.ChangePolicies, _: Response) -> None:
        """Change policies of a namespace or of a topic."""
        if command.HasField("namespace") == command.HasField("topic"):
            raise BadRequestError("exactly one of a namespace and a topic is needed")
        new = _given(command.policies)
        if command.HasField("namespace"):
            await self._namespaces.change(command.namespace, new, command.clear)
        else:
            name = self._admin.topics.parse(command.topic)
            await changes.change_policies(self._admin.topics, name, new, command.clear)


def _reading(answer: Answer) -> Answer:
    """Return what answers a request, and raises ReadFailedError if the disk cannot be read."""

    async def read(command: Any, response: Response) -> None:
        try:
            await answer(command, response)
        except (DamagedError, OSError) as failure:
            raise ReadFailedError(str(failure)) from failure

    return read


def _fill(
    listed: Any, messages: Iterable[Message], max_bytes: int, max_messages: int = 1 << 32
) -> bool:
    """Append messages to a list of an answer until it is full; return whether some are left."""
    size = 0
    for number, message in enumerate(messages):
        if size > max_bytes or number >= max_messages:
            return True
        listed.append(message)
        size += message.ByteSize()
    return False


def _after(command: npb.TopicRef | npb.DescribeCursors) -> Place | None:
    """Return the last subscription of the page before; None: this is the first page."""
    if not command.HasField("after_subscription"):
        return None
    return command.after_partition, command.after_subscription


def _start(command: npb.CreateSubscription | npb.ResetSubscription) -> StartPosition:
    if command.HasField("position"):
        place = command.position
        return StartPosition(position=(place.ledgerId, place.entryId), passed=place.batch_index)
    when = command.timestamp_ms if command.HasField("timestamp_ms") else None
    return StartPosition(command.earliest, when)


def _starts(named: Iterable[pb.MessageIdData]) -> dict[int, StartPosition]:
    """Return where partitions go on, each by its number."""
    found: dict[int, StartPosition] = {}
    for place in named:
        if place.partition in found:
            raise BadRequestError("a partition is named twice")
        found[place.partition] = StartPosition(position=(place.ledgerId, place.entryId))
    return found


def _page(found: Iterable[_Named], after: str) -> tuple[list[_Named], bool]:
    """Return a page of what is behind a name, and whether there is more."""
    rest = [named for named in found if named.name > after]
    return rest[:MAX_NAMES], len(rest) > MAX_NAMES


def _given(policies: npb.Policies) -> dict[str, Any]:
    """Return the policies that are set."""
    return {field.name: value for field, value in policies.ListFields()}


def _cursor_state(found: CursorDescription) -> npb.CursorState:
    state = conversions.CURSOR.encode(found)
    state.partial.extend(
        pb.MessageIdData(
            ledgerId=found.ledger_id,
            entryId=part.entry,
            ack_set=part.ack_set,
            batch_size=part.messages or None,
        )
        for part in found.partial
    )
    return state
