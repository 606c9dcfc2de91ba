"""What the producers of one connection send: storing it, and receipts in order.

Theory of operation. A SEND is checked, handed to its ledger and forgotten; the ledger calls back
when the entry is on disk, in the order of the appends, and the callback writes the receipt. All
that is not a receipt (refusals, duplicates, the end of a producer) waits behind the same sync, so
that a client sees its answers in the order of its sends. For topics that are not persistent all
answers are given at once. No task stands behind a message.

What is not stored yet is bounded for each connection (MAX_PENDING_BYTES) and for the node (the
store is `congested`): beyond that the client is not read from. The alternative, refusing with an
error, would make every client resend at the very moment the disk has too much to do.

Deduplication compares sequence ids with what the producer's name stored last. It is off unless the
topic's policy or the producer asks for it, because clients that batch by key interleave their
sequence ids, and good messages would be dropped.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from router.broker.consume import Partition
from router.broker.pulsar.client import Handler, PulsarClient, PulsarProducer
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import answer
from router.broker.pulsar.positions import NO_POSITION
from router.broker.pulsar.producers import PulsarProducers
from router.broker.pulsar.transactions import ClientTransactions
from router.broker.storage import PULSAR_FORMAT, ProducerState, StoreError
from router.broker.transactions import Transaction, TransactionError
from router.errors import (
    BadRequestError,
    BatchTooLargeError,
    DiskFullError,
    NotAllowedError,
    RouterError,
    TopicTerminatedError,
)
from router.model.publish_source import NO_SOURCE
from router.wire.pulsar import (
    MAX_BATCH,
    Frame,
    Payload,
    ProtocolError,
    command,
    encode,
    read_sound,
    split_payload,
    verify_checksum,
)
from router.wire.pulsar import pulsar_pb2 as pb

MAX_PENDING_BYTES: Final = 8 << 20
MAX_APPENDS: Final = 1_000
"""Entries of one APPENDS, at most."""
# Of an entry that waits, besides its own bytes.
ENTRY_OVERHEAD_BYTES: Final = 512
# What PRODUCER_SUCCESS can say.
MAX_SEQUENCE: Final = 2**63 - 1

_READ_HOLD: Final = "producing"


class PulsarPublisher:
    """What one connection produces."""

    def __init__(self, client: PulsarClient, log: LogContext) -> None:
        self._client = client
        self._connection = client.connection
        self._clock = log.topics.clock
        self._store = log.topics.store
        self._transactions = log.transactions
        self._ids = ClientTransactions(client, log.transactions)
        self._producers = PulsarProducers(client, log)
        self._found = self._producers.found
        # A process of the node says for whom it publishes.
        self._trusted = client.identity.trusted
        self._pending = 0
        self._held = False
        # Filled for each receipt again, which costs less than building one.
        self._receipt = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
        self._body = self._receipt.send_receipt
        self._place = self._body.message_id

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.SEND: self.send,
            pb.BaseCommand.APPENDS: self.append_all,
            pb.BaseCommand.PRODUCER: self._producers.open,
            pb.BaseCommand.CLOSE_PRODUCER: self._producers.close,
        }

    def send(self, frame: Frame) -> None:
        """Store an entry; the receipt follows when it is on disk."""
        sent = frame.command.send
        producer = self._found.get(sent.producer_id)
        if producer is None:
            self._producers.unopened(sent.producer_id, frame)
            return
        outcome = _SendOutcome(self, producer, sent.sequence_id, sent.highest_sequence_id)
        metadata = _checked(frame.payload, outcome)
        if metadata is None:
            return
        transaction = None
        if sent.HasField("txnid_most_bits") or sent.HasField("txnid_least_bits"):
            try:
                transaction = self._join(sent, producer)
            except (NotAllowedError, TransactionError) as failure:
                # Clients that get another error close the connection, and send it again for ever.
                outcome.refused(pb.NotAllowedError, answer(failure)[1])
                return
        sequences = sent.sequence_id, max(sent.sequence_id, sent.highest_sequence_id)
        source = sent.source if self._trusted else producer.source
        self._append(producer, sequences, metadata, frame.payload, outcome, source, transaction)

    def append_all(self, frame: Frame) -> None:
        """Store the entries of an APPENDS; the response follows when all are on disk.

        An entry that is refused refuses no other. Raises ProtocolError if the lists do not fit to
        one another or to the payload.
        """
        request, payloads = frame.command.appends, frame.payload
        numbers, sequences, sizes = request.producer_ids, request.sequence_ids, request.sizes
        sources = request.sources if self._trusted else ()
        same = len(numbers) == len(sequences) == len(sizes)
        if not same or not 0 < len(numbers) <= MAX_APPENDS or sum(sizes) != len(payloads):
            raise ProtocolError("APPENDS whose lists or payload are not of one size")
        appends = _Appends(self, request.request_id)
        end = 0
        for place, (number, sequence, size) in enumerate(
            zip(numbers, sequences, sizes, strict=True)
        ):
            payload = payloads[end : end + size]
            end += size
            appends.place = place
            if (producer := self._found.get(number)) is None:
                appends.refused(pb.ServiceNotReady, f"producer {number} is not open")
            elif (metadata := _checked(payload, appends)) is not None:
                source = sources[place] if place < len(sources) else NO_SOURCE
                self._append(producer, (sequence, sequence), metadata, payload, appends, source)
        if len(appends.failures) < len(numbers):
            self._store.after_sync(appends.respond)
        else:
            appends.respond()

    def close(self) -> None:
        """Give all names back; the connection is closed."""
        self._producers.close_all()
        self._store.pressure.pop(self._release, None)

    def pause(self) -> None:
        """Hold reading while too much of what the client sent waits to be stored."""
        full = self._pending > MAX_PENDING_BYTES or (self._pending and self._store.congested)
        if full and not self._held:
            self._held = True
            self._connection.hold_reading(_READ_HOLD)
            self._store.pressure[self._release] = None

    def _append(
        self,
        producer: PulsarProducer,
        sequences: tuple[int, int],
        metadata: pb.MessageMetadata,
        payload: bytes,
        outcome: _Outcome,
        source: bytes,
        transaction: Transaction | None = None,
    ) -> None:
        """Store an entry with these sequence ids, its first and its highest one."""
        if self._store.full and isinstance(producer.partition, Partition):
            outcome.refused(*answer(DiskFullError()))
            return
        # What the metadata says counts, not the command: consumers are sent the metadata only.
        messages = metadata.num_messages_in_batch
        mark = None
        if producer.deduplicated:
            highest = sequences[1]
            if highest > MAX_SEQUENCE:
                outcome.refused(*answer(BadRequestError(f"sequence id {highest} is too large")))
                return
            if self._known(producer, sequences, messages, outcome):
                return
            # Chunks of a message share its sequence id: it is stored with the last of them.
            if metadata.chunk_id >= metadata.num_chunks_from_msg - 1:
                mark = (producer.name, highest)
        size = len(payload) + ENTRY_OVERHEAD_BYTES
        outcome.size += size
        try:
            now = int(self._clock() * 1000)
            producer.append(payload, PULSAR_FORMAT, messages, now, outcome.stored, mark, source)
        except (StoreError, TopicTerminatedError) as failure:
            outcome.size -= size
            outcome.refused(*answer(failure))
            return
        if transaction is not None and isinstance(producer.partition, Partition):
            self._transactions.appended(transaction, producer.partition.ledger, messages)
        self._pending += size
        producer.tally.entries += 1
        producer.tally.messages += messages
        producer.tally.bytes += len(payload)
        producer.flow.messages += messages
        producer.flow.bytes += len(payload)

    def _known(
        self,
        producer: PulsarProducer,
        sequences: tuple[int, int],
        messages: int,
        outcome: _Outcome,
    ) -> bool:
        """Answer for an entry that was stored before, when that is on disk; return whether it was.

        Of all that a producer stored, only the last one's place is remembered.
        """
        assert isinstance(producer.partition, Partition)
        mark = producer.partition.ledger.producers.last(producer.name)
        if mark is None or sequences[0] > mark.sequence:
            return False
        last = mark if sequences[1] == mark.sequence else None
        self._store.after_sync(partial(outcome.known, last, messages))
        return True

    def _join(self, sent: pb.CommandSend, producer: PulsarProducer) -> Transaction:
        """Return the transaction of a SEND; raise TransactionError, NotAllowedError."""
        if not isinstance(producer.partition, Partition):
            raise NotAllowedError("a topic that is not persistent has no transactions")
        transaction = self._ids.opened(sent)
        self._transactions.join(transaction, producer.partition.ledger)
        self._transactions.check_space(transaction)
        return transaction

    def settle(self, size: int) -> None:
        """Note that an entry of this size is on disk."""
        self._pending -= size
        if self._held:
            self._release()

    def send_receipt(
        self, producer: PulsarProducer, sequence_id: int, highest: int, entry: int
    ) -> None:
        """Send the receipt of a SEND whose entry is on disk."""
        body, place = self._body, self._place
        body.producer_id = producer.producer_id
        body.sequence_id = sequence_id
        body.highest_sequence_id = highest
        place.ledgerId = producer.ledger_id
        place.entryId = entry
        self._connection.write(encode(self._receipt))

    def answer(self, command: pb.BaseCommand, producer: PulsarProducer | None = None) -> None:
        """Send an answer; if it is about a stored partition, behind the receipts before it.

        Clients match the answers to their SENDs in order.
        """
        if producer is not None and isinstance(producer.partition, Partition):
            self._store.after_sync(partial(self._client.send, command))
        else:
            self._client.send(command)

    def _release(self) -> None:
        """Read again if there is room."""
        if self._pending < MAX_PENDING_BYTES // 2 and not self._store.congested:
            self._held = False
            self._store.pressure.pop(self._release, None)
            self._connection.release_reading(_READ_HOLD)


class _Outcome(Protocol):
    """What becomes of an entry that a client sent; one of the calls is made for each, once.

    `refused` is called while the entry is handled, the others when it is on disk.
    """

    size: int
    """What counts while it is not on disk."""

    def stored(self, entry: int) -> None:
        """Answer that the entry is on disk under this number."""
        ...

    def known(self, state: ProducerState | None, messages: int) -> None:
        """Answer that it was stored before: `state`, or None and so many messages."""
        ...

    def refused(self, number: pb.ServerError, sentence: str) -> None:
        """Answer that it is not stored."""
        ...


class _SendOutcome:
    """Answers a SEND."""

    __slots__ = ("_highest", "_producer", "_producing", "_sequence_id", "size")

    def __init__(
        self, producing: PulsarPublisher, producer: PulsarProducer, sequence_id: int, highest: int
    ) -> None:
        self._producing = producing
        self._producer = producer
        self._sequence_id = sequence_id
        self._highest = highest
        self.size = 0

    def stored(self, entry: int) -> None:
        """Send the receipt."""
        self._producing.settle(self.size)
        self._producing.send_receipt(self._producer, self._sequence_id, self._highest, entry)

    def known(self, state: ProducerState | None, messages: int) -> None:
        """Send a receipt that tells where it was stored, if that is remembered."""
        producer = self._producer
        receipt = command(
            pb.BaseCommand.SEND_RECEIPT,
            producer_id=producer.producer_id,
            sequence_id=self._sequence_id,
            highest_sequence_id=self._highest,
            message_id=pb.MessageIdData(
                ledgerId=NO_POSITION if state is None else producer.ledger_id,
                entryId=NO_POSITION if state is None else state.entry,
            ),
            stored_messages=messages if state is None else state.messages,
        )
        self._producing.answer(receipt)

    def refused(self, number: pb.ServerError, sentence: str) -> None:
        """Send a SEND_ERROR."""
        refusal = command(
            pb.BaseCommand.SEND_ERROR,
            producer_id=self._producer.producer_id,
            sequence_id=self._sequence_id,
            error=number,
            message=sentence,
        )
        self._producing.answer(refusal, self._producer)


class _Appends:
    """Answers one APPENDS, whose entries are in one commit group; `place`: the entry at hand."""

    __slots__ = ("_producing", "_request_id", "failures", "place", "size")

    def __init__(self, producing: PulsarPublisher, request_id: int) -> None:
        self._producing = producing
        self._request_id = request_id
        self.failures: list[pb.AppendFailure] = []
        self.place = 0
        self.size = 0

    def stored(self, entry: int) -> None:
        """Leave it to `respond`, which is called behind the last entry."""

    def known(self, state: ProducerState | None, messages: int) -> None:
        """Leave it to `respond`, too."""

    def refused(self, number: pb.ServerError, sentence: str) -> None:
        """Note why the entry at hand is not stored."""
        self.failures.append(pb.AppendFailure(entry=self.place, error=number, message=sentence))

    def respond(self) -> None:
        """Send the response: what is not refused is on disk."""
        self._producing.settle(self.size)
        kind = pb.BaseCommand.APPENDS_RESPONSE
        self._producing.answer(command(kind, request_id=self._request_id, failures=self.failures))


def _checked(payload: bytes, outcome: _Outcome) -> pb.MessageMetadata | None:
    """Return the metadata of a payload that may be stored; None: it was refused."""
    metadata = read_sound(payload)
    if metadata is not None and 0 < metadata.num_messages_in_batch <= MAX_BATCH:
        return metadata
    parts = _intact(payload)
    if parts is None:
        outcome.refused(pb.ChecksumError, "Checksum failed on the broker")
    elif (flaw := _flaw(parts)) is not None:
        outcome.refused(*answer(flaw))
    else:
        return parts.metadata
    return None


def _intact(payload: bytes) -> Payload | None:
    """Return the parts of a payload; None: it is not what its sender's checksum covers."""
    try:
        parts = split_payload(payload)
    except ProtocolError:
        if verify_checksum(payload):
            raise
        return None
    return None if parts.checksum_ok is False else parts


def _flaw(parts: Payload) -> RouterError | None:
    """Return why a payload must not be stored, None: it may be."""
    if parts.broker_entry is not None:
        return BadRequestError("broker entry metadata is for the broker to add")
    messages = parts.metadata.num_messages_in_batch
    if messages > MAX_BATCH:
        return BatchTooLargeError(f"a batch has at most {MAX_BATCH} messages")
    return BadRequestError(f"a batch of {messages} messages") if messages < 1 else None
