"""Owns the open transactions of a broker: what belongs to each, and how one is decided.

Theory of operation. Entries of a transaction are appended like all others. As long as it is open
they are the end of what may be delivered of their partition (`Ledger.undecided`), so nothing that
stands behind them is delivered either, and all readers keep the order of the log. A transaction
that is committed ends only this; of one that is aborted the messages are deleted, which all readers
know how to pass over.

All partitions share one journal, so there is no second phase: the decision is one record, and with
it the transaction is decided everywhere. It is on disk before anything follows from it. What
follows (messages deleted, positions set, acknowledgements made, the transaction forgotten) is one
step of the event loop, in one commit group; a start that finds a decision without it takes this
step again, which changes nothing where it was taken. The alternative, markers in every partition as
Apache Kafka writes them, is needed where partitions have logs of their own.

A transaction is stored as values of one owner (`StoredValues`): when it began, the partitions that
it joined, the ranges of its messages, positions, acknowledgements, and the decision. A start finds
the open ones as they were, and they go on; their time goes on too. What a client added to a
transaction is on disk with the answer. `abort_due` aborts those whose time is over: `expire`, if
the dialect set one, otherwise `decide`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from operator import attrgetter
from struct import Struct
from typing import Final

import orjson
import structlog

from router.access.principal_shares import PrincipalShares
from router.broker.consume import Partition
from router.broker.storage import (
    CommittedPosition,
    DamagedError,
    Ledger,
    StoreError,
    Undecided,
    ValueChange,
    ValueOperation,
)
from router.broker.topics.offsets import Forget, GroupOffsets, PlacedCommit
from router.broker.topics.topics import Topics
from router.broker.transactions.acknowledgements import (
    CUMULATIVE,
    ENTRY,
    TransactionAcknowledgements,
    restore_cumulative,
    restore_entry,
)
from router.broker.transactions.errors import Refusal, TransactionError
from router.broker.transactions.transaction import (
    JoinedPartition,
    PositionKey,
    SubscriptionKey,
    Transaction,
    part_size,
)
from router.errors import RouterError
from router.model import TopicName

MAX_OPEN: Final = 10_000
"""Shared by principals: one needs no right to begin a transaction."""
MAX_BYTES: Final = 256 << 20
"""Of the parts of all open transactions; shared by principals."""
MAX_PARTITIONS: Final = 10_000
"""In one transaction."""
MAX_POSITIONS: Final = 10_000
"""In one transaction."""
MAX_RANGES: Final = 100_000
"""Of messages in one transaction, with messages of others between them."""
CHECK_SECONDS: Final = 1.0
"""How often it is looked for transactions whose time is over, while there are any."""
_OWNER: Final = "transaction/"
_BEGUN: Final = "begun"
_DECISION: Final = "decision"
_RANGE: Final = Struct(">QQ")
_log = structlog.get_logger(__name__)


class TransactionCoordinator:
    """The open transactions of a broker; used on the event loop.

    `timed_out` counts those that were aborted because their time was over.
    """

    def __init__(self, topics: Topics, forget: Forget) -> None:
        self.expire: Callable[[Transaction], Awaitable[None]] = self.abort
        self._topics = topics
        self._store = topics.store
        self._offsets = GroupOffsets(topics, forget)
        self._shares = PrincipalShares(MAX_OPEN)
        self._memory = PrincipalShares(MAX_BYTES)
        self.acknowledgements = TransactionAcknowledgements(
            topics.store, self._partition, self._check_memory, self._put
        )
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, Transaction] = {}
        self._undecided: dict[int, dict[Transaction, Undecided]] = {}
        # In how many open transactions a position is.
        self._positions: Counter[PositionKey] = Counter()
        self.timed_out = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> Collection[Transaction]:
        """The open transactions, and those that are being decided, in the order of their begin."""
        return self._open.values()

    def oldest_seconds(self) -> float:
        """Return the age of the transaction that is open for longest, 0: none is open."""
        if not self._open:
            return 0.0
        oldest = next(iter(self._open.values()))
        return max(0, self._topics.now_ms() - oldest.begun_ms) / 1_000

    def find(self, key: str) -> Transaction | None:
        """Return the open transaction of a name, or one that is being decided."""
        return self._open.get(key)

    async def load(self) -> None:
        """Go on with what was open, and finish what was decided; once, before clients are served.

        Raises StoreError.
        """
        restored: list[Transaction] = []
        for owner in self._store.values.owners(_OWNER):
            transaction = self._restore(owner)
            if transaction is None:
                self._store.change_value(ValueChange(ValueOperation.DROP, owner))
                continue
            restored.append(transaction)
        for transaction in sorted(restored, key=attrgetter("begun_ms")):
            self._add(transaction)
            for joined in transaction.partitions.values():
                self._hold(transaction, joined)
            self.acknowledgements.restore(transaction)
        for transaction in list(self._open.values()):
            if transaction.committed is not None:
                await self._finish(transaction)
        self._watch()

    def begin(self, key: str, timeout_ms: int, owner: str = "") -> Transaction:
        """Begin a transaction; raise TransactionError if too many are open, or of the owner."""
        if self._shares.is_full(owner):
            sentence = f"too many transactions are open: {self._shares.rule}"
            raise TransactionError(Refusal.TOO_MANY, sentence)
        now_ms = self._topics.now_ms()
        deadline = self._loop.time() + timeout_ms / 1_000
        transaction = Transaction(key, now_ms, timeout_ms, deadline, owner=owner)
        self._add(transaction)
        self._put(transaction, _BEGUN, orjson.dumps([now_ms, timeout_ms, owner]))
        self._watch()
        return transaction

    def join(self, transaction: Transaction, ledger: Ledger) -> None:
        """Add a partition; raise TransactionError if there are too many, or it is being decided."""
        if transaction.committed is not None:
            raise TransactionError(Refusal.BUSY, "the transaction is being decided")
        if ledger.id in transaction.partitions:
            return
        self._check_memory(transaction)
        if len(transaction.partitions) >= MAX_PARTITIONS:
            sentence = f"a transaction has {MAX_PARTITIONS} partitions"
            raise TransactionError(Refusal.TOO_MANY, sentence)
        transaction.partitions[ledger.id] = JoinedPartition(ledger)
        self._put(transaction, f"p/{ledger.id}", b"")

    def check_space(self, transaction: Transaction) -> None:
        """Raise TransactionError if a transaction may have no more entries."""
        self._check_memory(transaction)
        if transaction.ranges >= MAX_RANGES:
            sentence = f"messages of others divide a transaction into {MAX_RANGES} parts"
            raise TransactionError(Refusal.TOO_MANY, sentence)

    def appended(self, transaction: Transaction, ledger: Ledger, messages: int) -> None:
        """Take the entry that was appended last; in the step that appended it, after `join`."""
        joined = transaction.partitions[ledger.id]
        entry, last = ledger.next_entry - 1, ledger.next_index - 1
        is_first = joined.undecided is None
        begin = joined.add(last + 1 - messages, last, entry)
        transaction.ranges += begin.number == last + 1 - messages
        self._put(transaction, f"r/{ledger.id}/{begin.number}", _RANGE.pack(last, begin.entry))
        if is_first:
            self._hold(transaction, joined)

    def set_position(
        self, transaction: Transaction, ledger: Ledger, name: str, commit: CommittedPosition
    ) -> None:
        """Take a position that a group gets if the transaction is committed."""
        key, positions = PositionKey(ledger.id, name), transaction.positions
        self._check_memory(transaction)
        if transaction.committed is not None:
            raise TransactionError(Refusal.BUSY, "the transaction is being decided")
        if key not in positions:
            if len(positions) >= MAX_POSITIONS:
                sentence = f"a transaction commits {MAX_POSITIONS} positions"
                raise TransactionError(Refusal.TOO_MANY, sentence)
            self._positions[key] += 1
        positions[key] = commit
        self._put(transaction, f"o/{key.ledger}/{key.name}", commit.dump())

    def awaits_position(self, ledger: Ledger, name: str) -> bool:
        """Return whether an open transaction will commit a position of a group."""
        return PositionKey(ledger.id, name) in self._positions

    def undecided(self, ledger: Ledger) -> Mapping[Transaction, Undecided]:
        """Return where the messages of each open transaction begin in a partition."""
        return self._undecided.get(ledger.id, {})

    async def abort(self, transaction: Transaction) -> None:
        """Abort a transaction; raise as `decide` does."""
        await self.decide(transaction, commit=False)

    async def decide(
        self, transaction: Transaction, *, commit: bool, note: Callable[[], None] | None = None
    ) -> None:
        """Commit or abort; on return that is on disk, and readers see it.

        `note` changes what is to be on disk with the decision. Raises TransactionError if the
        transaction is being decided, StoreError. If the caller is cancelled it is decided all the
        same.
        """
        if transaction.committed is not None:
            raise TransactionError(Refusal.BUSY, "the transaction is being decided")
        transaction.committed = commit
        task = self._loop.create_task(self._decide(transaction, note))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def close(self) -> None:
        """End; what is open stays open, and the next start goes on with it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _decide(self, transaction: Transaction, note: Callable[[], None] | None) -> None:
        if not all(joined.is_durable for joined in transaction.partitions.values()):
            await self._store.synced()
        self._put(transaction, _DECISION, b"\1" if transaction.committed else b"\0")
        if note is not None:
            note()
        await self._store.synced()
        await self._finish(transaction)

    async def _finish(self, transaction: Transaction) -> None:
        """Do what follows from a decision that is on disk."""
        placed: list[PlacedCommit] = []
        if transaction.committed:
            placed = await self._place(transaction)
            await self.acknowledgements.begin_commit(transaction)
        else:
            await self.acknowledgements.begin_abort(transaction)
        # From here on it is one step.
        for one in placed:
            try:
                self._offsets.apply(one)
            except RouterError as error:  # its topic or its group was deleted meanwhile
                _log.warning(
                    "transaction-position-lost", transaction=transaction.key, reason=str(error)
                )
        if transaction.committed:
            self.acknowledgements.commit(transaction)
        else:
            for joined in transaction.partitions.values():
                if joined.ranges:
                    self._store.delete_messages(joined.ledger, list(joined.ranges.items()))
        self._store.change_value(ValueChange(ValueOperation.DROP, _OWNER + transaction.key))
        self._remove(transaction)
        self._release(transaction)
        if not transaction.committed:
            self.acknowledgements.abort(transaction)

    async def _place(self, transaction: Transaction) -> list[PlacedCommit]:
        placed = []
        for key, commit in transaction.positions.items():
            try:
                partition = self._partition(key.ledger)
                if partition is not None:
                    placed.append(await self._offsets.place(partition, key.name, commit))
            except (RouterError, DamagedError, OSError) as error:
                _log.warning(
                    "transaction-position-lost",
                    transaction=transaction.key,
                    subscription=key.name,
                    reason=str(error),
                )
        return placed

    def _partition(self, ledger_id: int) -> Partition | None:
        """Return the partition of a log; None: its topic was deleted."""
        try:
            topic = self._store.topic(self._store.ledger(ledger_id).topic_id)
        except KeyError:
            return None
        if topic is None:
            return None
        name = TopicName.parse(topic.name)
        if topic.partitions:
            name = name.partition(topic.ledger_ids.index(ledger_id))
        return self._topics.opened(str(name))

    def _add(self, transaction: Transaction) -> None:
        self._open[transaction.key] = transaction
        self._shares.add(transaction.owner, 1)
        self._positions.update(transaction.positions.keys())
        self._memory.add(transaction.owner, transaction.size_bytes)

    def _remove(self, transaction: Transaction) -> None:
        del self._open[transaction.key]
        self._shares.add(transaction.owner, -1)
        self._memory.add(transaction.owner, -transaction.size_bytes)
        for key in transaction.positions:
            self._positions[key] -= 1
            if not self._positions[key]:
                del self._positions[key]

    def _hold(self, transaction: Transaction, joined: JoinedPartition) -> None:
        """Deliver nothing of a partition from the first message of a transaction on."""
        if (undecided := joined.undecided) is not None:
            open_here = self._undecided.setdefault(joined.ledger.id, {})
            open_here[transaction] = undecided
            joined.ledger.undecided = min(open_here.values())

    def _release(self, transaction: Transaction) -> None:
        """Deliver what stood behind the messages of a transaction that is decided."""
        for ledger_id, joined in transaction.partitions.items():
            open_here = self._undecided.get(ledger_id, {})
            if open_here.pop(transaction, None) is not None:
                joined.ledger.undecided = min(open_here.values(), default=None)
                if not open_here:
                    del self._undecided[ledger_id]
                joined.ledger.announce()

    def _check_memory(self, transaction: Transaction) -> None:
        """Raise TransactionError if a transaction may have no more parts.

        What one request adds is bounded by the size of a frame.
        """
        if self._memory.is_full(transaction.owner):
            sentence = f"the parts of open transactions have too many bytes: {self._memory.rule}"
            raise TransactionError(Refusal.TOO_MANY, sentence)

    def _put(self, transaction: Transaction, key: str, value: bytes) -> None:
        owner = _OWNER + transaction.key
        before = self._store.values.of(owner).get(key)
        size = part_size(key, value) - part_size(key, before)
        transaction.size_bytes += size
        self._memory.add(transaction.owner, size)
        self._store.change_value(ValueChange(ValueOperation.PUT, owner, key, value))

    def _restore(self, stored: str) -> Transaction | None:
        """Return a transaction as it was stored; None: not when it began."""
        values = self._store.values.of(stored)
        if _BEGUN not in values:
            return None
        begun_ms, timeout_ms, owner = orjson.loads(values[_BEGUN])
        passed_ms = min(max(0, self._topics.now_ms() - begun_ms), timeout_ms)
        deadline = self._loop.time() + (timeout_ms - passed_ms) / 1_000
        key = stored.removeprefix(_OWNER)
        found = Transaction(key, begun_ms, timeout_ms, deadline, owner=owner)
        for key, value in sorted(values.items()):
            kind, _, rest = key.partition("/")
            if kind == _DECISION:
                found.committed = value == b"\1"
            elif kind != _BEGUN:
                ledger_id, _, name = rest.partition("/")
                left = self._restore_part(found, kind, int(ledger_id), name, value)
                if left is None:
                    self._store.change_value(ValueChange(ValueOperation.REMOVE, stored, key))
                elif left != value:
                    change = ValueChange(ValueOperation.PUT, stored, key, left)
                    self._store.change_value(change)
        parts = self._store.values.of(stored)
        found.size_bytes = sum(part_size(key, value) for key, value in parts.items())
        return found

    def _restore_part(
        self, found: Transaction, kind: str, ledger_id: int, name: str, value: bytes
    ) -> bytes | None:
        """Take a partition (`p`), a range of messages (`r`), a position (`o`) or what is acked.

        Returns the value as it is from now on, None: nothing is left of it. Messages that a power
        cut took in relaxed mode belong to no transaction: their numbers are given out again.
        """
        try:
            ledger = self._store.ledger(ledger_id)
        except KeyError:  # its topic was deleted
            return None
        if kind == "o":
            found.positions[PositionKey(ledger_id, name)] = CommittedPosition.read(value, 0)[0]
        elif kind == ENTRY:
            number, entry, name = name.split("/", 2)
            if int(entry) >= ledger.next_entry:
                return None
            acks = found.acks.setdefault(SubscriptionKey(ledger_id, int(number), name), {})
            acks[int(entry)] = restore_entry(value)
        elif kind == CUMULATIVE:
            number, _, name = name.partition("/")
            ack = restore_cumulative(value)
            if ack.entry >= ledger.next_entry:
                return None
            found.cumulative[SubscriptionKey(ledger_id, int(number), name)] = ack
        else:
            joined = found.partitions.setdefault(ledger_id, JoinedPartition(ledger))
            if kind == "r":
                last, entry = _RANGE.unpack(value)
                kept = joined.restore(Undecided(entry, int(name)), last)
                if kept is None:
                    return None
                found.ranges += 1
                return _RANGE.pack(kept, entry)
        return value

    def _watch(self) -> None:
        if self._timer is None and self._open:
            self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        for transaction in list(self._open.values()):
            if transaction.deadline <= now and transaction.committed is None:
                _log.warning("transaction-timed-out", transaction=transaction.key)
                task = self._loop.create_task(self._abort_due(transaction))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._watch()

    async def _abort_due(self, transaction: Transaction) -> None:
        try:
            await self.expire(transaction)
        except TransactionError:  # it was decided meanwhile
            return
        except StoreError as error:  # the broker ends; the next one finds it open, or decided
            _log.warning("transaction-not-aborted", transaction=transaction.key, reason=str(error))
        else:
            self.timed_out += 1
