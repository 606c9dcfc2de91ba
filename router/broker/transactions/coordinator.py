"""Owns the open transactions of a broker: what belongs to each, and how one is decided.

Theory of operation. Entries of a transaction are appended like all others. As long as it is open
they are the end of what may be delivered of their partition (`Ledger.undecided`), so nothing that
stands behind them is delivered either, and all readers keep the order of the log. A transaction
that is committed ends only this; of one that is aborted the messages are deleted, which all readers
know how to pass over.

All partitions share one journal, so there is no second phase: the decision is one record, and with
it the transaction is decided everywhere. It is on disk before anything follows from it. What
follows (messages deleted, positions set, acknowledgements made, the transaction forgotten) is one
step of the event loop, in one commit group, but for the most of what is much: that is done in steps
before, so that others are served. A start that finds a decision and not what follows does it again,
which changes nothing where it was done. The alternative, markers in every partition as Apache Kafka
writes them, is needed where partitions have logs of their own.

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
from itertools import groupby
from operator import attrgetter, itemgetter
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
from router.broker.topics.steps import PARTS_IN_STEP, in_steps, steps_of
from router.broker.topics.topics import Topics
from router.broker.transactions.acknowledgements import TransactionAcknowledgements
from router.broker.transactions.errors import Refusal, TransactionError
from router.broker.transactions.restore import (
    BEGUN,
    DECISION,
    OWNER,
    RANGE,
    position_name,
    restore_transaction,
)
from router.broker.transactions.transaction import (
    JoinedPartition,
    PositionKey,
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
RETRY_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
"""When the place of a committed position is looked for again that the disk could not read."""
CHECK_SECONDS: Final = 1.0
"""How often it is looked for transactions whose time is over, while there are any."""
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
        for owner in self._store.values.owners(OWNER):
            now_ms, now = self._topics.now_ms(), self._loop.time()
            transaction = restore_transaction(self._store, owner, now_ms, now)
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
        self._put(transaction, BEGUN, orjson.dumps([now_ms, timeout_ms, owner]))
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
        self._put(transaction, f"r/{ledger.id}/{begin.number}", RANGE.pack(last, begin.entry))
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
        self._put(transaction, position_name(key), commit.dump())

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
        self._put(transaction, DECISION, b"\1" if transaction.committed else b"\0")
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
            await self._delete_messages(transaction)
            await self.acknowledgements.begin_abort(transaction)
        async for joined in in_steps(transaction.partitions.values()):
            self._release(transaction, joined)
        # From here on it is one step.
        for one in placed:
            self._set_position(transaction, one)
        if transaction.committed:
            self.acknowledgements.commit(transaction)
        self._store.change_value(ValueChange(ValueOperation.DROP, OWNER + transaction.key))
        self._remove(transaction)
        if not transaction.committed:
            self.acknowledgements.abort(transaction)

    async def _delete_messages(self, transaction: Transaction) -> None:
        """Delete the messages of a transaction: no reader but of uncommitted ones sees steps."""
        parts = (
            (joined.ledger, one)
            for joined in transaction.partitions.values()
            for one in joined.ranges.items()
        )
        async for step in steps_of(parts):
            for ledger, ranges in groupby(step, itemgetter(0)):
                self._store.delete_messages(ledger, [one for _, one in ranges])

    async def _place(self, transaction: Transaction) -> list[PlacedCommit]:
        """Set positions of what has many; return those that are left for the last step.

        One that is set is a part no more: a start would set it back to where it was by now.
        """
        placed = {}
        async for key, commit in in_steps(transaction.positions.items()):
            try:
                if (one := await self._placed(key, commit)) is not None:
                    placed[key] = one
            except (RouterError, DamagedError, OSError) as error:
                self._log_lost(transaction, key.name, error)
        async for key in in_steps(list(placed)[PARTS_IN_STEP:]):
            self._set_position(transaction, placed.pop(key))
            self._forget_position(transaction, key)
            change = ValueChange(ValueOperation.REMOVE, OWNER + transaction.key, position_name(key))
            self._store.change_value(change)
        return list(placed.values())

    async def _placed(self, key: PositionKey, commit: CommittedPosition) -> PlacedCommit | None:
        """Return where a position is; None: its topic is gone. Waits for a disk that cannot read.

        Without it the group would be served again what the transaction says that it has had.
        """
        pauses = iter(RETRY_SECONDS)
        while (partition := self._partition(key.ledger)) is not None:
            try:
                return await self._offsets.place(partition, key.name, commit)
            except OSError:
                if (pause := next(pauses, None)) is None:
                    raise
            await asyncio.sleep(pause)
        return None

    def _set_position(self, transaction: Transaction, placed: PlacedCommit) -> None:
        try:
            self._offsets.apply(placed)
        except RouterError as error:  # its topic or its group was deleted meanwhile
            self._log_lost(transaction, placed.subscription.name, error)

    def _log_lost(self, transaction: Transaction, name: str, error: Exception) -> None:
        _log.warning(
            "transaction-position-lost",
            transaction=transaction.key,
            subscription=name,
            reason=str(error),
        )

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
        for key in list(transaction.positions):
            self._forget_position(transaction, key)

    def _forget_position(self, transaction: Transaction, key: PositionKey) -> None:
        del transaction.positions[key]
        self._positions[key] -= 1
        if not self._positions[key]:
            del self._positions[key]

    def _hold(self, transaction: Transaction, joined: JoinedPartition) -> None:
        """Deliver nothing of a partition from the first message of a transaction on."""
        if (undecided := joined.undecided) is not None:
            open_here = self._undecided.setdefault(joined.ledger.id, {})
            open_here[transaction] = undecided
            joined.ledger.undecided = min(open_here.values())

    def _release(self, transaction: Transaction, joined: JoinedPartition) -> None:
        """Deliver what stood in a partition behind the messages of a transaction."""
        open_here = self._undecided.get(joined.ledger.id, {})
        if open_here.pop(transaction, None) is not None:
            joined.ledger.undecided = min(open_here.values(), default=None)
            if not open_here:
                del self._undecided[joined.ledger.id]
            joined.ledger.announce()

    def _check_memory(self, transaction: Transaction) -> None:
        """Raise TransactionError if a transaction may have no more parts.

        What one request adds is bounded by the size of a frame.
        """
        if self._memory.is_full(transaction.owner):
            sentence = f"the parts of open transactions have too many bytes: {self._memory.rule}"
            raise TransactionError(Refusal.TOO_MANY, sentence)

    def _put(self, transaction: Transaction, key: str, value: bytes) -> None:
        owner = OWNER + transaction.key
        before = self._store.values.of(owner).get(key)
        size = part_size(key, value) - part_size(key, before)
        transaction.size_bytes += size
        self._memory.add(transaction.owner, size)
        self._store.change_value(ValueChange(ValueOperation.PUT, owner, key, value))

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
