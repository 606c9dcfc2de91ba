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
from typing import Final

from router.broker.delivery import Partition
from router.broker.pulsar.client import Client, Handler, PulsarProducer
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import NO_TRANSACTIONS, answer
from router.broker.pulsar.positions import NO_POSITION
from router.broker.pulsar.producers import Producers
from router.broker.storage import PULSAR_FORMAT, StoreError
from router.errors import (
    BadRequestError,
    BatchTooLargeError,
    DiskFullError,
    NotAllowedError,
    RouterError,
    TopicTerminatedError,
)
from router.wire.pulsar import (
    MAX_BATCH,
    Frame,
    Payload,
    ProtocolError,
    encode,
    read_sound,
    split_payload,
    verify_checksum,
)
from router.wire.pulsar import pulsar_pb2 as pb

MAX_PENDING_BYTES: Final = 8 << 20
# Of an entry that waits, besides its own bytes.
ENTRY_OVERHEAD_BYTES: Final = 512
# What PRODUCER_SUCCESS can say.
MAX_SEQUENCE: Final = 2**63 - 1

_READ_HOLD: Final = "producing"


class Producing:
    """What one connection produces."""

    def __init__(self, client: Client, log: LogContext) -> None:
        self._client = client
        self._connection = client.connection
        self._clock = log.topics.clock
        self._store = log.topics.store
        self._producers = Producers(client, log)
        self._found = self._producers.found
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
        metadata = read_sound(frame.payload)
        if metadata is None or not 0 < metadata.num_messages_in_batch <= MAX_BATCH:
            metadata = self._check_unusual(sent, frame.payload)
            if metadata is None:
                return
        if sent.HasField("txnid_most_bits") or sent.HasField("txnid_least_bits"):
            self._refuse(sent, *answer(NotAllowedError(NO_TRANSACTIONS)))
        elif self._store.full and isinstance(producer.partition, Partition):
            self._refuse(sent, *answer(DiskFullError()))
        else:
            self._append(producer, sent, metadata, frame.payload)

    def close(self) -> None:
        """Give all names back; the connection is closed."""
        self._producers.close_all()
        self._store.pressure.discard(self._release)

    def pause(self) -> None:
        """Hold reading while too much of what the client sent waits to be stored."""
        full = self._pending > MAX_PENDING_BYTES or (self._pending and self._store.congested)
        if full and not self._held:
            self._held = True
            self._connection.hold_reading(_READ_HOLD)
            self._store.pressure.add(self._release)

    def _check_unusual(self, sent: pb.CommandSend, payload: bytes) -> pb.MessageMetadata | None:
        """Return the metadata of a payload that is not as usual; None: it was refused."""
        parts = _intact(payload)
        if parts is None:
            self._refuse(sent, pb.ChecksumError, "Checksum failed on the broker")
        elif (flaw := _flaw(parts)) is not None:
            self._refuse(sent, *answer(flaw))
        else:
            return parts.metadata
        return None

    def _append(
        self,
        producer: PulsarProducer,
        sent: pb.CommandSend,
        metadata: pb.MessageMetadata,
        payload: bytes,
    ) -> None:
        # What the metadata says counts, not the command: consumers are sent the metadata only.
        messages = metadata.num_messages_in_batch
        mark = None
        if producer.deduplicated:
            highest = max(sent.sequence_id, sent.highest_sequence_id)
            if highest > MAX_SEQUENCE:
                self._refuse(sent, *answer(BadRequestError(f"sequence id {highest} is too large")))
                return
            if self._known(producer, sent, messages):
                return
            # Chunks of a message share its sequence id: it is stored with the last of them.
            if metadata.chunk_id >= metadata.num_chunks_from_msg - 1:
                mark = (producer.name, highest)
        size = len(payload) + ENTRY_OVERHEAD_BYTES
        stored = partial(self._stored, producer, sent.sequence_id, sent.highest_sequence_id, size)
        try:
            now = int(self._clock() * 1000)
            producer.append(payload, PULSAR_FORMAT, messages, now, stored, mark)
        except (StoreError, TopicTerminatedError) as failure:
            self._refuse(sent, *answer(failure))
            return
        self._pending += size
        producer.tally.entries += 1
        producer.tally.bytes += len(payload)

    def _known(self, producer: PulsarProducer, sent: pb.CommandSend, messages: int) -> bool:
        """Answer a SEND that was stored before, when that is on disk; return whether it was."""
        assert isinstance(producer.partition, Partition)
        ledger = producer.partition.ledger
        mark = ledger.producers.last(producer.name)
        if mark is None or sent.sequence_id > mark.sequence:
            return False
        # Of all that a producer stored, only the last one's place is remembered.
        last = max(sent.sequence_id, sent.highest_sequence_id) == mark.sequence
        receipt = pb.CommandSendReceipt(
            producer_id=sent.producer_id,
            sequence_id=sent.sequence_id,
            highest_sequence_id=sent.highest_sequence_id,
            message_id=pb.MessageIdData(
                ledgerId=ledger.id if last else NO_POSITION,
                entryId=mark.entry if last else NO_POSITION,
            ),
            stored_messages=mark.messages if last else messages,
        )
        command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=receipt)
        self._store.after_sync(partial(self._client.send, command))
        return True

    def _stored(
        self, producer: PulsarProducer, sequence_id: int, highest: int, size: int, entry: int
    ) -> None:
        """Send the receipt of an entry that is on disk."""
        self._pending -= size
        if self._held:
            self._release()
        body, place = self._body, self._place
        body.producer_id = producer.producer_id
        body.sequence_id = sequence_id
        body.highest_sequence_id = highest
        place.ledgerId = producer.ledger_id
        place.entryId = entry
        self._connection.write(encode(self._receipt))

    def _refuse(self, sent: pb.CommandSend, number: pb.ServerError, sentence: str) -> None:
        failed = pb.CommandSendError(
            producer_id=sent.producer_id,
            sequence_id=sent.sequence_id,
            error=number,
            message=sentence,
        )
        command = pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR, send_error=failed)
        # Behind the receipts of what was sent before: clients match answers in order.
        if isinstance(self._found[sent.producer_id].partition, Partition):
            self._store.after_sync(partial(self._client.send, command))
        else:
            self._client.send(command)

    def _release(self) -> None:
        """Read again if there is room."""
        if self._pending < MAX_PENDING_BYTES // 2 and not self._store.congested:
            self._held = False
            self._store.pressure.discard(self._release)
            self._connection.release_reading(_READ_HOLD)


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
