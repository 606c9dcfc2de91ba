"""All consumers of a broker: made, found, deleted, restored, and reached by acknowledgements.

Theory of operation. The consumers of a stream are in `Stream.consumers`. A durable one is a passive
subscription of the partition, whose properties hold its configuration and its first state; they are
on disk before the consumer is shown. The other dialects are kept out of these subscriptions by
their property OWNER, and of all subscriptions of a work queue. Changes of one stream's consumers
are made one after the other.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import Final

import orjson
import structlog

from router.broker.consume import LiveMember, PartitionSubscription
from router.broker.consume.membership.live_members import OWNER
from router.broker.nats.consumers.consumer import (
    ConsumerContext,
    ConsumerRecord,
    JetStreamConsumer,
    ack_rules,
)
from router.broker.nats.consumers.deliveries import DeliveryTally, steady_clock
from router.broker.nats.consumers.log import ConsumerLog, start_place
from router.broker.nats.consumers.reading import start_of
from router.broker.nats.consumers.services import ConsumerServices
from router.broker.nats.consumers.state import ConsumerState
from router.broker.nats.protocol.api import JetStreamApi
from router.broker.nats.protocol.hub import Hub
from router.broker.nats.protocol.pacing import Tasks
from router.broker.nats.streams.stream import Stream
from router.broker.nats.streams.streams import Streams
from router.broker.storage import DamagedError, StoreError, SubscriptionRecord
from router.broker.topics.topics import Topics
from router.errors import RouterError, SubscriptionLimitError
from router.metrics import Sample
from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.consumer_rules import check_consumer_update, check_new_consumer
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.policies import DeliverPolicy, Retention
from router.wire.nats.jetstream.requests import ConsumerAction
from router.wire.nats.jetstream.times import format_time
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import overlaps

CONFIG_PROPERTY: Final = "nats.consumer"
STATE_PROPERTY: Final = "nats.consumer.start"
OWNER_NAME: Final = "JetStream consumer"
MAX_CONSUMERS: Final = 10_000
"""Of one stream; those that are durable count as groups of the topic besides."""
NS_PER_MS: Final = 1_000_000
_NAME_CHARACTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_NAME_LENGTH: Final = 8
_WORK_QUEUE: Final = "the topic is a work queue, which only JetStream consumers read"
_ADVISORY: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES."

_log = structlog.get_logger(__name__)


class JetStreamConsumers:
    """The consumers of all streams; used on the event loop."""

    def __init__(self, hub: Hub, topics: Topics, streams: Streams, api: JetStreamApi) -> None:
        self._hub = hub
        self._store = topics.store
        self._live = topics.live_members
        self.now_ns = steady_clock()
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks = Tasks()
        self._tally = DeliveryTally()
        self._running: set[JetStreamConsumer] = set()
        self._context = ConsumerContext(
            self._hub, self.now_ns, self._expire, self._exhausted, self._tally
        )
        self.services = ConsumerServices(hub, streams, api)

    @property
    def deliveries(self) -> int:
        """Return how many messages were delivered since the start."""
        return self._tally.deliveries

    def find(self, stream: Stream, name: str) -> JetStreamConsumer:
        """Return a consumer; raise JetStreamError 10014 if there is none."""
        consumer: JetStreamConsumer | None = stream.consumers.get(name)
        if consumer is None:
            raise error(ErrorCode.CONSUMER_NOT_FOUND)
        return consumer

    async def collect(self) -> list[Sample]:
        """Return the figures of all consumers, and the totals since the start; none if unused."""
        running, tally = self._running, self._tally
        if not running and not tally.deliveries:
            return []
        return [
            ("router_nats_consumers", (), float(len(running))),
            (
                "router_nats_ack_pending",
                (),
                float(sum(one.state.num_pending_acks for one in running)),
            ),
            ("router_nats_pull_requests", (), float(sum(one.num_waiting for one in running))),
            ("router_nats_deliveries_total", (), float(tally.deliveries)),
            ("router_nats_redeliveries_total", (), float(tally.redeliveries)),
            ("router_nats_exhausted_total", (), float(tally.exhausted)),
        ]

    async def load(self, stream: Stream) -> None:
        """Restore the durable consumers of a stream that is opened. Raises StoreError."""
        async with self._lock(stream):
            for subscription in list(stream.partition.subscriptions.values()):
                record = subscription.record
                known = record is not None and CONFIG_PROPERTY in record.properties
                if record is None or not known or subscription.name in stream.consumers:
                    continue
                try:
                    await self._restore(stream, record)
                except (ValueError, JetStreamError, DamagedError, OSError) as failure:
                    place = f"{stream.name}.{subscription.name}"
                    _log.error("consumer-not-restored", consumer=place, reason=str(failure))
                    for_all = stream.config.retention is Retention.LIMITS
                    if not for_all or isinstance(failure, OSError):
                        # Without it messages would be deleted that it has not received; and a new
                        # one of its name would begin elsewhere once the disk can be read.
                        raise StoreError(f"consumer {place} cannot be restored") from failure
        self._reserve(stream)

    async def configured(self, stream: Stream) -> None:
        """Go on with another configuration of a stream. Raises OSError."""
        if stream.closed or stream.ledger.discarded:
            return  # it was deleted meanwhile; another topic may have its name
        self._reserve(stream)
        async with self._lock(stream):
            consumers = list(stream.consumers.values())
            for consumer in consumers:
                consumer.stream_changed()
            for consumer in consumers:
                await consumer.count()

    async def create(
        self, stream: Stream, config: ConsumerConfig, action: ConsumerAction
    ) -> JetStreamConsumer:
        """Return a new consumer, or one that exists with this configuration from now on.

        Durable ones are on disk on return. The configuration is complete and allowed by the stream.
        Raises JetStreamError, RouterError, StoreError.
        """
        async with self._lock(stream):
            name = config.durable_name or config.name
            present: JetStreamConsumer | None = stream.consumers.get(name) if name else None
            if present is not None:
                config = replace(config, pause_until=present.config.pause_until)
                if action is ConsumerAction.CREATE and present.config != config:
                    raise error(ErrorCode.CONSUMER_ALREADY_EXISTS)
                await self._update(present, config)
                return present
            if action is ConsumerAction.UPDATE:
                raise error(ErrorCode.CONSUMER_DOES_NOT_EXIST)
            self._check_new(stream, config)
            return await self._make(stream, config, name or _new_name(stream))

    async def pause(self, consumer: JetStreamConsumer, until_ns: int | None) -> None:
        """Have a consumer deliver nothing until a time; on disk on return if it is durable."""
        until = until_ns if until_ns is not None and until_ns > self.now_ns() else None
        async with self._lock(consumer.stream):
            await self._change(consumer, replace(consumer.config, pause_until=until))

    async def delete(self, consumer: JetStreamConsumer) -> None:
        """Delete a consumer; on disk on return. Raises StoreError."""
        stream = consumer.stream
        async with self._lock(stream):
            if stream.consumers.get(consumer.name) is not consumer:
                raise error(ErrorCode.CONSUMER_NOT_FOUND)
            subscription = stream.partition.subscriptions.get(consumer.name)
            if consumer.log.durable and subscription is not None:
                await stream.partition.delete(subscription)
            # The stream may have gone meanwhile, with all its consumers.
            stream.consumers.pop(consumer.name, None)
            self._running.discard(consumer)
            consumer.close(409, "Consumer Deleted")
            if consumer.log.durable:
                self._set_live(stream, consumer.name, live=False)
        await stream.review_interest()

    async def close(self, stream: Stream) -> None:
        """End the consumers of a stream: it is deleted, or the broker ends.

        Where durable ones stand is handed to the store. At the end of the broker they still say
        which messages they need.
        """
        gone = stream.ledger.discarded
        for consumer in list(stream.consumers.values()):
            if not gone:
                consumer.log.flush()
            consumer.close(*((409, "Consumer Deleted") if gone else ()))
            await consumer.ended()
            self._running.discard(consumer)
            if gone:
                self._set_live(stream, consumer.name, live=False)
        if gone:
            stream.consumers.clear()
            self._live.reserve(stream.topic.name, "")
        self._locks.pop(stream.name, None)

    async def close_all(self) -> None:
        """End what is under way."""
        await self.services.close()
        await self._tasks.close()

    def _reserve(self, stream: Stream) -> None:
        """Keep the groups of the other dialects away from a work queue."""
        is_queue = stream.config.retention is Retention.WORK_QUEUE
        self._live.reserve(stream.topic.name, _WORK_QUEUE if is_queue else "")

    def _lock(self, stream: Stream) -> asyncio.Lock:
        return self._locks.setdefault(stream.name, asyncio.Lock())

    def _check_new(self, stream: Stream, config: ConsumerConfig) -> None:
        if stream.topic.partitions > 1:
            raise error(ErrorCode.CONSUMER_CREATE, err="the topic has several partitions")
        limit = stream.config.max_consumers
        count = len(stream.consumers)
        if 0 < limit <= count or count >= MAX_CONSUMERS:
            raise error(ErrorCode.MAXIMUM_CONSUMERS_LIMIT)
        check_new_consumer(config, stream.config)
        if stream.config.retention is Retention.WORK_QUEUE and stream.consumers:
            if not config.filters:
                raise error(ErrorCode.CONSUMER_WQ_MULTIPLE_UNFILTERED)
            self._check_unique(stream, config)

    def _check_unique(self, stream: Stream, config: ConsumerConfig) -> None:
        """Check that no other consumer of a work queue gets the same subjects."""
        name = config.durable_name or config.name
        own = config.filters or (">",)
        for other in stream.consumers.values():
            theirs = other.config.filters or (">",)
            if other.name != name and any(overlaps(a, b) for a in own for b in theirs):
                raise error(ErrorCode.CONSUMER_WQ_CONSUMER_NOT_UNIQUE)

    async def _make(self, stream: Stream, config: ConsumerConfig, name: str) -> JetStreamConsumer:
        begin = await start_of(stream, config)
        state = ConsumerState(ack_rules(config, stream.config.retention), begin.sequence)
        if config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT:
            state.begin_with(begin.listed, begin.resume)
        stored = await self._subscribe(stream, config, state) if config.is_durable else None
        created_ns = self.now_ns() if stored is None else stored.created_ms * NS_PER_MS
        record = ConsumerRecord(stream, name, created_ns)
        log = ConsumerLog(self._store, stored, state)
        return await self._start(JetStreamConsumer(self._context, record, config, state, log))

    async def _start(self, consumer: JetStreamConsumer) -> JetStreamConsumer:
        try:
            await consumer.start()
        except BaseException:
            consumer.close()
            raise
        consumer.stream.consumers[consumer.name] = consumer
        self._running.add(consumer)
        if consumer.log.durable:
            self._set_live(consumer.stream, consumer.name, live=True)
        return consumer

    async def _subscribe(
        self, stream: Stream, config: ConsumerConfig, state: ConsumerState
    ) -> SubscriptionRecord:
        """Return the stored subscription of a new durable consumer."""
        partition, name = stream.partition, config.durable_name
        if name in partition.subscriptions:
            raise error(ErrorCode.CONSUMER_NAME_EXIST)
        properties = {
            OWNER: OWNER_NAME,
            CONFIG_PROPERTY: dumped(config),
            STATE_PROPERTY: state.dump(),
        }
        entry = await start_place(partition, state.next_sequence)
        try:
            subscription = await partition.subscribe(name, entry, properties, passive=True)
        except SubscriptionLimitError as failure:
            raise error(ErrorCode.MAXIMUM_CONSUMERS_LIMIT) from failure
        if subscription.record is None or CONFIG_PROPERTY not in subscription.record.properties:
            raise error(ErrorCode.CONSUMER_NAME_EXIST)
        return subscription.record

    async def _restore(self, stream: Stream, record: SubscriptionRecord) -> None:
        config = ConsumerConfig.from_json(orjson.loads(record.properties[CONFIG_PROPERTY]))
        note = record.commit.metadata if record.commit is not None else ""
        text = note or record.properties[STATE_PROPERTY]
        state = ConsumerState.load(ack_rules(config, stream.config.retention), text)
        log = ConsumerLog(self._store, record, state)
        acknowledged = await log.restore(stream.visible)
        state.trim(stream.log.first_sequence)
        if state.resume >= state.next_sequence:
            listed = await stream.last_of_subjects(config.filters)
            state.begin_with([one for one in listed if one <= state.resume], state.resume)
        shown = ConsumerRecord(stream, config.durable_name, record.created_ms * NS_PER_MS)
        await self._start(JetStreamConsumer(self._context, shown, config, state, log))
        for sequence in acknowledged:
            stream.acknowledged(sequence)

    async def _update(self, consumer: JetStreamConsumer, config: ConsumerConfig) -> None:
        stream = consumer.stream
        if stream.config.retention is Retention.WORK_QUEUE:
            self._check_unique(stream, config)
        if config == consumer.config:
            return
        check_consumer_update(consumer.config, config, is_bound=consumer.bound)
        await self._change(consumer, config)

    async def _change(self, consumer: JetStreamConsumer, config: ConsumerConfig) -> None:
        subscription = consumer.stream.partition.subscriptions.get(consumer.name)
        if consumer.log.durable and subscription is not None:
            await self._save(subscription, config)
        await consumer.update(config)

    async def _save(self, subscription: PartitionSubscription, config: ConsumerConfig) -> None:
        record = subscription.record
        if record is not None:
            properties = {**record.properties, CONFIG_PROPERTY: dumped(config)}
            await self._store.change_subscription(record, properties)

    def _set_live(self, stream: Stream, name: str, *, live: bool) -> None:
        """Have the other dialects see that the subscription is in use."""
        partitions = frozenset({stream.partition.index})
        members = (LiveMember(name, OWNER_NAME, partitions),) if live else ()
        self._live.replace(stream.topic.name, name, members)

    def _expire(self, consumer: JetStreamConsumer) -> None:
        _log.info("consumer-expired", stream=consumer.stream.name, consumer=consumer.name)
        self._tasks.start(self._delete_expired(consumer))

    async def _delete_expired(self, consumer: JetStreamConsumer) -> None:
        try:
            await self.delete(consumer)
        except (JetStreamError, RouterError, StoreError, OSError) as failure:
            _log.warning("consumer-not-deleted", consumer=consumer.name, reason=str(failure))

    def _exhausted(self, consumer: JetStreamConsumer, sequence: int, attempts: int) -> None:
        """Send the advisory for a message that was delivered for the last time."""
        self._tally.exhausted += 1
        stream = consumer.stream.name
        subject = f"{_ADVISORY}{stream}.{consumer.name}"
        if self._hub.interested(subject):
            advisory = {
                "type": "io.nats.jetstream.advisory.v1.max_deliver",
                "id": secrets.token_hex(11),
                "timestamp": format_time(self.now_ns()),
                "stream": stream,
                "consumer": consumer.name,
                "stream_seq": sequence,
                "deliveries": attempts,
            }
            self._hub.publish(NatsMessage(subject, payload=orjson.dumps(advisory)))


def dumped(config: ConsumerConfig) -> str:
    """Return a configuration as the properties of a subscription have it."""
    return orjson.dumps(config.to_json()).decode()


def _new_name(stream: Stream) -> str:
    """Return a name that no consumer of the stream has."""
    while True:
        name = "".join(secrets.choice(_NAME_CHARACTERS) for _ in range(_NAME_LENGTH))
        if name not in stream.consumers:
            return name
