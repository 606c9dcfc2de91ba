"""What the consumers of one connection ask for, from permits to a seek.

Theory of operation. A command finds its consumer by the client's number and calls the subscription,
which does the rest; here the protocol is translated and its rules are kept. What can be done at
once is done at once; a seek by time and the like run as tasks.

A consumer's acknowledgements may carry the generation of the claim that it was opened under; older
generations than the newest granted are refused. The alternative, closing the old consumer when a
claim is granted, would need the grant to wait for a client that may be dead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final

from router.broker.consume import PartitionSubscription
from router.broker.consume.cursor.pending_acks import EntryPart
from router.broker.pulsar import answers
from router.broker.pulsar.client import AnySubscription, AttachedConsumer, Handler, PulsarClient
from router.broker.pulsar.consumers import PulsarConsumers
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import answer, error, request_failed
from router.broker.pulsar.positions import (
    cached_position,
    last_entry,
    last_visible_entry,
    read_position,
    start_entry,
)
from router.broker.pulsar.transactions import ClientTransactions
from router.broker.storage import Ack, DamagedError
from router.broker.transactions import TransactionError
from router.errors import (
    BadRequestError,
    FencedError,
    NotAllowedError,
    RouterError,
)
from router.wire.pulsar import MAX_BATCH, Frame
from router.wire.pulsar import pulsar_pb2 as pb

MAX_PERMITS: Final = 1 << 31
MAX_ACK_SET: Final = 2_048
GENERATION: Final = "router-generation"
_NOT_ALONE: Final = "Unconnected or shared consumer attempting to unsubscribe"


class Consuming:
    """What one connection consumes."""

    def __init__(self, client: PulsarClient, log: LogContext) -> None:
        self._client = client
        self._connection = client.connection
        self._log = log
        self._transaction_ids = ClientTransactions(client, log.transactions)
        self._consumers = PulsarConsumers(client, log)
        self._found = self._consumers.found
        self._defer = self._consumers.defer

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.FLOW: self.flow,
            pb.BaseCommand.ACK: self.acknowledge,
            pb.BaseCommand.GET_LAST_MESSAGE_ID: self.last,
            pb.BaseCommand.SUBSCRIBE: self._consumers.open,
            pb.BaseCommand.CLOSE_CONSUMER: self._consumers.close,
            pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self.redeliver,
            pb.BaseCommand.SEEK: self.seek,
            pb.BaseCommand.UNSUBSCRIBE: self.unsubscribe,
            pb.BaseCommand.CONSUMER_STATS: self.stats,
        }

    def flow(self, frame: Frame) -> None:
        """Give a consumer permits; those for an unknown one are ignored."""
        request = frame.command.flow
        consumer = self._found.get(request.consumer_id)
        if consumer is None:
            self._defer(request.consumer_id, frame)
            return
        room = MAX_PERMITS - consumer.permits
        consumer.subscription.flow(consumer, min(request.messagePermits, room))

    def acknowledge(self, frame: Frame) -> None:
        """Acknowledge; with a request, the answer comes when it is on disk."""
        request = frame.command.ack
        consumer = self._found.get(request.consumer_id)
        if consumer is None and self._defer(request.consumer_id, frame):
            return
        done: Callable[[], None] | None = None
        if request.HasField("request_id"):
            done = partial(self._client.send, answers.ack_response(request))
        if consumer is None:
            self._ack_refused(request, pb.MetadataError, "Consumer not found")
            return
        try:
            self._check_ack(consumer, request)
            if answers.in_transaction(request):
                self._acknowledge_in_transaction(consumer, request, done)
                return
        except (RouterError, TransactionError) as failure:
            # What it is in conflict with is on disk then, and so not lost with the next crash.
            refuse = partial(self._ack_refused, request, *answer(failure))
            self._log.topics.store.after_sync(refuse)
            return
        ledger = consumer.ledger_id
        cumulative = request.ack_type == pb.CommandAck.Cumulative
        acks = [
            Ack(place.entryId, cumulative, tuple(place.ack_set))
            for place in request.message_id
            if place.ledgerId == ledger
        ]
        consumer.subscription.acknowledge(consumer, acks, done)

    def redeliver(self, frame: Frame) -> None:
        """Deliver again what a consumer returns; an unknown consumer has nothing."""
        request = frame.command.redeliverUnacknowledgedMessages
        consumer = self._found.get(request.consumer_id)
        if consumer is None:
            self._defer(request.consumer_id, frame)
            return
        if request.HasField("consumer_epoch"):
            consumer.epoch = request.consumer_epoch
        ledger = consumer.ledger_id
        entries = [place.entryId for place in request.message_ids if place.ledgerId == ledger]
        if entries or not request.message_ids:
            consumer.subscription.redeliver(consumer, entries)

    def last(self, frame: Frame) -> None:
        """Answer with the last entry that is delivered without waiting for a publisher.

        The answer waits until no read from disk is between the log and the consumer. If reading
        failed, what is before the failure is delivered first; then the answer is the failure.
        """
        request = frame.command.getLastMessageId
        consumer = self._consumer(request.consumer_id, request.request_id, frame)
        subscription = self._stored(consumer, request.request_id)
        if consumer is not None and subscription is not None:
            answer_last = partial(self._answer_last, consumer, subscription, request.request_id)
            subscription.when_settled(answer_last)

    def unsubscribe(self, frame: Frame) -> None:
        """Delete the subscription of a consumer."""
        request = frame.command.unsubscribe
        consumer = self._consumer(request.consumer_id, request.request_id, frame)
        if consumer is not None:
            self._connection.spawn(self._unsubscribe(consumer, request))

    def seek(self, frame: Frame) -> None:
        """Move the subscription of a consumer; all its consumers are closed and connect again."""
        request = frame.command.seek
        consumer = self._consumer(request.consumer_id, request.request_id, frame)
        subscription = self._stored(consumer, request.request_id)
        if consumer is None or subscription is None:
            return
        if len(request.message_id.ack_set) > MAX_ACK_SET:
            failure = BadRequestError(f"an ack_set has at most {MAX_ACK_SET} words")
            self._client.send(request_failed(request.request_id, failure))
        elif request.HasField("message_id"):
            entry, place = start_entry(subscription.ledger, request.message_id), request.message_id
            same = (place.ledgerId, place.entryId) == (subscription.ledger.id, entry)
            left = tuple(place.ack_set) if same else ()
            self._seek(subscription, entry, request.request_id, left)
        elif request.HasField("message_publish_time"):
            self._connection.spawn(self._seek_time(consumer, subscription, request))
        else:
            failure = BadRequestError("SEEK without a position")
            self._client.send(request_failed(request.request_id, failure))

    def close_all(self) -> None:
        """Detach all consumers; the connection is closed."""
        self._consumers.close_all()

    def stats(self, frame: Frame) -> None:
        """Answer with the statistics of a consumer."""
        request = frame.command.consumerStats
        if self._defer(request.consumer_id, frame):
            return
        consumer = self._found.get(request.consumer_id)
        self._connection.spawn(self._stats(consumer, request.request_id))

    def _consumer(self, consumer_id: int, request_id: int, frame: Frame) -> AttachedConsumer | None:
        """Return the consumer; None: the frame waits for it, or was answered with an error."""
        consumer = self._found.get(consumer_id)
        if consumer is None and not self._defer(consumer_id, frame):
            self._client.send(error(request_id, pb.MetadataError, "Consumer not found"))
        return consumer

    def _check_ack(self, consumer: AttachedConsumer, request: pb.CommandAck) -> None:
        subscription = consumer.subscription
        kind = subscription.kind
        if request.ack_type == pb.CommandAck.Cumulative and (
            len(request.message_id) > 1 or (kind is not None and kind.individual)
        ):
            raise NotAllowedError("a cumulative acknowledgement names one message, and not shared")
        if any(len(place.ack_set) > MAX_ACK_SET for place in request.message_id):
            raise BadRequestError(f"an ack_set has at most {MAX_ACK_SET} words")
        for pair in request.properties:
            if pair.key == GENERATION and pair.value < self._generation(subscription):
                raise FencedError

    def _acknowledge_in_transaction(
        self, consumer: AttachedConsumer, request: pb.CommandAck, done: Callable[[], None] | None
    ) -> None:
        """Acknowledge with the commit; raise TransactionError, NotAllowedError, BadRequestError."""
        subscription, pending = consumer.subscription, self._log.transactions.acknowledgements
        if not isinstance(subscription, PartitionSubscription) or not subscription.durable:
            raise NotAllowedError("only durable subscriptions of stored topics have transactions")
        if any(place.batch_size > MAX_BATCH for place in request.message_id):
            raise BadRequestError(f"a batch has at most {MAX_BATCH} messages")
        transaction = self._transaction_ids.opened(request)
        ledger_id, end = consumer.ledger_id, subscription.ledger.durable_entry
        places = [
            place
            for place in request.message_id
            if place.ledgerId == ledger_id and place.entryId < end
        ]
        if request.ack_type == pb.CommandAck.Cumulative:
            for place in places:
                ack = Ack(place.entryId, cumulative=True, ack_set=tuple(place.ack_set))
                pending.add_cumulative(transaction, subscription, ack, consumer)
        else:
            parts = [
                (place.entryId, EntryPart.of(place.ack_set, max(0, place.batch_size)))
                for place in places
            ]
            pending.add(transaction, subscription, parts)
        consumer.flow.acknowledged += len(places)
        if done is not None:
            self._log.topics.store.after_sync(done)

    def _generation(self, subscription: AnySubscription) -> int:
        partition = subscription.partition
        return self._log.leases.generation(partition.topic_name, subscription.name, partition.index)

    def _ack_refused(self, request: pb.CommandAck, number: pb.ServerError, sentence: str) -> None:
        if request.HasField("request_id"):
            self._client.send(answers.ack_response(request, (number, sentence)))

    def _answer_last(
        self, consumer: AttachedConsumer, subscription: PartitionSubscription, request_id: int
    ) -> None:
        if self._found.get(consumer.consumer_id) is not consumer:
            self._client.send(error(request_id, pb.MetadataError, "Consumer not found"))
        elif (failure := subscription.failure) is not None:
            self._client.send(error(request_id, *answer(failure)))
        elif subscription.visible.leaves_out:
            self._connection.spawn(self._read_last_visible(subscription, request_id))
        else:
            last = last_entry(subscription, unacknowledged=self._client.ours)
            place = cached_position(subscription, last, self._log.transcoder)
            if place is None and last is not None:
                self._connection.spawn(self._read_last(subscription, last, request_id))
            elif place is not None:
                self._client.send(answers.last_message(request_id, subscription, place))

    async def _read_last(
        self, subscription: PartitionSubscription, last: int, request_id: int
    ) -> None:
        place = await read_position(subscription, last, self._log.transcoder)
        self._client.send(answers.last_message(request_id, subscription, place))

    async def _read_last_visible(
        self, subscription: PartitionSubscription, request_id: int
    ) -> None:
        transcoder = self._log.transcoder
        try:
            last = await last_visible_entry(subscription, unacknowledged=self._client.ours)
        except OSError as failure:
            self._client.send(request_failed(request_id, failure))
            return
        place = cached_position(subscription, last, transcoder)
        if place is None and last is not None:
            place = await read_position(subscription, last, transcoder)
        if place is not None:
            self._client.send(answers.last_message(request_id, subscription, place))

    async def _stats(self, consumer: AttachedConsumer | None, request_id: int) -> None:
        peer = self._connection.peer.name
        self._client.send(await answers.stats(request_id, consumer, peer, monotonic()))

    async def _unsubscribe(
        self, consumer: AttachedConsumer, request: pb.CommandUnsubscribe
    ) -> None:
        subscription = consumer.subscription
        if len(subscription.consumers) > 1 and not request.force:
            refused = error(request.request_id, pb.MetadataError, _NOT_ALONE)
            self._client.send(refused)
            return
        self._found.pop(consumer.consumer_id, None)
        subscription.detach(consumer)
        self._forget(subscription)
        await subscription.delete()
        self._client.send(answers.success(request.request_id))

    async def _seek_time(
        self,
        consumer: AttachedConsumer,
        subscription: PartitionSubscription,
        request: pb.CommandSeek,
    ) -> None:
        try:
            entry = await subscription.ledger.find_time(request.message_publish_time)
        except (DamagedError, OSError) as failure:
            self._client.send(request_failed(request.request_id, failure))
            return
        if self._found.get(consumer.consumer_id) is consumer:
            self._seek(subscription, entry, request.request_id)
        else:
            self._client.send(error(request.request_id, pb.MetadataError, "Consumer not found"))

    def _seek(
        self,
        subscription: PartitionSubscription,
        entry: int,
        request_id: int,
        left: tuple[int, ...] = (),
    ) -> None:
        self._forget(subscription)
        done = partial(self._client.send, answers.success(request_id))
        subscription.reset(entry, left, done)

    def _forget(self, subscription: AnySubscription) -> None:
        self._log.leases.forget(subscription.partition.topic_name, subscription.name)

    def _stored(
        self, consumer: AttachedConsumer | None, request_id: int
    ) -> PartitionSubscription | None:
        """Return the subscription if it has positions; else answer that it has none."""
        subscription = None if consumer is None else consumer.subscription
        if subscription is None or isinstance(subscription, PartitionSubscription):
            return subscription
        failure = NotAllowedError("a topic that is not persistent has no positions")
        self._client.send(request_failed(request_id, failure))
        return None
