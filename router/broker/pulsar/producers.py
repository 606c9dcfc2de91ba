"""The producers of one connection: opening them, waiting for their turn, closing them.

Theory of operation. A shared producer of a topic in use is opened within the call. All others wait
for a disk, in a task: a new topic, a first subscription, the topic epoch of an exclusive one. What
the client sends meanwhile is kept (`HandleTable`). One that waits for others to leave is neither
open nor being opened: it may wait for days, and no task stands behind it.

When the broker closes a producer (its topic is deleted or terminated, its name taken over), the
client goes on sending until it reads the notice. What arrives for such a producer is dropped: the
client opens it again and sends again what has no receipt. The numbers of closed producers are
remembered for that, so that a number that never was a producer's still breaks the protocol.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Final

from router.broker.consume import (
    ConsumerFlow,
    NameBusyError,
    Partition,
    Producer,
    ProducerAccess,
    ProducerFencedError,
    Tally,
)
from router.broker.pulsar.answers import NO_REQUEST
from router.broker.pulsar.client import (
    AnyPartition,
    ClientLink,
    HandleTable,
    PulsarClient,
    PulsarProducer,
)
from router.broker.pulsar.consumers import kept_metadata
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import request_failed
from router.broker.pulsar.schemas import check_size, schema_of_producer
from router.errors import BadNameError, NotAllowedError, RouterError, TopicNotFoundError
from router.model import REQUEST_PRODUCER
from router.model.publish_source import encode_source
from router.wire import ProtocolError
from router.wire.pulsar import Frame, command
from router.wire.pulsar import pulsar_pb2 as pb

MAX_PRODUCERS: Final = 20_000
MAX_NAME: Final = 1_024
DEDUPLICATE: Final = "router-dedup"

_REFUSALS: Final = (RouterError, NameBusyError, ProducerFencedError)


class PulsarProducers(ClientLink):
    """What one connection has open, opens, or has in a queue; `found`: the open ones by number."""

    def __init__(self, client: PulsarClient, log: LogContext) -> None:
        super().__init__(client)
        self._log = log
        self._topics = log.topics
        self._store = log.topics.store
        self._handles: HandleTable[PulsarProducer] = HandleTable(MAX_PRODUCERS, client.handle)
        self.found = self._handles.found
        log.producers.add(self._handles)
        # Those that wait for their turn, and the requests that are to be answered then.
        self._waiting: dict[int, tuple[PulsarProducer, int]] = {}
        self._closed_numbers: dict[int, None] = {}

    def open(self, frame: Frame) -> None:
        """Open a producer; a number that is taken already answers as it did the first time."""
        request = frame.command.producer
        number = request.producer_id
        present = self.found.get(number)
        if present is not None:
            self._opened(present, request.request_id)
            return
        if self._handles.defer(number, frame):
            return
        if (waiting := self._waiting.get(number)) is not None:
            self._wait(waiting[0], request.request_id)
            return
        try:
            self._check(request)
            partition = self._topics.attachable(request.topic)
            if partition is not None and _is_simple(partition, request):
                self._add(partition, request)
                return
        except _REFUSALS as failure:
            self._client.send(request_failed(request.request_id, failure))
            return
        self._handles.begin(number)
        self._connection.spawn(self._open_later(request))

    def close(self, frame: Frame) -> None:
        """Close a producer once all that it sent is stored; one that is not open is closed."""
        request = frame.command.close_producer
        if self._handles.defer(request.producer_id, frame):
            return
        producer = self.found.pop(request.producer_id, None)
        if (waiting := self._waiting.pop(request.producer_id, None)) is not None:
            producer = waiting[0]

        def closed() -> None:
            if producer is not None:
                producer.partition.producers.remove(producer)
            self._client.send(command(pb.BaseCommand.SUCCESS, request_id=request.request_id))

        self._store.after_sync(closed)

    def unopened(self, number: int, frame: Frame) -> None:
        """Keep or drop what is sent for a producer that is not open; raise ProtocolError."""
        if not self._handles.defer(number, frame) and number not in self._closed_numbers:
            raise ProtocolError(f"SEND for producer {number}, which is not open")

    def close_all(self) -> None:
        """Give all names back; the connection is closed."""
        self._log.producers.discard(self._handles)
        producers = [*self._handles, *(producer for producer, _ in self._waiting.values())]
        self._handles.clear()
        self._waiting.clear()
        for producer in producers:
            producer.partition.producers.remove(producer)

    # What a partition asks of its producers' connection.

    def producer_closed(self, producer: Producer) -> None:
        """Send a notice that the broker closed the producer, after the receipts that it has."""
        if self.found.pop(producer.producer_id, None) is None:
            # Still being opened: that request is answered with the failure.
            return
        self._closed_numbers[producer.producer_id] = None
        if len(self._closed_numbers) > MAX_PRODUCERS:
            del self._closed_numbers[next(iter(self._closed_numbers))]
        closing = command(
            pb.BaseCommand.CLOSE_PRODUCER, producer_id=producer.producer_id, request_id=NO_REQUEST
        )
        self._store.after_sync(partial(self._client.send, closing))

    def producer_turn(self, producer: Producer) -> None:
        """Open a producer that has waited; the answer has the number of its request."""
        waiting = self._waiting.pop(producer.producer_id, None)
        if waiting is None:
            return
        self._handles.begin(producer.producer_id)
        try:
            self._connection.spawn(self._hold(*waiting))
        except ProtocolError as error:
            # The call comes from another connection, which must not be the one that is refused.
            self._connection.refuse(str(error))
            waiting[0].partition.producers.remove(producer)

    def producer_failed(self, producer: Producer, failure: Exception) -> None:
        """Answer the request of a producer that waits for nothing any more."""
        waiting = self._waiting.pop(producer.producer_id, None)
        if waiting is not None:
            self._client.send(request_failed(waiting[1], failure))

    def _check(self, request: pb.CommandProducer) -> None:
        if self._handles.full or len(self._waiting) >= MAX_PRODUCERS:
            raise NotAllowedError(f"a connection has at most {MAX_PRODUCERS} producers")
        if max(len(request.producer_name), len(request.initial_subscription_name)) > MAX_NAME:
            raise BadNameError(f"names have at most {MAX_NAME} characters")
        # These names say that an append is stored already: only a router may say so.
        own = request.producer_name.startswith(REQUEST_PRODUCER)
        if own and not self._client.identity.administers:
            raise NotAllowedError(
                f"names that begin with {REQUEST_PRODUCER} are for administrators and the router"
            )
        check_size(request.schema)

    async def _open_later(self, request: pb.CommandProducer) -> None:
        try:
            partition = await self._topics.open(request.topic, create=True)
            version = await schema_of_producer(self._log.schemas, partition, request)
            if name := request.initial_subscription_name:
                await partition.subscribe(name, partition.ledger.first_entry)
            if self._connection.closed:
                return
            if partition.closed:
                raise TopicNotFoundError
            producer = self._producer(partition, request, version)
            if not partition.producers.add(producer):
                self._wait(producer, request.request_id)
            else:
                await self._hold_if_exclusive(producer)
                self._begin(producer, request.request_id)
        except _REFUSALS as failure:
            self._client.send(request_failed(request.request_id, failure))
        finally:
            self._handles.settle(request.producer_id)

    async def _hold(self, producer: PulsarProducer, request_id: int) -> None:
        try:
            await producer.partition.producers.hold(producer)
            self._begin(producer, request_id)
        except _REFUSALS as failure:
            self._client.send(request_failed(request_id, failure))
        finally:
            self._handles.settle(producer.producer_id)

    async def _hold_if_exclusive(self, producer: PulsarProducer) -> None:
        if producer.access is not ProducerAccess.SHARED:
            await producer.partition.producers.hold(producer)

    def _add(self, partition: AnyPartition, request: pb.CommandProducer) -> None:
        producer = self._producer(partition, request)
        partition.producers.add(producer)
        self._begin(producer, request.request_id)

    def _producer(
        self, partition: AnyPartition, request: pb.CommandProducer, version: bytes = b""
    ) -> PulsarProducer:
        stored = partition if isinstance(partition, Partition) else None
        log = partition.ledger if isinstance(partition, Partition) else partition
        if stored is not None and not version:
            self._log.schemas.check_without(stored.topic)
        limit = None if stored is None else stored.policies.max_producers
        if limit and len(partition.producers) >= limit:
            raise NameBusyError("Topic reached max producers limit")
        name = request.producer_name or self._log.new_name("standalone")
        return PulsarProducer(
            partition=partition,
            ledger_id=log.id,
            append=log.append,
            tally=Tally() if stored is None else self._topics.tally,
            source=self._source(name),
            link=self,
            producer_id=request.producer_id,
            name=name,
            epoch=request.epoch,
            generated=not (request.producer_name and request.user_provided_producer_name),
            deduplicated=stored is not None and _deduplicated(stored, request),
            access=ProducerAccess(request.producer_access_mode),
            topic_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
            schema_version=version,
            since_ms=self._topics.now_ms(),
            metadata=kept_metadata(request.metadata),
            flow=ConsumerFlow(monotonic()),
        )

    def _source(self, producer: str) -> bytes:
        identity = self._client.identity
        client = f"{producer}, {self.client}"
        return encode_source("pulsar", identity.principal.name, identity.address, client)

    def _begin(self, producer: PulsarProducer, request_id: int) -> None:
        """Let an opened producer send, unless its connection closed meanwhile."""
        if self._connection.closed:
            producer.partition.producers.remove(producer)
            return
        self.found[producer.producer_id] = producer
        self._closed_numbers.pop(producer.producer_id, None)
        self._opened(producer, request_id)

    def _wait(self, producer: PulsarProducer, request_id: int) -> None:
        """Answer that the producer waits in a queue; its request goes on."""
        self._waiting[producer.producer_id] = producer, request_id
        self._client.send(
            command(
                pb.BaseCommand.PRODUCER_SUCCESS,
                request_id=request_id,
                producer_name=producer.name,
                producer_ready=False,
            )
        )

    def _opened(self, producer: PulsarProducer, request_id: int) -> None:
        last = None
        if producer.deduplicated and isinstance(producer.partition, Partition):
            last = producer.partition.ledger.producers.last(producer.name)
        success = command(
            pb.BaseCommand.PRODUCER_SUCCESS,
            request_id=request_id,
            producer_name=producer.name,
            last_sequence_id=last.sequence if last else -1,
            schema_version=producer.schema_version,
            topic_epoch=producer.topic_epoch,
        )
        if last is None:
            self._client.send(success)
        else:
            # The client drops what the answer says is stored; so it must be.
            self._store.after_sync(partial(self._client.send, success))


def _is_simple(partition: AnyPartition, request: pb.CommandProducer) -> bool:
    """Return whether a producer of a topic in use needs no disk to be opened."""
    if not isinstance(partition, Partition):
        return True
    return request.producer_access_mode == pb.Shared and not (
        request.initial_subscription_name or request.HasField("schema")
    )


def _deduplicated(partition: Partition, request: pb.CommandProducer) -> bool:
    properties = {pair.key: pair.value for pair in request.metadata}
    if (given := properties.get(DEDUPLICATE)) is not None:
        return given == "true"
    return bool(partition.policies.deduplication)
