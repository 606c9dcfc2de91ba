"""What one connection produces: batches checked, appended in their order, and answered.

Theory of operation. A batch is stored as it came; a reader of Kafka's protocol is sent the same
bytes. What it says of its records is proved before: it is decompressed within a bound, its records
are counted and their offsets compared. Small batches are proved at once. Large ones, and those of a
request with very many records, would hold up the event loop: they are proved in threads beside it.
Requests may overlap, so each waits in a queue until those before it are proved, and is appended
then; so the order of a partition is the order of the connection. A response follows when all its
batches are on disk, whatever `acks` asks for.

A connection has at most MAX_SHARE_BYTES in a commit group that others wait for. What is more it
appends when it is its turn (see router.broker.storage.append_turns).

A connection is a producer of each partition that it writes to, opened with its first batch: rights,
schemas and exclusive producers are checked then, as for producers of the Pulsar listener.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final

from router.access.permissions import Right
from router.broker.consume import ConsumerFlow, NameBusyError, Producer, ProducerFencedError
from router.broker.entries.proving import prove_batch
from router.broker.kafka.batch_results import (
    BatchResult,
    KafkaProducer,
    refuse_silently,
    respond,
    topic_of,
)
from router.broker.kafka.client import KafkaClient, KafkaRequest
from router.broker.kafka.failures import REFUSALS
from router.broker.kafka.sequences import (
    DuplicateBatch,
    NextBatch,
    check_sequence,
)
from router.broker.kafka.topic_configs import max_batch_bytes
from router.broker.kafka.transactions import join_by_batch
from router.broker.storage import KAFKA_FORMAT
from router.broker.transactions import ProducerEpoch, Transaction
from router.errors import (
    DiskFullError,
    NotAllowedError,
)
from router.model import TopicName
from router.model.publish_source import NO_SOURCE, encode_source
from router.wire.kafka.compression import NONE
from router.wire.kafka.errors import (
    InvalidRecordsError,
    OversizedRecordsError,
    RecordsError,
)
from router.wire.kafka.record_batches import BatchHeader, Bytes, check_batch

MAX_PRODUCERS: Final = 20_000
"""Partitions that one connection may write to."""
MAX_INLINE_BYTES: Final = 8 << 10
"""A batch of no more, and without compression, is proved on the event loop."""
MAX_INLINE_RECORDS: Final = 4_000
"""Of one request that are proved there: some milliseconds."""
MAX_SHARE_BYTES: Final = 128 << 10
"""That a connection appends without a turn, and that are not on disk yet."""
IMPLICIT_JOIN: Final = 12
"""The first version in which a batch adds its partition to a transaction."""

_REFUSALS: Final = (*REFUSALS, NameBusyError, ProducerFencedError, RecordsError)


@dataclass(slots=True, eq=False)
class ProduceJob:
    """A request while it is under way; `left` counts what it waits for."""

    request: KafkaRequest
    batches: Sequence[BatchResult]
    proved: bool = False
    left: int = 1


class BatchAppender:
    """The producers of one connection; see above."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._context = client.context
        self._topics = client.context.topics
        self._store = client.context.topics.store
        self._open: dict[tuple[str | bytes, int], KafkaProducer] = {}
        # The version of the client's rights by which these were opened.
        self._rights = client.rights_version
        self._queue: deque[ProduceJob] = deque()
        self._unsynced = 0
        self._turn: asyncio.Event | None = None
        self._appending = False
        self._limits = client.context.limits
        self._source: tuple[str | None, bytes] = None, NO_SOURCE
        client.on_close[self._close] = None

    @property
    def peer(self) -> str:
        """Return the client's address for people."""
        return self._client.connection.peer.name

    @property
    def client(self) -> str:
        """Return the client's own name for its library."""
        return self._client.software

    def produce(self, request: KafkaRequest) -> None:
        """Store the batches of a request, and answer it when they are on disk."""
        if (rights := self._client.rights_version) != self._rights:
            self._rights = rights
            self._check_rights()
        batches = [
            self._accept(request, topic_of(request, topic), part)
            for topic in request.body.topic_data
            for part in topic.partition_data
        ]
        job = ProduceJob(request, batches)
        self._queue.append(job)
        later, inline = [], MAX_INLINE_RECORDS
        for batch in batches:
            if batch.payload is not None and batch.header is not None:
                inline -= batch.header.records
                if inline < 0 or _is_large(batch.header, batch.payload):
                    later.append(batch)
                else:
                    _prove(batch, self._limits.records_bytes)
        if later:
            self._client.connection.spawn(self._prove_later(job, later))
        else:
            job.proved = True
            self._append_proved()

    # What a partition asks of its producers' connection.

    def producer_closed(self, producer: Producer) -> None:
        """Forget a producer: the next batch opens it again, or is refused."""
        for place, present in self._open.items():
            if present is producer:
                del self._open[place]
                return

    def producer_turn(self, producer: Producer) -> None:
        """Do nothing: no producer of Kafka's waits for its turn."""

    def producer_failed(self, producer: Producer, failure: Exception) -> None:
        """Do nothing, for the same reason."""

    def probe(self, *, soon: bool = False) -> None:
        """Check that the client responds."""
        self._client.connection.probe(soon=soon)

    def _accept(self, request: KafkaRequest, topic: str | bytes, part: Any) -> BatchResult:
        """Return a batch that may be stored if its records are as it says, or is refused."""
        index, records = part.index, part.records
        batch = BatchResult(topic, index)
        try:
            batch.producer = self._open.get((topic, index)) or self._add(topic, index)
            if self._store.full:
                raise DiskFullError
            if records is None:
                raise InvalidRecordsError("a partition is sent no batch")
            allowed = max_batch_bytes(batch.producer.partition.topic, self._limits.batch_bytes)
            if len(records) > allowed:
                raise OversizedRecordsError(
                    f"a batch has {len(records)} bytes, allowed are {allowed}"
                )
            batch.header = header = check_batch(records)
            if header.size != len(records):
                raise InvalidRecordsError("a partition is sent more than one batch")
            if header.is_control:
                raise InvalidRecordsError("a control batch is a broker's")
            if header.is_transactional and request.body.transactional_id is None:
                raise InvalidRecordsError("a batch of a transaction needs a transactional id")
            if header.has_append_time:
                raise InvalidRecordsError("only a broker says when a batch was stored")
            if header.records > self._limits.records:
                raise OversizedRecordsError(
                    f"a batch has {header.records} records, allowed are {self._limits.records}"
                )
            batch.payload = bytes(records)
        except _REFUSALS as failure:
            batch.fail(failure)
        return batch

    def _add(self, topic: str | bytes, index: int) -> KafkaProducer:
        """Open a producer; raise what refuses it."""
        record = self._client.topic(topic, Right.PUBLISH)
        if len(self._open) >= MAX_PRODUCERS:
            raise NotAllowedError(f"a connection writes to at most {MAX_PRODUCERS} partitions")
        partition = self._context.partition(record, index)
        self._context.broker.schemas.check_without(record)
        client_id = self._client.client_id
        producer = KafkaProducer(
            link=self,
            producer_id=len(self._open),
            name=self._context.new_name("kafka"),
            epoch=0,
            generated=True,
            deduplicated=False,
            since_ms=self._topics.now_ms(),
            metadata={"client.id": client_id} if client_id else {},
            flow=ConsumerFlow(monotonic()),
            partition=partition,
        )
        partition.producers.add(producer)
        self._open[topic, index] = producer
        return producer

    def _check_rights(self) -> None:
        """Close what the client may not write to any more: its next batch is refused."""
        for place, producer in list(self._open.items()):
            topic = TopicName.parse(producer.partition.topic.name)
            if not self._client.may(topic, Right.PUBLISH):
                producer.partition.producers.remove(producer)
                self._open.pop(place, None)

    async def _prove_later(self, job: ProduceJob, batches: Sequence[BatchResult]) -> None:
        limit = self._limits.records_bytes
        await self._context.workers.run(_prove_all, batches, limit)
        job.proved = True
        self._append_proved()

    def _append_proved(self) -> None:
        """Append what is proved, in the order of the requests; see above."""
        if self._appending:
            return
        self._appending = True
        try:
            while self._queue and self._queue[0].proved and self._turn is None:
                size = sum(len(batch.payload or b"") for batch in self._queue[0].batches)
                if not size or self._unsynced + size <= MAX_SHARE_BYTES:
                    self._append_next()
                    continue
                turn = self._turn = asyncio.Event()
                self._store.append_in_turn(self._take_turn, size)
                if not turn.is_set():
                    self._client.connection.spawn(_wait_for(turn))
        finally:
            self._appending = False
        if self._client.connection.closed:
            self._close()

    def _take_turn(self) -> None:
        if self._turn is not None:
            self._turn.set()
        self._turn = None
        self._client.connection.guard(self._append_in_turn)

    def _append_in_turn(self) -> None:
        self._append_next()
        self._append_proved()

    def _append_next(self) -> None:
        """Append the batches of the first request."""
        job = self._queue.popleft()
        duplicates = []
        for batch in job.batches:
            if batch.payload is not None:
                try:
                    found = self._append(job, batch)
                except _REFUSALS as failure:
                    batch.fail(failure)
                else:
                    if found is not None:
                        duplicates.append((batch, found.entry))
        if duplicates:
            job.left += 1
            self._client.connection.spawn(self._find(job, duplicates))
        self._settle(job)

    def _append(self, job: ProduceJob, batch: BatchResult) -> DuplicateBatch | None:
        """Append a batch, or return which one it repeats; raise what refuses it."""
        # The producer may have been closed, with its topic or for another one, since then.
        place = batch.topic, batch.index
        batch.producer = producer = self._open.get(place) or self._add(*place)
        header, payload = batch.header, batch.payload
        assert header is not None
        assert payload is not None
        ledger = producer.partition.ledger
        state: NextBatch | None = None
        transaction: Transaction | None = None
        if header.is_transactional:
            epoch = ProducerEpoch(header.producer_id, header.producer_epoch)
            implicit = job.request.version >= IMPLICIT_JOIN
            transaction = join_by_batch(job.request, epoch, ledger, implicit=implicit)
        if header.producer_id >= 0:
            found = check_sequence(ledger.producers, header)
            if isinstance(found, DuplicateBatch):
                return found
            state = found
        offset, size = ledger.next_index, len(payload)
        ledger.append(
            bytes(payload),
            KAFKA_FORMAT,
            header.records,
            self._topics.now_ms(),
            partial(self._stored, job, batch, offset, size),
            state,
            self._source_of(job),
        )
        if transaction is not None:
            self._context.producers.transactions.appended(transaction, ledger, header.records)
        self._unsynced += size
        batch.payload = None
        job.left += 1
        self._topics.tally.entries += 1
        self._topics.tally.messages += header.records
        self._topics.tally.bytes += size
        producer.flow.messages += header.records
        producer.flow.bytes += size
        return None

    def _source_of(self, job: ProduceJob) -> bytes:
        """Return who sends, which is another for each client id of the connection."""
        client_id = job.request.client_id or ""
        if self._source[0] != client_id:
            identity = self._client.identity
            client = ", ".join(filter(None, (client_id, self.client)))
            source = encode_source("kafka", identity.principal.name, identity.address, client)
            self._source = client_id, source
        return self._source[1]

    async def _find(self, job: ProduceJob, duplicates: Sequence[tuple[BatchResult, int]]) -> None:
        """Answer batches that are stored already when they are on disk."""
        for batch, entry in duplicates:
            try:
                await self._store.synced()
                assert batch.producer is not None
                ledger = batch.producer.partition.ledger
                if entry >= ledger.first_entry:
                    batch.offset = await ledger.number_before(entry)
            except _REFUSALS as failure:
                batch.fail(failure)
        self._settle(job)

    def _stored(
        self, job: ProduceJob, batch: BatchResult, offset: int, size: int, _entry: int
    ) -> None:
        self._unsynced -= size
        batch.offset = offset
        self._settle(job)

    def _settle(self, job: ProduceJob) -> None:
        """Answer a request that waits for nothing any more."""
        job.left -= 1
        if job.left:
            return
        request = job.request
        if request.body.acks:
            request.answer(respond(request, job.batches))
            return
        if any(batch.code for batch in job.batches):
            refuse_silently(request)
        else:
            request.answer(None)

    def _close(self) -> None:
        producers, self._open = self._open, {}
        for producer in producers.values():
            producer.partition.producers.remove(producer)


async def _wait_for(turn: asyncio.Event) -> None:
    """Be a request under way, which a stop of the broker waits for."""
    await turn.wait()


def _is_large(header: BatchHeader, payload: Bytes) -> bool:
    return header.codec != NONE or len(payload) > MAX_INLINE_BYTES


def _prove_all(batches: Sequence[BatchResult], limit: int) -> None:
    for batch in batches:
        _prove(batch, limit)


def _prove(batch: BatchResult, limit: int) -> None:
    assert batch.header is not None
    assert batch.payload is not None
    assert batch.producer is not None
    keyed = batch.producer.partition.topic.policies.compacts
    try:
        batch.payload = prove_batch(batch.header, batch.payload, limit, keyed=keyed)
    except RecordsError as failure:
        batch.fail(failure)
