"""Owns filling the topic of a stream that is restored, which is shown only when all is in it.

Theory of operation. A sequence is a message number plus 1, and numbers have no gaps. So a gap is
entries of deleted messages that hold no bytes, each for up to GAP_NUMBERS numbers. Messages of one
millisecond share an entry, which has one time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from router.broker.consume.cursor.pending import MAX_PENDING, DeliveryRules
from router.broker.consume.membership.live_members import OWNER
from router.broker.nats.consumers.consumer import ack_rules
from router.broker.nats.consumers.consumers import (
    CONFIG_PROPERTY,
    OWNER_NAME,
    STATE_PROPERTY,
    dumped,
)
from router.broker.nats.consumers.state import ConsumerState, DeliveryPosition, PendingDelivery
from router.broker.nats.streams.log.messages import NS_PER_MS
from router.broker.nats.streams.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_MESSAGES
from router.broker.storage import NATS_FORMAT, Ledger, Store
from router.errors import DiskFullError
from router.wire.nats.archive.parts import (
    ArchivedBounds,
    ArchivedConsumer,
    ArchivedDeletion,
    ArchivedMessage,
    ConsumerPosition,
    Part,
    damaged,
)
from router.wire.nats.headers import VERSION
from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.consumer_rules import check_new_consumer, checked_consumer
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.message import NatsMessage
from router.wire.nats.stored import pack
from router.wire.nats.subjects import is_literal

GAP_NUMBERS: Final = 1 << 20
"""Of one entry; readers take a bit for each."""
MAX_GAP_ENTRIES: Final = 100_000
SYNC_BYTES: Final = 4 << 20
"""After which a restore waits for the disk."""
_GAP: Final = b"\x01"
"""The payload of an entry that has no message of NATS."""


class StreamBuilder:
    """Stores the parts of an archive in an empty ledger; `first` is the first sequence kept."""

    def __init__(
        self, store: Store, ledger: Ledger, config: StreamConfig, first: int, max_consumers: int
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._config = config
        self._bounds = ArchivedBounds(first, 0)
        self._max_consumers = max_consumers
        self._consumers: dict[str, ArchivedConsumer] = {}
        self._entry: list[NatsMessage] = []
        self._entry_size = self._unsynced = self._gaps = self._time_ms = 0

    async def add(self, parts: Sequence[Part]) -> None:
        """Store what comes next. Raises ProtocolError, StoreError, DiskFullError."""
        for part in parts:
            if isinstance(part, ArchivedMessage):
                self._add_message(part)
            elif isinstance(part, ArchivedDeletion):
                self._add_deletion(part.sequence)
            elif isinstance(part, ArchivedConsumer):
                self._add_consumer(part)
            else:
                self._bounds = part
            if self._unsynced > SYNC_BYTES:
                await self._sync()

    async def finish(self) -> None:
        """Return when all is on disk, consumers too.

        Raises ProtocolError, JetStreamError, StoreError, DiskFullError.
        """
        self._fill_to(max(self._bounds.last, self._bounds.first - 1))
        self._append()
        await self._sync()
        for consumer in self._consumers.values():
            await self._make_consumer(consumer)

    @property
    def _last(self) -> int:
        """Return the last sequence that was taken."""
        return self._ledger.next_index + len(self._entry)

    def _add_message(self, message: ArchivedMessage) -> None:
        sequence, subject, headers, payload, time_ns = message
        if sequence < self._bounds.first or sequence <= self._last:
            return  # a limit of the stream deleted it, or it was written twice
        if not is_literal(subject):
            raise damaged(f"message {sequence} has no subject")
        if headers and not headers.startswith(VERSION):
            raise damaged(f"message {sequence} has no headers of NATS")
        size = len(headers) + len(payload)
        if 0 <= self._config.max_msg_size < size:
            raise damaged(f"message {sequence} is larger than max_msg_size")
        self._fill_to(sequence - 1)
        time_ms = max(0, time_ns // NS_PER_MS)
        full = self._entry_size + size > MAX_ENTRY_BYTES or len(self._entry) >= MAX_ENTRY_MESSAGES
        if full or time_ms != self._time_ms:
            self._append()
        self._time_ms = time_ms
        self._entry.append(NatsMessage(subject, headers=headers, payload=payload))
        self._entry_size += size

    def _add_deletion(self, sequence: int) -> None:
        self._append()
        if sequence > self._last:
            self._bounds = self._bounds._replace(last=max(self._bounds.last, sequence))
        else:
            self._store.delete_messages(self._ledger, [(sequence - 1, sequence - 1)], None)

    def _add_consumer(self, consumer: ArchivedConsumer) -> None:
        if len(self._consumers) >= self._max_consumers:
            raise damaged(f"it has more than {self._max_consumers} consumers")
        self._consumers[consumer.name] = consumer

    def _fill_to(self, last: int) -> None:
        """Have the numbers up to a sequence be those of deleted messages."""
        first = self._last + 1
        if last < first:
            return
        self._append()
        self._gaps += -(-(last + 1 - first) // GAP_NUMBERS)
        if self._gaps > MAX_GAP_ENTRIES:
            raise damaged("its sequences lie too far apart")
        while (left := last - self._last) > 0:
            self._store_entry(_GAP, min(left, GAP_NUMBERS))
        self._store.delete_messages(self._ledger, [(first - 1, last - 1)], None)

    def _append(self) -> None:
        """Store the messages that wait for others of their time."""
        messages, self._entry, self._entry_size = self._entry, [], 0
        if messages:
            self._store_entry(pack(messages), len(messages))

    def _store_entry(self, payload: bytes, messages: int) -> None:
        if self._store.full:
            raise DiskFullError("the disk of the node is full")
        self._ledger.append(payload, NATS_FORMAT, messages, self._time_ms, _ignore)
        self._unsynced += len(payload) + 64

    async def _sync(self) -> None:
        self._unsynced = 0
        await self._store.synced()

    async def _make_consumer(self, consumer: ArchivedConsumer) -> None:
        """Store a durable consumer; one that is not lives in memory alone."""
        try:
            config = ConsumerConfig.from_json(consumer.config)
            if not config.is_durable:
                return
            if (config.pause_until or 0) <= 0:
                config = replace(config, pause_until=None)
            config = checked_consumer(config, self._config)
            check_new_consumer(config, self._config)
        except JetStreamError as refusal:
            raise damaged(f"consumer {consumer.name}: {refusal.description}") from None
        rules = ack_rules(config, self._config.retention)
        state = _restored_state(rules, consumer.position, self._last)
        start = next(iter(state.pending()), state.next_sequence)
        entry = await self._ledger.entry_of_number(start - 1)
        properties = {
            OWNER: OWNER_NAME,
            CONFIG_PROPERTY: dumped(config),
            STATE_PROPERTY: state.dump(),
        }
        await self._store.create_subscription(
            self._ledger.id, config.durable_name, entry - 1, properties, passive=True
        )


def _restored_state(rules: DeliveryRules, position: ConsumerPosition, last: int) -> ConsumerState:
    """Return the state of a consumer of a stream that ends with a sequence; raise ProtocolError."""
    if len(position.pending) > MAX_PENDING:
        raise damaged(f"a consumer has more than {MAX_PENDING} pending messages")
    delivered = DeliveryPosition(position.delivered[0], min(position.delivered[1], last))
    floor = DeliveryPosition(position.floor[0], min(position.floor[1], delivered.stream))
    pending = []
    for sequence, (number, time_ns) in sorted(position.pending.items()):
        if floor.stream < sequence <= delivered.stream:
            count = 1 + min(position.redelivered.get(sequence, 0), MAX_PENDING)
            pending.append(PendingDelivery(sequence, number, count, time_ns + rules.wait(count)))
    return ConsumerState.standing_at(rules, delivered, floor, pending)


def _ignore(_entry: int) -> None:
    """Do nothing: `synced` waits for all entries."""
