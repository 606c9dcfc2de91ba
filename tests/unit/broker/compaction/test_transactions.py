"""Transactions on a compacted topic, whatever order they are written, decided and cleaned in.

A reader gets the newest value of each key that is committed and not behind an open transaction. One
that was aborted takes no older value of its keys with it, and none comes back that was replaced.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from router.broker.storage import KAFKA_FORMAT
from router.broker.transactions import Transaction, TransactionCoordinator
from tests.unit.broker.compaction.log import History, Log, opened, run
from tests.unit.broker.compaction.test_cleaner import EAGER, fill
from tests.unit.broker.in_memory import IN_MEMORY

KEYS = (b"a", b"b", b"c")
FILLERS = 12
"""Messages of other keys, which close segments."""
pick = st.integers(0, 9)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "write", "write", "write", "begin", "commit", "abort", "clean"]),
        pick,
        pick,
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Written:
    """Messages by number, and the open transactions with the numbers of theirs."""

    log: Log
    transactions: TransactionCoordinator
    open: list[tuple[Transaction, list[int]]] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    begun: int = 0

    async def step(self, action: str, which: int, key: int) -> None:
        log, at = self.log, which % max(1, len(self.open))
        number = log.partition.ledger.next_index
        message = KEYS[key % len(KEYS)], b"%d" % number
        if action == "plain":
            await log.publish([message], KAFKA_FORMAT)
        elif action == "begin":
            self.begun += 1
            self.open.append((self.transactions.begin(f"test/{self.begun}", 3_600_000), []))
        elif action == "clean":
            await fill(log, FILLERS)
            await log.cleaner.clean_all()
            await self.check()
        elif self.open and action == "write":
            transaction, numbers = self.open[at]
            ledger = log.partition.ledger
            self.transactions.join(transaction, ledger)
            log.append([message], KAFKA_FORMAT)
            self.transactions.appended(transaction, ledger, 1)
            numbers.append(number)
            await log.store.synced()
        elif self.open:
            transaction, numbers = self.open.pop(at)
            self.aborted.update(numbers if action == "abort" else ())
            await self.transactions.decide(transaction, commit=action == "commit")

    async def check(self) -> None:
        """Compare what a reader gets with what was committed."""
        ledger = self.log.partition.ledger
        first_open = min((n for _, own in self.open for n in own), default=ledger.next_index)
        committed = {
            one.number: one
            for one in self.log.history.records
            if one.number < first_open and one.number not in self.aborted
        }
        newest = {one.key: one.number for one in committed.values()}
        found = [one.number for one in await self.log.read()]
        assert found == sorted(set(found))
        assert set(found) <= committed.keys()
        assert set(newest.values()) <= set(found)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(steps=STEPS)
def test_compaction_keeps_what_is_committed(steps: list[tuple[str, int, int]]) -> None:
    async def test(folder: str) -> None:
        async with opened(Path(folder), History(), EAGER) as log:
            transactions = TransactionCoordinator(log.topics, lambda *_: None)
            written = Written(log, transactions)
            for step in [("begin", 0, 0), *steps, ("clean", 0, 0)]:
                await written.step(*step)
            while written.open:
                await written.step("abort", 0, 0)
            for _ in range(2):
                await written.step("clean", 0, 0)
            await transactions.close()

    in_memory = IN_MEMORY if IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        run(test(folder))
