"""The consumers of one connection: what a SUBSCRIBE may ask for, opening them, what they are sent.

Theory of operation. A consumer of a subscription that exists is opened within the call. A new
subscription, a schema, a start by time and a compacted topic wait for a disk, in a task; frames for
a consumer that is being opened wait for it (`HandleTable`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from router.broker.consume import (
    REPLICATED,
    ClientConsumer,
    ConsumerFlow,
    HashRangeError,
    KeyPolicy,
    Partition,
    PartitionSubscription,
    SubscriptionType,
)
from router.broker.consume.dispatch.non_persistent import NOT_STORED, NonPersistentPartition
from router.broker.consume.visible import Visible
from router.broker.pulsar import answers
from router.broker.pulsar.client import (
    AnySubscription,
    AttachedConsumer,
    ClientLink,
    HandleTable,
    PulsarClient,
)
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import request_failed
from router.broker.pulsar.positions import start_entry
from router.broker.pulsar.schemas import admit_reader
from router.broker.storage import PULSAR_FORMAT, DamagedError, Entry
from router.broker.topics.non_persistent import is_non_persistent
from router.errors import (
    BadRequestError,
    NotAllowedError,
    RouterError,
    SubscriptionNotFoundError,
)
from router.errors.quoting import quoted
from router.wire.pulsar import Frame, broker_entry_prefix, command, encode_parts
from router.wire.pulsar import pulsar_pb2 as pb

MAX_CONSUMERS: Final = 20_000
MAX_NAME: Final = 1_024
MAX_SIZE: Final = 1 << 16
MAX_METADATA_CHARACTERS: Final = 2_048
OWN_PROPERTY: Final = "router-"
"""Begins the properties that the router's own clients use."""
EXISTING: Final = "router-existing"
"""A consumer with it does not create the subscription: by Pulsar's own rules that would begin where
this consumer happens to attach, and not where its group was created to begin."""
LEASED: Final = "router-leased"
"""A router that holds the lease of the partition sets it: another router that reads it has lost
the lease."""

_KINDS: Final = {
    pb.CommandSubscribe.Exclusive: SubscriptionType.EXCLUSIVE,
    pb.CommandSubscribe.Shared: SubscriptionType.SHARED,
    pb.CommandSubscribe.Failover: SubscriptionType.FAILOVER,
    pb.CommandSubscribe.Key_Shared: SubscriptionType.KEY_SHARED,
}
_READS_COMPACTED: Final = (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)


class PulsarConsumers(ClientLink):
    """What one connection has open or opens; `found`: the open consumers by number."""

    entry_format = PULSAR_FORMAT

    def __init__(self, client: PulsarClient, log: LogContext) -> None:
        super().__init__(client)
        self._log = log
        self._topics = log.topics
        self._handles: HandleTable[AttachedConsumer] = HandleTable(MAX_CONSUMERS, client.handle)
        log.consumers.add(self._handles)
        self.found = self._handles.found
        self.defer = self._handles.defer
        self._tally = log.topics.tally
        self._transcoder = log.transcoder
        # Filled for each entry again: building them costs more than all else that sending takes.
        self._message = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
        self._body = self._message.message
        self._place = self._body.message_id
        self._broker_entry = pb.BrokerEntryMetadata()

    def open(self, frame: Frame) -> None:
        """Open a consumer; a number that is taken already is answered with success."""
        request = frame.command.subscribe
        if request.consumer_id in self.found:
            self._client.send(answers.success(request.request_id))
            return
        if self._handles.defer(request.consumer_id, frame):
            return
        try:
            self._check(request)
            subscription = self._available(request)
            if subscription is not None:
                self._attach(subscription, request)
                return
        except (RouterError, HashRangeError) as failure:
            self._client.send(request_failed(request.request_id, failure))
            return
        self._handles.begin(request.consumer_id)
        self._connection.spawn(self._open_later(request))

    def close(self, frame: Frame) -> None:
        """Close a consumer; one that is not open is closed."""
        request = frame.command.close_consumer
        if self._handles.defer(request.consumer_id, frame):
            return
        consumer = self.found.pop(request.consumer_id, None)
        if consumer is not None:
            consumer.subscription.detach(consumer)
        self._client.send(answers.success(request.request_id))

    def close_all(self) -> None:
        """Detach all consumers; the connection is closed."""
        self._log.consumers.discard(self._handles)
        for consumer in self._handles:
            consumer.subscription.detach(consumer)
        self._handles.clear()

    # What delivery asks of a consumer's connection: router.broker.consume.ConsumerLink.

    @property
    def writable(self) -> bool:
        """Return whether the connection takes entries now."""
        return self._connection.writable

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when the connection is writable again."""
        self._connection.when_writable(resume)

    def deliver(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        """Send an entry to the client, one of another format as a Pulsar entry.

        Raises UnreadableEntryError if it cannot be made into one.
        """
        payload = entry.payload
        if entry.format != PULSAR_FORMAT:
            payload = self._transcoder.payload(consumer.ledger_id, entry, PULSAR_FORMAT)
        self._fill(consumer, entry, redeliveries, ack_set)
        stored = entry.index != NOT_STORED
        if stored:
            self._tally.dispatched += 1
            self._tally.delivered += entry.messages
        if not (stored and self._client.wants_broker_entry):
            self._connection.write(*encode_parts(self._message, payload))
            return
        self._broker_entry.broker_timestamp = entry.timestamp_ms
        self._broker_entry.index = entry.index
        prefix = broker_entry_prefix(self._broker_entry)
        self._connection.write(*encode_parts(self._message, prefix, payload))

    def prepare(self, ledger_id: int, entries: Sequence[Entry]) -> asyncio.Future[Any] | None:
        """Begin to make entries of another format into Pulsar entries, unless that is quick."""
        return self._transcoder.prepare(ledger_id, entries, PULSAR_FORMAT)

    def consumer_closed(self, consumer: ClientConsumer) -> None:
        """Send a notice that the broker closed the consumer."""
        self.found.pop(consumer.consumer_id, None)
        kind, number = pb.BaseCommand.CLOSE_CONSUMER, consumer.consumer_id
        self._client.send(command(kind, consumer_id=number, request_id=answers.NO_REQUEST))

    def activity_changed(self, consumer: ClientConsumer, active: bool) -> None:
        """Send a notice whether the failover consumer is the active one."""
        kind, number = pb.BaseCommand.ACTIVE_CONSUMER_CHANGE, consumer.consumer_id
        change = command(kind, consumer_id=number, is_active=active)
        if consumer.permits:
            # Ahead of the messages that it gets as the active one.
            self._client.send(change)
        else:
            # Behind the answer to the SUBSCRIBE that brought it about.
            self._connection.call_soon(partial(self._client.send, change))

    def reached_end(self, consumer: ClientConsumer) -> None:
        """Send a notice that the client has acknowledged all that there will ever be."""
        end = command(pb.BaseCommand.REACHED_END_OF_TOPIC, consumer_id=consumer.consumer_id)
        self._connection.call_soon(partial(self._client.send, end))

    def _fill(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        body, place = self._body, self._place
        body.consumer_id = consumer.consumer_id
        body.redelivery_count = redeliveries
        place.ledgerId = consumer.ledger_id
        place.entryId = entry.entry_id
        place.partition = consumer.partition_index
        if ack_set or body.ack_set:
            body.ack_set[:] = ack_set
        if consumer.epoch is not None:
            body.consumer_epoch = consumer.epoch
        elif body.HasField("consumer_epoch"):
            body.ClearField("consumer_epoch")

    def _check(self, request: pb.CommandSubscribe) -> None:
        if self._handles.full:
            raise NotAllowedError(f"a connection has at most {MAX_CONSUMERS} consumers")
        if not request.subscription or len(request.subscription) > MAX_NAME:
            raise BadRequestError(f"a subscription's name has 1 to {MAX_NAME} characters")
        if len(request.consumer_name) > MAX_NAME:
            raise BadRequestError(f"a consumer's name has at most {MAX_NAME} characters")
        if request.ByteSize() > MAX_SIZE:
            raise BadRequestError("the properties of the subscription are too large")
        if request.read_compacted:
            if is_non_persistent(request.topic):
                raise NotAllowedError("readCompacted only valid on persistent topics")
            if request.subType not in _READS_COMPACTED:
                raise NotAllowedError(
                    "readCompacted only allowed on failover or exclusive subscriptions"
                )

    def _available(self, request: pb.CommandSubscribe) -> AnySubscription | None:
        """Return the subscription if there is nothing to wait for."""
        partition = self._topics.attachable(request.topic, create=request.force_topic_creation)
        if isinstance(partition, NonPersistentPartition):
            return partition.subscription(request.subscription, _KINDS[request.subType])
        if partition is None or request.HasField("schema") or request.read_compacted:
            return None
        if not request.durable and not request.start_message_rollback_duration_sec:
            return partition.read_from(request.subscription, _start_of(partition, request))
        subscription = partition.subscriptions.get(request.subscription)
        known = subscription is not None and subscription.durable and not subscription.passive
        return subscription if known else None

    async def _open_later(self, request: pb.CommandSubscribe) -> None:
        try:
            partition = await self._topics.open(request.topic, create=request.force_topic_creation)
            await admit_reader(self._log.schemas, partition, request)
            subscription = await self._subscription(partition, request)
            visible = None
            if request.read_compacted and self._log.compactor is not None:
                visible = await self._log.compactor.view(partition)
            if not self._connection.closed:
                self._attach(subscription, request, visible)
        except (RouterError, HashRangeError, DamagedError, OSError) as failure:
            self._client.send(request_failed(request.request_id, failure))
        finally:
            self._handles.settle(request.consumer_id)

    async def _subscription(
        self, partition: Partition, request: pb.CommandSubscribe
    ) -> PartitionSubscription:
        start = _start_of(partition, request)
        if back := request.start_message_rollback_duration_sec:
            start = await partition.ledger.find_time(self._topics.now_ms() - back * 1000)
        if not request.durable:
            return partition.read_from(request.subscription, start)
        if request.subscription not in partition.subscriptions and _is_set(request, EXISTING):
            raise SubscriptionNotFoundError(f"there is no {quoted(request.subscription)}")
        properties = {pair.key: pair.value for pair in request.subscription_properties}
        if request.replicate_subscription_state:
            properties[REPLICATED] = "true"
        return await partition.subscribe(request.subscription, start, properties)

    def _attach(
        self,
        subscription: AnySubscription,
        request: pb.CommandSubscribe,
        visible: Visible | None = None,
    ) -> None:
        consumer = AttachedConsumer(
            link=self,
            consumer_id=request.consumer_id,
            name=request.consumer_name or self._log.new_name("consumer"),
            subscription=subscription,
            priority=request.priority_level,
            keys=_keys_of(request),
            since_ms=self._topics.now_ms(),
            metadata=kept_metadata(request.metadata),
            flow=ConsumerFlow(monotonic()),
            epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
            # By any schema, so that it does not exclude another's.
            reads_any=request.HasField("schema") and request.schema.type == pb.Schema.AutoConsume,
            leased=_is_set(request, LEASED),
            visible=visible,
        )
        subscription.attach(consumer, _KINDS[request.subType])
        self.found[request.consumer_id] = consumer
        epoch = None
        if isinstance(subscription, PartitionSubscription):
            subscription.replicated |= request.replicate_subscription_state
            epoch = subscription.epoch if self._client.ours else None
        self._client.send(answers.success(request.request_id, epoch))


def kept_metadata(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    """Return what a client says of its producer or consumer, as far as statistics keep it."""
    kept: dict[str, str] = {}
    size = 0
    for pair in pairs:
        size += len(pair.key) + len(pair.value)
        if size > MAX_METADATA_CHARACTERS:
            break
        if not pair.key.startswith(OWN_PROPERTY):
            kept[pair.key] = pair.value
    return kept


def _is_set(request: pb.CommandSubscribe, name: str) -> bool:
    return any(pair.key == name and pair.value == "true" for pair in request.metadata)


def _keys_of(request: pb.CommandSubscribe) -> KeyPolicy:
    """Return which keys the consumer asks for."""
    meta = request.keySharedMeta
    return KeyPolicy(
        sticky=meta.keySharedMode == pb.STICKY,
        ranges=tuple((part.start, part.end) for part in meta.hashRanges),
        out_of_order=meta.allowOutOfOrderDelivery,
    )


def _start_of(partition: Partition, request: pb.CommandSubscribe) -> int:
    """Return the entry that a new subscription begins with."""
    if not request.durable and request.HasField("start_message_id"):
        return start_entry(partition.ledger, request.start_message_id)
    if request.initialPosition == pb.CommandSubscribe.Earliest:
        return partition.ledger.first_entry
    return partition.visible.end_entry
