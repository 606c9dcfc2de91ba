"""The producers of one connection: opening them, storing what they send, receipts in order.

Theory of operation. A SEND is checked, handed to its ledger and forgotten; the ledger calls back
when the entry is on disk, in the order of the appends, and the callback writes the receipt. All
that is not a receipt (refusals, duplicates, the end of a producer) waits behind the same sync, so
that a client sees its answers in the order of its sends. No task stands behind a message.

What is not stored yet is bounded for each connection (MAX_PENDING) and for the node (the store is
`congested`): the client is then not read from. The alternative, refusing with an error, would make
every client resend at the very moment the disk has too much to do.

When the broker lets go of a producer (its topic is deleted, its name taken over), the client has
sent on until it hears of it. What still comes for such a producer is dropped: the client opens it
again and sends again what has no receipt. The numbers let go of are remembered for that, so that a
number that never was a producer's is still seen for the mistake that it is.

Deduplication compares sequence ids with what the producer's name stored last. It is off unless the
topic's policy or the producer asks for it, because clients that batch by key interleave their
sequence ids, and good messages would be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from router.broker.dispatch import NameBusyError, Partition, Producer
from router.broker.ledger import StoreError
from router.broker.pulsar.failures import answer, request_failed
from router.broker.pulsar.slots import Slots
from router.errors import (
    BadNameError,
    BadRequestError,
    BatchTooLargeError,
    DiskFullError,
    NotAllowedError,
    RouterError,
)
from router.wire.pulsar import (
    MAX_BATCH,
    Frame,
    Payload,
    ProtocolError,
    encode_parts,
    split_payload,
    verify_checksum,
)
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection
    from router.broker.pulsar.context import Handler
    from router.broker.pulsar.log import LogMessages

MAX_PRODUCERS: Final = 20_000
MAX_NAME: Final = 1_024
MAX_PENDING: Final = 8 << 20
# What an entry costs besides its bytes while it waits.
OVERHEAD: Final = 512
NOWHERE: Final = 2**64 - 1
# What PRODUCER_SUCCESS can say.
MAX_SEQUENCE: Final = 2**63 - 1
DEDUPLICATE: Final = "router-dedup"

_READ_HOLD: Final = "producing"


class Producing:
    """What one connection produces."""

    def __init__(self, connection: Connection, messages: LogMessages) -> None:
        self._connection = connection
        self._messages = messages
        self._topics = messages.topics
        self._store = messages.topics.store
        self._slots: Slots[Producer] = Slots(MAX_PRODUCERS, connection.handle)
        self._let_go: dict[int, None] = {}
        self._pending = 0
        self._held = False
        # Filled anew for each receipt, which costs less than building one.
        self._receipt = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
        self._body = self._receipt.send_receipt
        self._place = self._body.message_id

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.SEND: self.send,
            pb.BaseCommand.PRODUCER: self.open,
            pb.BaseCommand.CLOSE_PRODUCER: self.close,
        }

    @property
    def count(self) -> int:
        """Return how many producers are open."""
        return len(self._slots)

    def open(self, frame: Frame) -> None:
        """Open a producer; a number that is taken already answers as it did the first time."""
        asked = frame.command.producer
        present = self._slots.found.get(asked.producer_id)
        if present is not None:
            self._opened(present, asked.request_id)
            return
        if self._slots.defer(asked.producer_id, frame):
            return
        try:
            self._check(asked)
            partition = self._topics.opened(asked.topic)
            if partition is not None and not asked.initial_subscription_name:
                self._add(partition, asked)
                return
        except (RouterError, NameBusyError) as failure:
            self._connection.send(request_failed(asked.request_id, failure))
            return
        self._slots.begin(asked.producer_id)
        self._connection.spawn(self._open_later(asked))

    def send(self, frame: Frame) -> None:
        """Store an entry; the receipt follows when it is on disk."""
        sent = frame.command.send
        producer = self._slots.found.get(sent.producer_id)
        if producer is None:
            self._send_unopened(sent.producer_id, frame)
            return
        parts = _intact(frame.payload)
        if parts is None:
            self._refuse(sent, pb.ChecksumError, "Checksum failed on the broker")
        elif (flaw := _flaw(parts)) is not None:
            self._refuse(sent, *answer(flaw))
        elif self._store.full:
            self._refuse(sent, *answer(DiskFullError()))
        else:
            self._append(producer, sent, parts.metadata, frame.payload)

    def close(self, frame: Frame) -> None:
        """Close a producer once all that it sent is stored; one that is not open is closed."""
        asked = frame.command.close_producer
        if self._slots.defer(asked.producer_id, frame):
            return
        producer = self._slots.found.pop(asked.producer_id, None)

        def closed() -> None:
            if producer is not None:
                producer.partition.remove_producer(producer)
            success = pb.CommandSuccess(request_id=asked.request_id)
            self._connection.send(pb.BaseCommand(type=pb.BaseCommand.SUCCESS, success=success))

        self._store.after_sync(closed)

    def gone(self) -> None:
        """Give all names back: the connection is closed."""
        for producer in self._slots:
            producer.partition.remove_producer(producer)
        self._slots.clear()
        self._store.pressure.discard(self._release)

    def pause(self) -> None:
        """Read nothing from the client while there is no room for what it sends."""
        full = self._pending > MAX_PENDING or (self._pending and self._store.congested)
        if full and not self._held:
            self._held = True
            self._connection.hold_reading(_READ_HOLD)
            self._store.pressure.add(self._release)

    # What a partition asks of its producers' connection.

    def producer_closed(self, producer: Producer) -> None:
        """Tell the client that the broker let go of its producer."""
        self._slots.found.pop(producer.producer_id, None)
        self._let_go[producer.producer_id] = None
        if len(self._let_go) > MAX_PRODUCERS:
            del self._let_go[next(iter(self._let_go))]
        close = pb.CommandCloseProducer(producer_id=producer.producer_id, request_id=NOWHERE)
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=close)
        )

    def probe(self) -> None:
        """Find out whether the client is still there."""
        self._connection.probe()

    def _check(self, asked: pb.CommandProducer) -> None:
        if self._slots.full:
            raise NotAllowedError(f"a connection has at most {MAX_PRODUCERS} producers")
        if asked.producer_access_mode != pb.Shared:
            mode = pb.ProducerAccessMode.Name(asked.producer_access_mode)
            raise NotAllowedError(f"producer access mode {mode} is not served, only Shared")
        if max(len(asked.producer_name), len(asked.initial_subscription_name)) > MAX_NAME:
            raise BadNameError(f"names have at most {MAX_NAME} characters")

    async def _open_later(self, asked: pb.CommandProducer) -> None:
        try:
            partition = await self._topics.open(asked.topic, create=True)
            if name := asked.initial_subscription_name:
                await partition.subscribe(name, partition.ledger.first_entry)
            if not self._connection.closed:
                self._add(partition, asked)
        except (RouterError, NameBusyError) as failure:
            self._connection.send(request_failed(asked.request_id, failure))
        finally:
            self._slots.settle(asked.producer_id)

    def _add(self, partition: Partition, asked: pb.CommandProducer) -> None:
        properties = {pair.key: pair.value for pair in asked.metadata}
        producer = Producer(
            partition=partition,
            link=self,
            producer_id=asked.producer_id,
            name=asked.producer_name or self._messages.new_name("router"),
            epoch=asked.epoch,
            generated=not (asked.producer_name and asked.user_provided_producer_name),
            deduplicated=_deduplicated(partition, properties),
        )
        partition.add_producer(producer)
        self._slots.found[asked.producer_id] = producer
        self._let_go.pop(asked.producer_id, None)
        self._opened(producer, asked.request_id)

    def _opened(self, producer: Producer, request_id: int) -> None:
        last = None
        if producer.deduplicated:
            last = producer.partition.ledger.producers.last(producer.name)
        success = pb.CommandProducerSuccess(
            request_id=request_id,
            producer_name=producer.name,
            last_sequence_id=last.sequence if last else -1,
            schema_version=b"",
        )
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS, producer_success=success)
        if last is None:
            self._connection.send(command)
        else:
            # The client forgets what it is told is stored; so it must be.
            self._store.after_sync(partial(self._connection.send, command))

    def _send_unopened(self, number: int, frame: Frame) -> None:
        if not self._slots.defer(number, frame) and number not in self._let_go:
            raise ProtocolError(f"SEND for producer {number}, which is not open")

    def _append(
        self,
        producer: Producer,
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
        size = len(payload) + OVERHEAD
        stored = partial(self._stored, producer, sent.sequence_id, sent.highest_sequence_id, size)
        try:
            now = self._topics.now_ms()
            producer.partition.ledger.append(payload, messages, now, stored, mark)
        except StoreError as failure:
            self._refuse(sent, *answer(failure))
            return
        self._pending += size
        self._topics.tally.entries += 1
        self._topics.tally.bytes += len(payload)

    def _known(self, producer: Producer, sent: pb.CommandSend, messages: int) -> bool:
        """Answer a SEND that was stored before, when that is on disk; tell whether it was."""
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
                ledgerId=ledger.id if last else NOWHERE, entryId=mark.entry if last else NOWHERE
            ),
            stored_messages=mark.messages if last else messages,
        )
        command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=receipt)
        self._store.after_sync(partial(self._connection.send, command))
        return True

    def _stored(
        self, producer: Producer, sequence_id: int, highest: int, size: int, entry: int
    ) -> None:
        """Send the receipt of an entry that is on disk."""
        self._pending -= size
        if self._held:
            self._release()
        body, place = self._body, self._place
        body.producer_id = producer.producer_id
        body.sequence_id = sequence_id
        body.highest_sequence_id = highest
        place.ledgerId = producer.partition.ledger.id
        place.entryId = entry
        self._connection.write(*encode_parts(self._receipt))

    def _refuse(self, sent: pb.CommandSend, number: pb.ServerError, sentence: str) -> None:
        failed = pb.CommandSendError(
            producer_id=sent.producer_id,
            sequence_id=sent.sequence_id,
            error=number,
            message=sentence,
        )
        command = pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR, send_error=failed)
        # Behind the receipts of what was sent before: clients match answers in order.
        self._store.after_sync(partial(self._connection.send, command))

    def _release(self) -> None:
        """Read again if there is room."""
        if self._pending < MAX_PENDING // 2 and not self._store.congested:
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
    """Return why a payload must not be stored: nobody could read it, or count its messages."""
    if parts.broker_entry is not None:
        return BadRequestError("broker entry metadata is for the broker to add")
    messages = parts.metadata.num_messages_in_batch
    if messages > MAX_BATCH:
        return BatchTooLargeError(f"a batch has at most {MAX_BATCH} messages")
    return BadRequestError(f"a batch of {messages} messages") if messages < 1 else None


def _deduplicated(partition: Partition, properties: Mapping[str, str]) -> bool:
    asked = properties.get(DEDUPLICATE)
    if asked is not None:
        return asked == "true"
    return bool(partition.topic.policies.deduplication)
