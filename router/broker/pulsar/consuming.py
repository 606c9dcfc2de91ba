"""The consumers of one connection: opening them, and what they ask for.

Theory of operation. A command finds its consumer by the client's number and calls the subscription,
which does the rest; here the protocol is translated and its rules are kept. What can be done at
once is done at once; a new subscription, a seek by time and the like run as tasks, and frames for a
consumer that is being opened wait for it (`Slots`).

A consumer's acknowledgements may carry the generation of the claim that it was opened under; older
generations than the newest granted are refused. The alternative, closing the old consumer when a
claim is granted, would need the grant to wait for a client that may be dead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from router.broker.cursors import Ack
from router.broker.dispatch import Consumer, HashRangeError, Subscription
from router.broker.dispatch.rates import Flow
from router.broker.dispatch.subscription import REPLICATED
from router.broker.ledger import DamagedError
from router.broker.pulsar import answers
from router.broker.pulsar.delivering import Delivery
from router.broker.pulsar.failures import NO_TRANSACTIONS, answer, error, request_failed
from router.broker.pulsar.positions import cached_position, last_entry, read_position, start_entry
from router.broker.pulsar.schemas import admit_reader, reads_any
from router.broker.pulsar.slots import Slots
from router.broker.pulsar.subscribing import (
    KINDS,
    check,
    kept_metadata,
    keys_of,
    leased,
    only_existing,
    start_of,
)
from router.errors import (
    BadRequestError,
    FencedError,
    NotAllowedError,
    RouterError,
    SubscriptionNotFoundError,
)
from router.quoting import quoted
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection
    from router.broker.pulsar.context import Handler
    from router.broker.pulsar.log import LogMessages

MAX_CONSUMERS: Final = 20_000
MAX_PERMITS: Final = 1 << 31
MAX_ACK_SET: Final = 2_048
GENERATION: Final = "router-generation"
_NOT_ALONE: Final = "Unconnected or shared consumer attempting to unsubscribe"


class Consuming:
    """What one connection consumes."""

    def __init__(self, connection: Connection, messages: LogMessages) -> None:
        self._connection = connection
        self._messages = messages
        self._topics = messages.topics
        self._slots: Slots[Consumer] = Slots(MAX_CONSUMERS, connection.handle)
        self._delivery = Delivery(connection, messages.topics.tally, self._closed)

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.FLOW: self.flow,
            pb.BaseCommand.ACK: self.acknowledge,
            pb.BaseCommand.GET_LAST_MESSAGE_ID: self.last,
            pb.BaseCommand.SUBSCRIBE: self.open,
            pb.BaseCommand.CLOSE_CONSUMER: self.close,
            pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self.redeliver,
            pb.BaseCommand.SEEK: self.seek,
            pb.BaseCommand.UNSUBSCRIBE: self.unsubscribe,
            pb.BaseCommand.CONSUMER_STATS: self.stats,
        }

    @property
    def count(self) -> int:
        """Return how many consumers are open."""
        return len(self._slots)

    def open(self, frame: Frame) -> None:
        """Open a consumer; a number that is taken already is answered with success."""
        asked = frame.command.subscribe
        if asked.consumer_id in self._slots.found:
            self._connection.send(answers.success(asked.request_id))
            return
        if self._slots.defer(asked.consumer_id, frame):
            return
        try:
            self._check(asked)
            subscription = self._present(asked)
            if subscription is not None:
                self._attach(subscription, asked)
                return
        except (RouterError, HashRangeError) as failure:
            self._connection.send(request_failed(asked.request_id, failure))
            return
        self._slots.begin(asked.consumer_id)
        self._connection.spawn(self._open_later(asked))

    def flow(self, frame: Frame) -> None:
        """Let a consumer have more; permits for one that is unknown are ignored."""
        asked = frame.command.flow
        consumer = self._slots.found.get(asked.consumer_id)
        if consumer is None:
            self._slots.defer(asked.consumer_id, frame)
            return
        room = MAX_PERMITS - consumer.permits
        consumer.subscription.flow(consumer, min(asked.messagePermits, room))

    def acknowledge(self, frame: Frame) -> None:
        """Acknowledge; with a request, the answer comes when it is on disk."""
        asked = frame.command.ack
        consumer = self._slots.found.get(asked.consumer_id)
        if consumer is None and self._slots.defer(asked.consumer_id, frame):
            return
        done: Callable[[], None] | None = None
        if asked.HasField("request_id"):
            done = partial(self._connection.send, answers.ack_response(asked))
        if consumer is None:
            self._ack_refused(asked, pb.MetadataError, "Consumer not found")
            return
        try:
            self._check_ack(consumer, asked)
        except RouterError as failure:
            self._ack_refused(asked, *answer(failure))
            return
        ledger = consumer.subscription.ledger.id
        cumulative = asked.ack_type == pb.CommandAck.Cumulative
        acks = [
            Ack(place.entryId, cumulative, tuple(place.ack_set))
            for place in asked.message_id
            if place.ledgerId == ledger
        ]
        consumer.subscription.acknowledge(consumer, acks, done)

    def redeliver(self, frame: Frame) -> None:
        """Deliver again what a consumer gives back; unknown consumers have nothing."""
        asked = frame.command.redeliverUnacknowledgedMessages
        consumer = self._slots.found.get(asked.consumer_id)
        if consumer is None:
            self._slots.defer(asked.consumer_id, frame)
            return
        if asked.HasField("consumer_epoch"):
            consumer.epoch = asked.consumer_epoch
        ledger = consumer.subscription.ledger.id
        entries = [place.entryId for place in asked.message_ids if place.ledgerId == ledger]
        if entries or not asked.message_ids:
            consumer.subscription.redeliver(consumer, entries)

    def last(self, frame: Frame) -> None:
        """Say where the last entry is that will be delivered without waiting for a publisher.

        Answers once no read from disk stands between the log and the consumer. When reading failed,
        everything before the failure comes first; then this says so.
        """
        asked = frame.command.getLastMessageId
        consumer = self._found(asked.consumer_id, asked.request_id, frame)
        if consumer is not None:
            told = partial(self._answer_last, consumer, asked.request_id)
            consumer.subscription.when_settled(told)

    def close(self, frame: Frame) -> None:
        """Close a consumer; one that is not open is closed."""
        asked = frame.command.close_consumer
        if self._slots.defer(asked.consumer_id, frame):
            return
        consumer = self._slots.found.pop(asked.consumer_id, None)
        if consumer is not None:
            consumer.subscription.detach(consumer)
        self._connection.send(answers.success(asked.request_id))

    def unsubscribe(self, frame: Frame) -> None:
        """Delete the subscription of a consumer."""
        asked = frame.command.unsubscribe
        consumer = self._found(asked.consumer_id, asked.request_id, frame)
        if consumer is not None:
            self._connection.spawn(self._unsubscribe(consumer, asked))

    def seek(self, frame: Frame) -> None:
        """Move the subscription of a consumer; all its consumers are closed and come again."""
        asked = frame.command.seek
        consumer = self._found(asked.consumer_id, asked.request_id, frame)
        if consumer is None:
            return
        if asked.HasField("message_id"):
            entry = start_entry(consumer.subscription.ledger, asked.message_id)
            self._seek(consumer, entry, asked.request_id)
        elif asked.HasField("message_publish_time"):
            self._connection.spawn(self._seek_time(consumer, asked))
        else:
            failure = BadRequestError("SEEK without a position")
            self._connection.send(request_failed(asked.request_id, failure))

    def stats(self, frame: Frame) -> None:
        """Tell how a consumer stands."""
        asked = frame.command.consumerStats
        if self._slots.defer(asked.consumer_id, frame):
            return
        consumer = self._slots.found.get(asked.consumer_id)
        self._connection.spawn(self._stats(consumer, asked.request_id))

    def gone(self) -> None:
        """Let all consumers go: the connection is closed."""
        for consumer in self._slots:
            consumer.subscription.detach(consumer)
        self._slots.clear()

    def _check(self, asked: pb.CommandSubscribe) -> None:
        if self._slots.full:
            raise NotAllowedError(f"a connection has at most {MAX_CONSUMERS} consumers")
        check(asked)

    def _present(self, asked: pb.CommandSubscribe) -> Subscription | None:
        """Return the subscription if nothing has to be waited for."""
        partition = self._topics.opened(asked.topic)
        if partition is None or asked.HasField("schema"):
            return None
        if not asked.durable and not asked.start_message_rollback_duration_sec:
            return partition.read_from(asked.subscription, start_of(partition, asked))
        subscription = partition.subscriptions.get(asked.subscription)
        return subscription if subscription is not None and subscription.durable else None

    async def _open_later(self, asked: pb.CommandSubscribe) -> None:
        try:
            partition = await self._topics.open(asked.topic, create=asked.force_topic_creation)
            await admit_reader(self._messages.schemas, partition, asked)
            start = start_of(partition, asked)
            if back := asked.start_message_rollback_duration_sec:
                start = await partition.ledger.find_time(self._topics.now_ms() - back * 1000)
            if asked.durable:
                if asked.subscription not in partition.subscriptions and only_existing(asked):
                    raise SubscriptionNotFoundError(f"there is no {quoted(asked.subscription)}")
                properties = {pair.key: pair.value for pair in asked.subscription_properties}
                if asked.replicate_subscription_state:
                    properties[REPLICATED] = "true"
                subscription = await partition.subscribe(asked.subscription, start, properties)
            else:
                subscription = partition.read_from(asked.subscription, start)
            if not self._connection.closed:
                self._attach(subscription, asked)
        except (RouterError, HashRangeError, DamagedError, OSError) as failure:
            self._connection.send(request_failed(asked.request_id, failure))
        finally:
            self._slots.settle(asked.consumer_id)

    def _attach(self, subscription: Subscription, asked: pb.CommandSubscribe) -> None:
        consumer = Consumer(
            link=self._delivery,
            consumer_id=asked.consumer_id,
            name=asked.consumer_name or self._messages.new_name("consumer"),
            subscription=subscription,
            priority=asked.priority_level,
            keys=keys_of(asked),
            since_ms=self._topics.now_ms(),
            metadata=kept_metadata(asked.metadata),
            flow=Flow(monotonic()),
            epoch=asked.consumer_epoch if asked.HasField("consumer_epoch") else None,
            reads_any=reads_any(asked),
            leased=leased(asked),
        )
        subscription.attach(consumer, KINDS[asked.subType])
        subscription.replicated |= asked.replicate_subscription_state
        self._slots.found[asked.consumer_id] = consumer
        epoch = subscription.epoch if self._connection.ours else None
        self._connection.send(answers.success(asked.request_id, epoch))

    def _closed(self, consumer_id: int) -> None:
        self._slots.found.pop(consumer_id, None)

    def _found(self, consumer_id: int, request_id: int, frame: Frame) -> Consumer | None:
        """Return the consumer; None: the frame waits for it, or was answered with an error."""
        consumer = self._slots.found.get(consumer_id)
        if consumer is None and not self._slots.defer(consumer_id, frame):
            self._connection.send(error(request_id, pb.MetadataError, "Consumer not found"))
        return consumer

    def _check_ack(self, consumer: Consumer, asked: pb.CommandAck) -> None:
        if answers.in_transaction(asked):
            raise NotAllowedError(NO_TRANSACTIONS)
        subscription = consumer.subscription
        dispatcher = subscription.dispatcher
        if asked.ack_type == pb.CommandAck.Cumulative and (
            len(asked.message_id) > 1 or (dispatcher and dispatcher.kind.individual)
        ):
            raise NotAllowedError("a cumulative acknowledgement names one message, and not shared")
        if any(len(place.ack_set) > MAX_ACK_SET for place in asked.message_id):
            raise BadRequestError(f"an ack_set has at most {MAX_ACK_SET} words")
        for pair in asked.properties:
            if pair.key == GENERATION and pair.value < self._generation(subscription):
                raise FencedError

    def _generation(self, subscription: Subscription) -> int:
        partition = subscription.partition
        return self._messages.leases.generation(
            partition.topic.name, subscription.name, partition.index
        )

    def _ack_refused(self, asked: pb.CommandAck, number: pb.ServerError, sentence: str) -> None:
        if asked.HasField("request_id"):
            self._connection.send(answers.ack_response(asked, (number, sentence)))

    def _answer_last(self, consumer: Consumer, request_id: int) -> None:
        subscription = consumer.subscription
        if self._slots.found.get(consumer.consumer_id) is not consumer:
            self._connection.send(error(request_id, pb.MetadataError, "Consumer not found"))
        elif (failure := subscription.failure) is not None:
            self._connection.send(error(request_id, *answer(failure)))
        else:
            last = last_entry(subscription, unacknowledged=self._connection.ours)
            place = cached_position(subscription, last)
            if place is None and last is not None:
                self._connection.spawn(self._read_last(subscription, last, request_id))
            elif place is not None:
                self._connection.send(answers.last_message(request_id, subscription, place))

    async def _read_last(self, subscription: Subscription, last: int, request_id: int) -> None:
        place = await read_position(subscription, last)
        self._connection.send(answers.last_message(request_id, subscription, place))

    async def _stats(self, consumer: Consumer | None, request_id: int) -> None:
        connection = self._connection
        answered = await answers.stats(request_id, consumer, connection.peer, monotonic())
        connection.send(answered)

    async def _unsubscribe(self, consumer: Consumer, asked: pb.CommandUnsubscribe) -> None:
        subscription = consumer.subscription
        if len(subscription.consumers) > 1 and not asked.force:
            refused = error(asked.request_id, pb.MetadataError, _NOT_ALONE)
            self._connection.send(refused)
            return
        self._slots.found.pop(consumer.consumer_id, None)
        subscription.detach(consumer)
        self._forget(subscription)
        await subscription.partition.delete(subscription)
        self._connection.send(answers.success(asked.request_id))

    async def _seek_time(self, consumer: Consumer, asked: pb.CommandSeek) -> None:
        ledger = consumer.subscription.ledger
        try:
            entry = await ledger.find_time(asked.message_publish_time)
        except (DamagedError, OSError) as failure:
            self._connection.send(request_failed(asked.request_id, failure))
            return
        if self._slots.found.get(consumer.consumer_id) is consumer:
            self._seek(consumer, entry, asked.request_id)
        else:
            self._connection.send(error(asked.request_id, pb.MetadataError, "Consumer not found"))

    def _seek(self, consumer: Consumer, entry: int, request_id: int) -> None:
        self._forget(consumer.subscription)
        done = partial(self._connection.send, answers.success(request_id))
        consumer.subscription.reset(entry, done)

    def _forget(self, subscription: Subscription) -> None:
        self._messages.leases.forget(subscription.partition.topic.name, subscription.name)
