"""Owns what open transactions acknowledge of subscriptions: it takes effect with the decision.

Theory of operation. `PartitionSubscription.delivered` of a subscription with such acknowledgements
is its `PendingAcks`, by which delivery leaves out what is held. Each is a value of its transaction,
too. With a commit they are made on the cursor, in the step that forgets the transaction; after an
abort their messages are delivered again, as if their consumers had returned them. A cumulative one
holds nothing, so that after its abort only the consumer that made it has anything to get again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import structlog

from router.broker.consume import ClientConsumer, Partition, PartitionSubscription
from router.broker.consume.cursor.pending_acks import (
    AcknowledgedError,
    CumulativeAck,
    EntryPart,
    PendingAcks,
)
from router.broker.storage import Ack, Store, words
from router.broker.topics.cursor_administration import acknowledge_now
from router.broker.transactions.errors import Refusal, TransactionError
from router.broker.transactions.transaction import SubscriptionKey, Transaction
from router.errors import RouterError

MAX_ACKS: Final = 100_000
"""Entries that one transaction acknowledges."""
ACKS_IN_STEP: Final = 1_000
"""Entries of a decided transaction that are done before the event loop serves others."""
ENTRY: Final = "a"
"""Begins the keys of values that are entries acknowledged one by one."""
CUMULATIVE: Final = "c"
_log = structlog.get_logger(__name__)


class TransactionAcknowledgements:
    """The acknowledgements of all open transactions.

    `partition` returns that of a log, None: it is gone. `check` raises TransactionError if a
    transaction may have no more parts; `put` stores a value of one.
    """

    def __init__(
        self,
        store: Store,
        partition: Callable[[int], Partition | None],
        check: Callable[[Transaction], None],
        put: Callable[[Transaction, str, bytes], None],
    ) -> None:
        self._store = store
        self._partition = partition
        self._check = check
        self._put = put

    def add(
        self,
        transaction: Transaction,
        subscription: PartitionSubscription,
        parts: Sequence[tuple[int, EntryPart]],
    ) -> None:
        """Acknowledge entries, or messages of them; all or none. On disk with the next sync.

        Raises TransactionError.
        """
        key = _key(subscription)
        if sum(map(len, transaction.acks.values())) + len(parts) > MAX_ACKS:
            sentence = f"a transaction acknowledges {MAX_ACKS} entries"
            raise TransactionError(Refusal.TOO_MANY, sentence)
        self._check(transaction)
        pending = _pending(subscription)
        taken: list[tuple[int, EntryPart]] = []
        try:
            for entry, part in parts:
                pending.check(entry, part)
                pending.hold(entry, part)
                taken.append((entry, part))
        except AcknowledgedError as error:
            pending.release(taken)
            _settle(subscription)
            raise TransactionError(Refusal.CONFLICT, str(error)) from error
        acks = transaction.acks.setdefault(key, {})
        for entry, part in taken:
            before, acks[entry] = acks.get(entry), part
            if before is not None:
                acks[entry] = before.joined(part)
                pending.release([(entry, before), (entry, part)])
                pending.hold(entry, acks[entry])
            place = f"{ENTRY}/{key.ledger}/{key.number}/{entry}/{key.name}"
            self._put(transaction, place, b"%x/%x" % acks[entry])
        if subscription.dispatcher is not None:
            whole = [entry for entry, _ in taken if pending.is_acked(entry)]
            subscription.dispatcher.hold_out(whole)

    def add_cumulative(
        self,
        transaction: Transaction,
        subscription: PartitionSubscription,
        ack: Ack,
        consumer: ClientConsumer,
    ) -> None:
        """Acknowledge all up to an entry; as `add`."""
        key = _key(subscription)
        self._check(transaction)
        pending = _pending(subscription)
        try:
            pending.check_cumulative(transaction, ack)
        except AcknowledgedError as error:
            _settle(subscription)
            raise TransactionError(Refusal.CONFLICT, str(error)) from error
        pending.cumulative = CumulativeAck(transaction, ack, consumer)
        transaction.cumulative[key] = ack
        left = b"/".join(b"%d" % word for word in (ack.entry, *ack.ack_set))
        place = f"{CUMULATIVE}/{key.ledger}/{key.number}/{key.name}"
        self._put(transaction, place, left)

    def restore(self, transaction: Transaction) -> None:
        """Hold what a transaction that was stored acknowledged."""
        for key, parts in transaction.acks.items():
            if (subscription := self._find(key)) is not None:
                pending = _pending(subscription)
                for entry, part in parts.items():
                    pending.hold(entry, part)
        for key, ack in transaction.cumulative.items():
            if (subscription := self._find(key)) is not None:
                _pending(subscription).cumulative = CumulativeAck(transaction, ack)

    async def begin_commit(self, transaction: Transaction) -> None:
        """Acknowledge for good most of what is much, ACKS_IN_STEP entries in each step.

        Delivery sees no difference, as nothing that is held is sent either. A start that finds the
        decision on disk makes them all once more.
        """
        async for subscription, parts in self._steps(transaction):
            self._acknowledge(subscription, parts, None)

    async def begin_abort(self, transaction: Transaction) -> None:
        """Deliver again most of what is much, in its order, ACKS_IN_STEP entries in each step.

        Nothing new is delivered meanwhile. A start that finds the decision on disk delivers again
        what is not acknowledged by then.
        """
        async for subscription, parts in self._steps(transaction):
            _pending(subscription).aborts.add(transaction)
            if subscription.dispatcher is not None:
                subscription.dispatcher.restore(parts)

    async def _steps(
        self, transaction: Transaction
    ) -> AsyncIterator[tuple[PartitionSubscription, dict[int, EntryPart]]]:
        """Yield entries in order, held no more, until ACKS_IN_STEP are left for the last step.

        Of each subscription one is left at least: it is held until then.
        """
        left = sum(map(len, transaction.acks.values()))
        for key, parts in transaction.acks.items():
            waiting = iter(sorted(parts))
            while left > ACKS_IN_STEP and len(parts) > 1:
                subscription = self._find(key)
                if subscription is None or not isinstance(subscription.delivered, PendingAcks):
                    break
                size = min(ACKS_IN_STEP, len(parts) - 1)
                some = {entry: parts.pop(entry) for entry in islice(waiting, size)}
                left -= size
                subscription.delivered.release(some.items())
                yield subscription, some
                await asyncio.sleep(0)

    def commit(self, transaction: Transaction) -> None:
        """Acknowledge for good what is left; on disk with whatever else this step changes."""
        for subscription, parts, cumulative in self._released(transaction):
            self._acknowledge(subscription, parts, cumulative)

    def abort(self, transaction: Transaction) -> None:
        """Deliver again what is left."""
        for subscription, parts, cumulative in self._released(transaction):
            if subscription.dispatcher is not None and parts:
                subscription.dispatcher.restore(sorted(parts))
            elif cumulative is not None and cumulative.consumer is not None:
                subscription.redeliver(cumulative.consumer, ())

    def _acknowledge(
        self,
        subscription: PartitionSubscription,
        parts: Mapping[int, EntryPart],
        cumulative: CumulativeAck | None,
    ) -> None:
        acks = [
            Ack(entry, ack_set=tuple(words(part.left))) for entry, part in sorted(parts.items())
        ]
        acks += [] if cumulative is None else [cumulative.ack]
        acknowledge_now(self._store, subscription, acks)

    def _released(
        self, transaction: Transaction
    ) -> list[tuple[PartitionSubscription, dict[int, EntryPart], CumulativeAck | None]]:
        """Hold nothing of a transaction any more; return what was held, by subscription."""
        found = []
        for key in {**transaction.acks, **transaction.cumulative}:
            subscription = self._find(key)
            if subscription is None or not isinstance(subscription.delivered, PendingAcks):
                _log.warning(
                    "transaction-acknowledgements-lost",
                    transaction=transaction.key,
                    subscription=key.name,
                )
                continue
            pending, parts = subscription.delivered, transaction.acks.get(key, {})
            pending.aborts.discard(transaction)
            pending.release(parts.items())
            cumulative = None
            if key in transaction.cumulative:
                cumulative, pending.cumulative = pending.cumulative, None
            _settle(subscription)
            found.append((subscription, parts, cumulative))
        return found

    def _find(self, key: SubscriptionKey) -> PartitionSubscription | None:
        """Return a subscription; None: it, or its topic, was deleted."""
        try:
            partition = self._partition(key.ledger)
        except RouterError:
            return None
        found = None if partition is None else partition.subscriptions.get(key.name)
        return found if found is not None and _key(found) == key else None


def restore_entry(value: bytes) -> EntryPart:
    """Return the part of an entry that was stored as bytes."""
    messages, left = value.split(b"/")
    return EntryPart(int(messages, 16), int(left, 16))


def restore_cumulative(value: bytes) -> Ack:
    """Return the cumulative acknowledgement that was stored as bytes."""
    entry, *left = map(int, value.split(b"/"))
    return Ack(entry, cumulative=True, ack_set=tuple(left))


def _key(subscription: PartitionSubscription) -> SubscriptionKey:
    record = subscription.record
    number = 0 if record is None else record.id  # those without a record take no part
    return SubscriptionKey(subscription.ledger.id, number, subscription.name)


def _pending(subscription: PartitionSubscription) -> PendingAcks:
    if not isinstance(subscription.delivered, PendingAcks):
        subscription.delivered = PendingAcks(subscription.cursor)
    return subscription.delivered


def _settle(subscription: PartitionSubscription) -> None:
    """Have delivery ask the cursor alone again if nothing is held."""
    if isinstance(subscription.delivered, PendingAcks) and subscription.delivered.idle:
        subscription.delivered = subscription.cursor
