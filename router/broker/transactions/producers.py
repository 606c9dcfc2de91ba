"""Owns transactional producers by name: which of those with one name may write, and until when.

Theory of operation. A producer that begins names itself and gets an id and an epoch. The one with
the name's newest epoch is the producer; all others are fenced, whatever they still send. The epoch
goes up when a producer begins, when one is aborted because its time is over or because an operator
says so, and, where the client understands it, when a transaction is decided: then nothing of one
transaction that comes late is taken for a part of the next. Behind the last epoch comes another id.

A name is a value of the store, which changes in the step of the decision that it tells of. One that
was not used for `EXPIRY_MS` is forgotten. A name belongs to the principal that used it first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from router.access.principal_shares import PrincipalShares
from router.broker.storage import Ledger, ValueChange, ValueOperation
from router.broker.topics.topics import Topics
from router.broker.transactions.coordinator import TransactionCoordinator
from router.broker.transactions.errors import Refusal, TransactionError
from router.broker.transactions.transaction import Transaction
from router.errors.quoting import quoted

MAX_TIMEOUT_MS: Final = 900_000
MAX_NAMES: Final = 100_000
"""Shared by principals."""
EXPIRY_MS: Final = 7 * 24 * 3_600_000
LOOK_MS: Final = 60_000
"""Between two looks for names that expired: it is a look at all names."""
PRODUCER_ID_BITS: Final = 32
"""Of the ids that are given out between two starts."""
LAST_EPOCH: Final = (1 << 15) - 2
_OWNER: Final = "transactional-producers"
_KEY: Final = "kafka/"


class ProducerEpoch(NamedTuple):
    """Which producer of a name it is: the id, and the epoch that goes up."""

    producer: int
    epoch: int


@dataclass(eq=False, slots=True)
class TransactionalProducer:
    """The producer of a name.

    `previous` is what it was until the epoch went up by its own call, so that the call may be
    repeated. `committed` is how its last transaction ended, None: it had none. `principal` is the
    name of the principal to which it belongs, "": anyone.
    """

    name: str
    principal: str
    current: ProducerEpoch
    timeout_ms: int
    used_ms: int
    previous: ProducerEpoch | None = None
    committed: bool | None = None

    def dump(self) -> bytes:
        """Return it as bytes that `load` understands."""
        return orjson.dumps(
            [
                self.principal,
                list(self.current),
                self.timeout_ms,
                self.used_ms,
                None if self.previous is None else list(self.previous),
                self.committed,
            ]
        )

    @classmethod
    def load(cls, name: str, value: bytes) -> TransactionalProducer:
        """Return the producer of a name that is stored as bytes."""
        principal, current, timeout_ms, used_ms, previous, committed = orjson.loads(value)
        before = None if previous is None else ProducerEpoch(*previous)
        epoch = ProducerEpoch(*current)
        return cls(name, principal, epoch, timeout_ms, used_ms, before, committed)


class TransactionalProducers:
    """The transactional producers of a broker; calls raise TransactionError, StoreError.

    `principal` of a call is the name of the principal that makes it; None: it may use any name.
    """

    def __init__(self, topics: Topics, transactions: TransactionCoordinator) -> None:
        self.transactions = transactions
        transactions.expire = self._expire
        self._topics = topics
        self._store = topics.store
        self._producer_ids = 0
        self._names: dict[str, TransactionalProducer] = {}
        self._by_id: dict[int, TransactionalProducer] = {}
        self._shares = PrincipalShares(MAX_NAMES)
        # When names that expired are looked for again.
        self._look_ms = 0

    def load(self) -> None:
        """Go on with the names that are stored; once, after the transactions were loaded."""
        for name, value in self._store.values.of(_OWNER).items():
            self._add(TransactionalProducer.load(name, value))

    @property
    def all(self) -> Collection[TransactionalProducer]:
        """All producers."""
        return self._names.values()

    def find(self, name: str) -> TransactionalProducer | None:
        """Return the producer of a name."""
        return self._names.get(name)

    def transaction(self, producer: TransactionalProducer) -> Transaction | None:
        """Return the transaction of a producer that is open or being decided."""
        return self.transactions.find(f"{_KEY}{producer.current.producer}")

    def of(self, transaction: Transaction) -> TransactionalProducer | None:
        """Return whose transaction it is; None: it is of no producer with a name."""
        _, is_named, number = transaction.key.partition(_KEY)
        return self._by_id.get(int(number)) if is_named else None

    def started(self, ledger: Ledger) -> dict[int, int]:
        """Return the first messages of open transactions in a partition, by the producers' ids."""
        return {
            producer.current.producer: undecided.number
            for transaction, undecided in self.transactions.undecided(ledger).items()
            if (producer := self.of(transaction)) is not None
        }

    def new_producer_id(self) -> int:
        """Return a number that no producer ever had, over restarts too."""
        self._producer_ids += 1
        return self._store.boot << PRODUCER_ID_BITS | self._producer_ids

    async def begin_producer(
        self,
        name: str,
        principal: str | None,
        timeout_ms: int,
        expected: ProducerEpoch | None = None,
    ) -> ProducerEpoch:
        """Return the id and epoch of a producer that begins; on disk on return.

        What the one before had open is aborted. `expected`: the producer is the one that has, or
        had before this call, this id and epoch, and wants the next.
        """
        if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
            sentence = f"a transaction lasts from 1 to {MAX_TIMEOUT_MS} ms"
            raise TransactionError(Refusal.INVALID_TIMEOUT, sentence)
        producer = self._names.get(name)
        if producer is None:
            producer = self._make(name, principal or "", timeout_ms)
            self._save(producer)
            begun = producer.current
            await self._store.synced()
            return begun
        self._check_principal(producer, principal)
        transaction = self.transaction(producer)
        if expected is not None and expected != producer.current:
            if transaction is None and expected == producer.previous:
                return producer.current
            raise _fenced(expected)
        if principal and not producer.principal:
            producer.principal = principal
            self._shares.add("", -1)
            self._shares.add(principal, 1)
        begun = producer.current

        def note() -> None:
            # What is returned is of this call, though another one may raise the epoch meanwhile.
            nonlocal begun
            producer.timeout_ms = timeout_ms
            producer.committed = producer.committed if transaction is None else False
            begun = self._raise_epoch(producer, repeatable=expected is not None)
            self._save(producer)

        if transaction is None:
            note()
            await self._store.synced()
        else:
            await self.transactions.decide(transaction, commit=False, note=note)
        return begun

    def check(
        self, name: str, principal: str | None, current: ProducerEpoch
    ) -> TransactionalProducer:
        """Return the producer of a name, which must be this one."""
        producer = self._names.get(name)
        if producer is None:
            raise TransactionError(Refusal.UNKNOWN_NAME, f"there is no producer {quoted(name)}")
        self._check_principal(producer, principal)
        if current.producer != producer.current.producer:
            if current == producer.previous:
                raise _fenced(current)
            sentence = f"{quoted(name)} has not the producer id {current.producer}"
            raise TransactionError(Refusal.UNKNOWN_PRODUCER, sentence)
        if current.epoch != producer.current.epoch:
            raise _fenced(current)
        return producer

    def join(self, producer: TransactionalProducer, ledger: Ledger) -> Transaction:
        """Add a partition to the transaction of a producer; it begins with its first one."""
        transaction = self.begun(producer)
        self.transactions.join(transaction, ledger)
        return transaction

    def begun(self, producer: TransactionalProducer) -> Transaction:
        """Return the open transaction of a producer, which begins if there is none."""
        transaction = self.transaction(producer)
        if transaction is None:
            key = f"{_KEY}{producer.current.producer}"
            return self.transactions.begin(key, producer.timeout_ms, producer.principal)
        if transaction.committed is not None:
            raise TransactionError(Refusal.BUSY, "the transaction is being decided")
        return transaction

    def joined(self, producer: TransactionalProducer, ledger: Ledger) -> Transaction:
        """Return the open transaction of a producer, to which a partition was added."""
        transaction = self.opened(producer)
        if ledger.id not in transaction.partitions:
            raise TransactionError(Refusal.NOT_JOINED, "the partition was not added before")
        return transaction

    def opened(self, producer: TransactionalProducer) -> Transaction:
        """Return the open transaction of a producer."""
        if self.transaction(producer) is None:
            raise TransactionError(Refusal.INVALID_STATE, "no transaction is open")
        return self.begun(producer)

    async def end(
        self,
        name: str,
        principal: str | None,
        current: ProducerEpoch,
        *,
        commit: bool,
        raises_epoch: bool,
    ) -> ProducerEpoch:
        """Commit or abort the transaction of a producer; return what the producer is from now on.

        A call may be repeated. With `raises_epoch` the next transaction has the next epoch.
        """
        producer = self._names.get(name)
        if producer is not None and raises_epoch and current == producer.previous:
            self._check_principal(producer, principal)
            if self.transaction(producer) is not None:
                raise TransactionError(Refusal.BUSY, "the transaction is being decided")
            if producer.committed is commit:
                return producer.current
        producer = self.check(name, principal, current)
        transaction, ended = self.transaction(producer), current

        def note() -> None:
            # As in `begin_producer`: a later producer's epoch is not this one's.
            nonlocal ended
            producer.committed = commit
            if raises_epoch:
                ended = self._raise_epoch(producer, repeatable=True)
            self._save(producer)

        if transaction is not None:
            await self.transactions.decide(transaction, commit=commit, note=note)
        elif raises_epoch and not commit:
            note()
            await self._store.synced()
        elif raises_epoch or producer.committed is not commit:
            raise TransactionError(Refusal.INVALID_STATE, "no transaction is open")
        return ended

    async def abort(self, fenced: ProducerEpoch, *, raised: bool = False) -> None:
        """Abort what a producer of this epoch, or an earlier one, has open, and fence it.

        `raised`: only of an earlier one, unless there is none behind it.
        """
        producer = self._by_id.get(fenced.producer)
        transaction = None if producer is None else self.transaction(producer)
        if producer is None or transaction is None:
            raise TransactionError(Refusal.INVALID_STATE, "no transaction is open")
        if fenced.epoch < min(producer.current.epoch + raised, LAST_EPOCH):
            raise _fenced(fenced)
        await self._expire(transaction)

    def expire_names(self) -> None:
        """Forget the names that were not used for long."""
        before = self._topics.now_ms() - EXPIRY_MS
        for producer in list(self._names.values()):
            if producer.used_ms < before and self.transaction(producer) is None:
                del self._names[producer.name]
                self._by_id.pop(producer.current.producer, None)
                self._shares.add(producer.principal, -1)
                self._store.change_value(ValueChange(ValueOperation.REMOVE, _OWNER, producer.name))

    async def _expire(self, transaction: Transaction) -> None:
        producer = self.of(transaction)

        def note() -> None:
            if producer is not None:
                producer.committed = False
                self._raise_epoch(producer, repeatable=False)
                self._save(producer)

        await self.transactions.decide(transaction, commit=False, note=note)

    def _make(self, name: str, principal: str, timeout_ms: int) -> TransactionalProducer:
        now_ms = self._topics.now_ms()
        # Later than the last look by less than LOOK_MS, and not before: the clock may be set back.
        looked = self._look_ms - LOOK_MS <= now_ms < self._look_ms
        if self._shares.is_full(principal) and not looked:
            self._look_ms = now_ms + LOOK_MS
            self.expire_names()
        if self._shares.is_full(principal):
            sentence = f"too many producers have names: {self._shares.rule}"
            raise TransactionError(Refusal.TOO_MANY, sentence)
        current = ProducerEpoch(self.new_producer_id(), 0)
        producer = TransactionalProducer(name, principal, current, timeout_ms, 0)
        self._add(producer)
        return producer

    def _add(self, producer: TransactionalProducer) -> None:
        self._shares.add(producer.principal, 1)
        self._names[producer.name] = self._by_id[producer.current.producer] = producer

    def _raise_epoch(self, producer: TransactionalProducer, *, repeatable: bool) -> ProducerEpoch:
        before = producer.current
        if before.epoch < LAST_EPOCH:
            producer.current = before._replace(epoch=before.epoch + 1)
        else:
            del self._by_id[before.producer]
            producer.current = ProducerEpoch(self.new_producer_id(), 0)
            self._by_id[producer.current.producer] = producer
        producer.previous = before if repeatable else None
        return producer.current

    def _save(self, producer: TransactionalProducer) -> None:
        producer.used_ms = self._topics.now_ms()
        change = ValueChange(ValueOperation.PUT, _OWNER, producer.name, producer.dump())
        self._store.change_value(change)

    def _check_principal(self, producer: TransactionalProducer, principal: str | None) -> None:
        if principal is not None and producer.principal not in {"", principal}:
            sentence = f"the producer {quoted(producer.name)} belongs to another principal"
            raise TransactionError(Refusal.FORBIDDEN, sentence)


def _fenced(current: ProducerEpoch) -> TransactionError:
    sentence = f"epoch {current.epoch} of the producer {current.producer} is over"
    return TransactionError(Refusal.FENCED, sentence)
