"""The producers of one connection: opening them, waiting for their turn, closing them.

Theory of operation. A shared producer of a topic in use is opened within the call. All others wait
for a disk, in a task: a new topic, a first subscription, the topic epoch of an exclusive one. What
the client sends meanwhile is kept (`Slots`). One that waits for others to leave is neither open nor
being opened: it may wait for days, and no task stands behind it.

When the broker lets go of a producer (its topic is deleted or terminated, its name taken over), the
client has sent on until it hears of it. What still comes for such a producer is dropped: the client
opens it again and sends again what has no receipt. The numbers let go of are remembered for that,
so that a number that never was a producer's is still seen for the mistake that it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from router.broker.dispatch import (
    Access,
    NameBusyError,
    Partition,
    Producer,
    ProducerFencedError,
)
from router.broker.pulsar.failures import request_failed
from router.broker.pulsar.schemas import check_size, schema_of_producer
from router.broker.pulsar.slots import Slots
from router.broker.pulsar.subscribing import kept_metadata
from router.errors import BadNameError, NotAllowedError, RouterError, TopicNotFoundError
from router.model import REQUEST_PRODUCER
from router.wire.pulsar import Frame, ProtocolError
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection
    from router.broker.pulsar.log import LogMessages

MAX_PRODUCERS: Final = 20_000
MAX_NAME: Final = 1_024
NOWHERE: Final = 2**64 - 1
DEDUPLICATE: Final = "router-dedup"

_REFUSALS: Final = (RouterError, NameBusyError, ProducerFencedError)


class Producers:
    """What one connection has open, opens, or has in a line; `found`: the open ones by number."""

    def __init__(self, connection: Connection, messages: LogMessages) -> None:
        self._connection = connection
        self._messages = messages
        self._topics = messages.topics
        self._store = messages.topics.store
        self._slots: Slots[Producer] = Slots(MAX_PRODUCERS, connection.handle)
        self.found = self._slots.found
        # Those that wait for their turn, and the requests that are to be answered then.
        self._waiting: dict[int, tuple[Producer, int]] = {}
        self._let_go: dict[int, None] = {}

    def open(self, frame: Frame) -> None:
        """Open a producer; a number that is taken already answers as it did the first time."""
        asked = frame.command.producer
        number = asked.producer_id
        present = self.found.get(number)
        if present is not None:
            self._opened(present, asked.request_id)
            return
        if self._slots.defer(number, frame):
            return
        if (waiting := self._waiting.get(number)) is not None:
            self._wait(waiting[0], asked.request_id)
            return
        try:
            self._check(asked)
            partition = self._topics.opened(asked.topic)
            if partition is not None and _is_simple(asked):
                self._add(partition, asked)
                return
        except _REFUSALS as failure:
            self._connection.send(request_failed(asked.request_id, failure))
            return
        self._slots.begin(number)
        self._connection.spawn(self._open_later(asked))

    def close(self, frame: Frame) -> None:
        """Close a producer once all that it sent is stored; one that is not open is closed."""
        asked = frame.command.close_producer
        if self._slots.defer(asked.producer_id, frame):
            return
        producer = self.found.pop(asked.producer_id, None)
        if (waiting := self._waiting.pop(asked.producer_id, None)) is not None:
            producer = waiting[0]

        def closed() -> None:
            if producer is not None:
                producer.partition.producers.remove(producer)
            success = pb.CommandSuccess(request_id=asked.request_id)
            self._connection.send(pb.BaseCommand(type=pb.BaseCommand.SUCCESS, success=success))

        self._store.after_sync(closed)

    def unopened(self, number: int, frame: Frame) -> None:
        """Keep or drop what is sent for a producer that is not open; raise ProtocolError."""
        if not self._slots.defer(number, frame) and number not in self._let_go:
            raise ProtocolError(f"SEND for producer {number}, which is not open")

    def gone(self) -> None:
        """Give all names back: the connection is closed."""
        producers = [*self._slots, *(producer for producer, _ in self._waiting.values())]
        self._slots.clear()
        self._waiting.clear()
        for producer in producers:
            producer.partition.producers.remove(producer)

    # What a partition asks of its producers' connection.

    def producer_closed(self, producer: Producer) -> None:
        """Tell the client that the broker let go of its producer, after the receipts it has."""
        if self.found.pop(producer.producer_id, None) is None:
            # Still being opened: that fails, and the client is told so.
            return
        self._let_go[producer.producer_id] = None
        if len(self._let_go) > MAX_PRODUCERS:
            del self._let_go[next(iter(self._let_go))]
        close = pb.CommandCloseProducer(producer_id=producer.producer_id, request_id=NOWHERE)
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=close)
        self._store.after_sync(partial(self._connection.send, command))

    def producer_turn(self, producer: Producer) -> None:
        """Open a producer that has waited; its client is told with the same request's number."""
        waiting = self._waiting.pop(producer.producer_id, None)
        if waiting is None:
            return
        self._slots.begin(producer.producer_id)
        try:
            self._connection.spawn(self._hold(producer, waiting[1]))
        except ProtocolError as error:
            # Somebody else's call brought us here: this connection pays for itself.
            self._connection.refuse(str(error))
            producer.partition.producers.remove(producer)

    def producer_failed(self, producer: Producer, failure: Exception) -> None:
        """Tell the client that its producer waits in vain."""
        waiting = self._waiting.pop(producer.producer_id, None)
        if waiting is not None:
            self._connection.send(request_failed(waiting[1], failure))

    @property
    def peer(self) -> str:
        """Tell people where the client is."""
        return self._connection.peer

    @property
    def client(self) -> str:
        """Tell people what the client calls itself."""
        return self._connection.client

    def probe(self) -> None:
        """Find out whether the client is still there."""
        self._connection.probe()

    def _check(self, asked: pb.CommandProducer) -> None:
        if self._slots.full or len(self._waiting) >= MAX_PRODUCERS:
            raise NotAllowedError(f"a connection has at most {MAX_PRODUCERS} producers")
        if max(len(asked.producer_name), len(asked.initial_subscription_name)) > MAX_NAME:
            raise BadNameError(f"names have at most {MAX_NAME} characters")
        # These names say that an append is stored already: only a router may say so.
        own = asked.producer_name.startswith(REQUEST_PRODUCER)
        if own and not self._connection.who.administers:
            raise NotAllowedError(
                f"names that begin with {REQUEST_PRODUCER} are for administrators and the router"
            )
        check_size(asked.schema)

    async def _open_later(self, asked: pb.CommandProducer) -> None:
        try:
            partition = await self._topics.open(asked.topic, create=True)
            version = await schema_of_producer(self._messages.schemas, partition, asked)
            if name := asked.initial_subscription_name:
                await partition.subscribe(name, partition.ledger.first_entry)
            if self._connection.closed:
                return
            if partition.closed:
                raise TopicNotFoundError
            producer = self._producer(partition, asked, version)
            if not partition.producers.add(producer):
                self._wait(producer, asked.request_id)
            else:
                await self._hold_if_exclusive(producer)
                self._begin(producer, asked.request_id)
        except _REFUSALS as failure:
            self._connection.send(request_failed(asked.request_id, failure))
        finally:
            self._slots.settle(asked.producer_id)

    async def _hold(self, producer: Producer, request_id: int) -> None:
        try:
            await producer.partition.producers.hold(producer)
            self._begin(producer, request_id)
        except _REFUSALS as failure:
            self._connection.send(request_failed(request_id, failure))
        finally:
            self._slots.settle(producer.producer_id)

    async def _hold_if_exclusive(self, producer: Producer) -> None:
        if producer.access is not Access.SHARED:
            await producer.partition.producers.hold(producer)

    def _add(self, partition: Partition, asked: pb.CommandProducer) -> None:
        producer = self._producer(partition, asked)
        partition.producers.add(producer)
        self._begin(producer, asked.request_id)

    def _producer(
        self, partition: Partition, asked: pb.CommandProducer, version: bytes = b""
    ) -> Producer:
        if not version:
            self._messages.schemas.check_without(partition.topic)
        properties = {pair.key: pair.value for pair in asked.metadata}
        return Producer(
            partition=partition,
            link=self,
            producer_id=asked.producer_id,
            name=asked.producer_name or self._messages.new_name("standalone"),
            epoch=asked.epoch,
            generated=not (asked.producer_name and asked.user_provided_producer_name),
            deduplicated=_deduplicated(partition, properties),
            access=Access(asked.producer_access_mode),
            topic_epoch=asked.topic_epoch if asked.HasField("topic_epoch") else None,
            schema_version=version,
            since_ms=self._topics.now_ms(),
            metadata=kept_metadata(asked.metadata),
        )

    def _begin(self, producer: Producer, request_id: int) -> None:
        """Let an opened producer send, unless its connection went meanwhile."""
        if self._connection.closed:
            producer.partition.producers.remove(producer)
            return
        self.found[producer.producer_id] = producer
        self._let_go.pop(producer.producer_id, None)
        self._opened(producer, request_id)

    def _wait(self, producer: Producer, request_id: int) -> None:
        """Tell the client that its producer stands in a line; its request goes on."""
        self._waiting[producer.producer_id] = producer, request_id
        success = pb.CommandProducerSuccess(
            request_id=request_id, producer_name=producer.name, producer_ready=False
        )
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS, producer_success=success)
        )

    def _opened(self, producer: Producer, request_id: int) -> None:
        last = None
        if producer.deduplicated:
            last = producer.partition.ledger.producers.last(producer.name)
        success = pb.CommandProducerSuccess(
            request_id=request_id,
            producer_name=producer.name,
            last_sequence_id=last.sequence if last else -1,
            schema_version=producer.schema_version,
            topic_epoch=producer.topic_epoch,
        )
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS, producer_success=success)
        if last is None:
            self._connection.send(command)
        else:
            # The client forgets what it is told is stored; so it must be.
            self._store.after_sync(partial(self._connection.send, command))


def _is_simple(asked: pb.CommandProducer) -> bool:
    """Tell whether a producer of a topic in use needs no disk to be opened."""
    return asked.producer_access_mode == pb.Shared and not (
        asked.initial_subscription_name or asked.HasField("schema")
    )


def _deduplicated(partition: Partition, properties: Mapping[str, str]) -> bool:
    asked = properties.get(DEDUPLICATE)
    if asked is not None:
        return asked == "true"
    return bool(partition.policies.deduplication)
