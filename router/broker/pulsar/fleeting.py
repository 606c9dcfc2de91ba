"""Topics that are not persistent, as one connection produces to them and consumes from them.

The commands that open a producer or consumer look at the topic's name; the others are looked at
only on a connection that has opened one here. So whoever uses persistent topics pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from router.broker.dispatch.hashing import slot_of, sticky_key
from router.broker.fleeting import Consumer, Producer
from router.broker.pulsar import answers
from router.broker.pulsar.failures import NO_TRANSACTIONS, answer, error, request_failed
from router.broker.pulsar.subscribing import kept_metadata
from router.errors import (
    BadNameError,
    BatchTooLargeError,
    ConflictError,
    NotAllowedError,
    RouterError,
    TopicNotFoundError,
)
from router.model import TopicName
from router.wire.pulsar import MAX_BATCH, Frame, encode_parts, read_metadata, verify_checksum
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection
    from router.broker.pulsar.context import Handler
    from router.broker.pulsar.log import LogMessages
    from router.broker.topics import Topics

MAX_OPEN: Final = 20_000
MAX_NAME: Final = 1_024
MAX_PERMITS: Final = 1 << 31
NOWHERE: Final = 2**64 - 1

_T = TypeVar("_T")
_OfProducer = Callable[[Producer, Any, Frame], None]
_OfConsumer = Callable[[Consumer, Any, Frame], None]


class Fleeting:
    """What one connection does with topics that are not persistent."""

    def __init__(self, connection: Connection, messages: LogMessages) -> None:
        self._connection = connection
        self._messages = messages
        self._topics = messages.topics
        self._producers: dict[int, Producer] = {}
        self._consumers: dict[int, Consumer] = {}
        self._others: Mapping[int, Handler] = {}
        self._serving = False
        self._message = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
        self._message.message.message_id.ledgerId = 0
        self._message.message.message_id.entryId = 0

    @property
    def writable(self) -> bool:
        """Tell whether the connection takes messages now."""
        return self._connection.writable

    @property
    def peer(self) -> str:
        """Tell people where the client is."""
        return self._connection.peer

    @property
    def client(self) -> str:
        """Tell people what the client calls itself."""
        return self._connection.client

    def handlers(self, others: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the commands that are looked at here first; `others` handle them otherwise."""
        self._others = others
        return {
            pb.BaseCommand.PRODUCER: self.produce,
            pb.BaseCommand.SUBSCRIBE: self.subscribe,
        }

    def produce(self, frame: Frame) -> None:
        """Open a producer."""
        asked = frame.command.producer
        if not self._topics.fleeting.serves(asked.topic):
            self._others[pb.BaseCommand.PRODUCER](frame)
            return
        try:
            producer = self._producers.get(asked.producer_id) or self._open_producer(asked)
        except ConflictError as failure:
            self._connection.send(error(asked.request_id, pb.ProducerBusy, str(failure)))
        except RouterError as failure:
            self._connection.send(request_failed(asked.request_id, failure))
        else:
            success = pb.CommandProducerSuccess(
                request_id=asked.request_id,
                producer_name=producer.name,
                last_sequence_id=-1,
                schema_version=b"",
            )
            self._connection.send(
                pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS, producer_success=success)
            )

    def subscribe(self, frame: Frame) -> None:
        """Open a consumer."""
        asked = frame.command.subscribe
        if not self._topics.fleeting.serves(asked.topic):
            self._others[pb.BaseCommand.SUBSCRIBE](frame)
            return
        try:
            if asked.consumer_id not in self._consumers:
                self._open_consumer(asked)
        except RouterError as failure:
            self._connection.send(request_failed(asked.request_id, failure))
        else:
            self._connection.send(answers.success(asked.request_id))

    def gone(self) -> None:
        """Let all go: the connection is closed."""
        for producer in list(self._producers.values()):
            producer.topic.remove_producer(producer)
        for consumer in list(self._consumers.values()):
            consumer.subscription.detach(consumer)
        self._producers.clear()
        self._consumers.clear()

    # What topics ask of their clients' connection.

    def send_message(self, consumer: Consumer, payload: bytes) -> None:
        """Send a message to the client."""
        self._message.message.consumer_id = consumer.consumer_id
        self._connection.write(*encode_parts(self._message, payload))

    def activity_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell the client whether its failover consumer is the active one."""
        command = answers.active_change(consumer.consumer_id, active)
        # Behind the answer to the SUBSCRIBE that brought it about.
        self._connection.soon(partial(self._connection.send, command))

    def consumer_closed(self, consumer: Consumer) -> None:
        """Tell the client that the broker let go of its consumer."""
        self._consumers.pop(consumer.consumer_id, None)
        self._connection.send(answers.close_consumer(consumer.consumer_id))

    def producer_closed(self, producer: Producer) -> None:
        """Tell the client that the broker let go of its producer."""
        self._producers.pop(producer.producer_id, None)
        close = pb.CommandCloseProducer(producer_id=producer.producer_id, request_id=NOWHERE)
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=close)
        )

    def _open_producer(self, asked: pb.CommandProducer) -> Producer:
        name = _name_to_open(self._topics, asked.topic, create=True)
        if len(self._producers) >= MAX_OPEN:
            raise NotAllowedError(f"a connection has at most {MAX_OPEN} producers")
        if asked.producer_access_mode != pb.Shared:
            raise NotAllowedError("producers of topics that are not persistent are shared")
        if len(asked.producer_name) > MAX_NAME:
            raise BadNameError(f"names have at most {MAX_NAME} characters")
        topic = self._topics.fleeting.get(name)
        given = asked.producer_name or self._messages.new_name("standalone")
        producer = Producer(self, asked.producer_id, given, topic, self._topics.now_ms())
        producer.metadata = kept_metadata(asked.metadata)
        topic.add_producer(producer)
        self._serve()
        self._producers[asked.producer_id] = producer
        return producer

    def _open_consumer(self, asked: pb.CommandSubscribe) -> None:
        name = _name_to_open(self._topics, asked.topic, create=asked.force_topic_creation)
        if len(self._consumers) >= MAX_OPEN:
            raise NotAllowedError(f"a connection has at most {MAX_OPEN} consumers")
        if not 0 < len(asked.subscription) <= MAX_NAME or len(asked.consumer_name) > MAX_NAME:
            raise BadNameError(f"names have 1 to {MAX_NAME} characters")
        kind = pb.CommandSubscribe.SubType.Name(asked.subType)
        subscription = self._topics.fleeting.get(name).subscription(asked.subscription, kind)
        given = asked.consumer_name or self._messages.new_name("consumer")
        consumer = Consumer(self, asked.consumer_id, given, subscription, asked.priority_level)
        consumer.since_ms = self._topics.now_ms()
        consumer.metadata = kept_metadata(asked.metadata)
        subscription.attach(consumer, kind)
        self._serve()
        self._consumers[asked.consumer_id] = consumer

    def _serve(self) -> None:
        """Look at the other commands too, from now on."""
        if self._serving:
            return
        self._serving = True
        kinds = pb.BaseCommand
        producers: dict[int, tuple[str, _OfProducer]] = {
            kinds.SEND: ("send", self._send),
            kinds.CLOSE_PRODUCER: ("close_producer", self._close_producer),
        }
        consumers: dict[int, tuple[str, _OfConsumer]] = {
            kinds.FLOW: ("flow", self._flow),
            kinds.ACK: ("ack", self._acknowledge),
            kinds.REDELIVER_UNACKNOWLEDGED_MESSAGES: (
                "redeliverUnacknowledgedMessages",
                _nothing_to_redeliver,
            ),
            kinds.CLOSE_CONSUMER: ("close_consumer", self._close_consumer),
            kinds.UNSUBSCRIBE: ("unsubscribe", self._close_consumer),
            kinds.SEEK: ("seek", self._no_positions),
            kinds.GET_LAST_MESSAGE_ID: ("getLastMessageId", self._no_positions),
            kinds.CONSUMER_STATS: ("consumerStats", self._stats),
        }
        looked_at: dict[int, Handler] = {}
        for kind, (body, send) in producers.items():
            looked_at[kind] = _first(body, "producer_id", self._producers, send, self._others[kind])
        for kind, (body, ask) in consumers.items():
            looked_at[kind] = _first(body, "consumer_id", self._consumers, ask, self._others[kind])
        self._connection.add_handlers(looked_at)

    def _send(self, producer: Producer, sent: pb.CommandSend, frame: Frame) -> None:
        if not verify_checksum(frame.payload):
            self._refuse(sent, pb.ChecksumError, "Checksum failed on the broker")
            return
        if answers.in_transaction(sent):
            self._refuse(sent, *answer(NotAllowedError(NO_TRANSACTIONS)))
            return
        topic, metadata = producer.topic, read_metadata(frame.payload)
        messages = max(1, metadata.num_messages_in_batch)
        if messages > MAX_BATCH:
            # It would cost the consumers that many permits.
            flaw = BatchTooLargeError(f"a batch has at most {MAX_BATCH} messages")
            self._refuse(sent, *answer(flaw))
            return
        slot = slot_of(sticky_key(metadata)) if topic.keyed else 0
        topic.publish(frame.payload, messages, slot)
        receipt = pb.CommandSendReceipt(
            producer_id=sent.producer_id,
            sequence_id=sent.sequence_id,
            highest_sequence_id=sent.highest_sequence_id,
            message_id=pb.MessageIdData(ledgerId=0, entryId=0),
        )
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=receipt)
        )

    def _refuse(self, sent: pb.CommandSend, number: pb.ServerError, sentence: str) -> None:
        failed = pb.CommandSendError(
            producer_id=sent.producer_id,
            sequence_id=sent.sequence_id,
            error=number,
            message=sentence,
        )
        self._connection.send(pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR, send_error=failed))

    def _close_producer(
        self, producer: Producer, asked: pb.CommandCloseProducer, _frame: Frame
    ) -> None:
        del self._producers[producer.producer_id]
        producer.topic.remove_producer(producer)
        self._connection.send(answers.success(asked.request_id))

    def _flow(self, consumer: Consumer, asked: pb.CommandFlow, _frame: Frame) -> None:
        consumer.permits += min(asked.messagePermits, MAX_PERMITS - consumer.permits)

    def _acknowledge(self, _consumer: Consumer, asked: pb.CommandAck, _frame: Frame) -> None:
        if asked.HasField("request_id"):
            refused = answer(NotAllowedError(NO_TRANSACTIONS))
            response = answers.ack_response(
                asked, refused if answers.in_transaction(asked) else None
            )
            self._connection.send(response)

    def _close_consumer(
        self,
        consumer: Consumer,
        asked: pb.CommandCloseConsumer | pb.CommandUnsubscribe,
        _frame: Frame,
    ) -> None:
        del self._consumers[consumer.consumer_id]
        consumer.subscription.detach(consumer)
        self._connection.send(answers.success(asked.request_id))

    def _no_positions(
        self,
        _consumer: Consumer,
        asked: pb.CommandSeek | pb.CommandGetLastMessageId,
        _frame: Frame,
    ) -> None:
        failure = NotAllowedError("a topic that is not persistent has no positions")
        self._connection.send(request_failed(asked.request_id, failure))

    def _stats(self, consumer: Consumer, asked: pb.CommandConsumerStats, _frame: Frame) -> None:
        response = pb.CommandConsumerStatsResponse(
            request_id=asked.request_id,
            consumerName=consumer.name,
            availablePermits=max(0, consumer.permits),
            unackedMessages=0,
            blockedConsumerOnUnackedMsgs=False,
            address=self.peer,
            type=consumer.subscription.kind,
            msgBacklog=0,
        )
        self._connection.send(
            pb.BaseCommand(
                type=pb.BaseCommand.CONSUMER_STATS_RESPONSE, consumerStatsResponse=response
            )
        )


def _first(
    body: str,
    number: str,
    mine: Mapping[int, _T],
    handle: Callable[[_T, Any, Frame], None],
    other: Handler,
) -> Handler:
    """Return what handles a command if it is for one of mine, and hands it on otherwise."""

    def handler(frame: Frame) -> None:
        asked = getattr(frame.command, body)
        found = mine.get(getattr(asked, number))
        if found is None:
            other(frame)
        else:
            handle(found, asked, frame)

    return handler


def _nothing_to_redeliver(_consumer: Consumer, _asked: Any, _frame: Frame) -> None:
    """Keep to what was promised: what was sent is gone."""


def _name_to_open(topics: Topics, text: str, *, create: bool) -> TopicName:
    """Return the name of a topic that may be opened; raise TopicNotFoundError, BadNameError."""
    name = TopicName.parse(text)
    if topics.fleeting.find(name) is None and (topics.creation(name) is None or not create):
        raise TopicNotFoundError(f"there is no topic {name}")
    return name
