"""Calls of administration about transactions: which are open, what one has, and its abort."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from router.broker.topics.topics import Topics
from router.broker.transactions.errors import TransactionError
from router.broker.transactions.producers import TransactionalProducers
from router.broker.transactions.transaction import Transaction
from router.errors import ConflictError, ValueNotFoundError
from router.errors.quoting import quoted

MAX_TRANSACTIONS: Final = 1_000
"""Of one answer."""
MAX_PARTS: Final = 1_000
"""Partitions, and positions of groups, of one answer."""
STATES: Final = {None: "open", True: "committing", False: "aborting"}


class TransactionCalls:
    """Each returns what JSON can hold.

    A transaction is named by its `id`, or by the transactional id of its producer. Calls that name
    one raise ValueNotFoundError if it is not open.
    """

    def __init__(self, topics: Topics, producers: TransactionalProducers) -> None:
        self._topics = topics
        self._producers = producers
        self._transactions = producers.transactions

    async def transactions(self) -> Mapping[str, Any]:
        """Return the open `transactions`, the oldest first, MAX_TRANSACTIONS at most.

        `count` is how many there are. `producer` is a transactional id, "": it has none; times are
        in seconds, `begun_ms` since 1970. `partitions` and `positions` are numbers.
        """
        found = self._transactions.open
        return {
            "count": len(found),
            "transactions": [self._shown(one) for one in islice(found, MAX_TRANSACTIONS)],
        }

    async def transaction(self, transaction: str) -> Mapping[str, Any]:
        """Return an open transaction as `transactions` does, and what it has.

        `joined` are partitions with `topic`, `partition` and `messages`, `commits` are positions
        with `group`, `topic`, `partition` and `number`; `acknowledged` are numbers of `entries`
        with `subscription`, `topic` and `partition`, and `through`, the last entry of a cumulative
        acknowledgement, None: there is none. MAX_PARTS of each at most.
        """
        found = self._find(transaction)
        joined = [
            {"topic": topic, "partition": partition, "messages": one.messages}
            for one in islice(found.partitions.values(), MAX_PARTS)
            if (place := self._place(one.ledger.id)) is not None
            for topic, partition in [place]
        ]
        commits = [
            {"group": key.name, "topic": topic, "partition": partition, "number": commit.number}
            for key, commit in islice(found.positions.items(), MAX_PARTS)
            if (place := self._place(key.ledger)) is not None
            for topic, partition in [place]
        ]
        acknowledged = [
            {
                "subscription": key.name,
                "topic": topic,
                "partition": partition,
                "entries": len(found.acks.get(key, ())),
                "through": None if through is None else through.entry,
            }
            for key in islice({**found.acks, **found.cumulative}, MAX_PARTS)
            if (place := self._place(key.ledger)) is not None
            for (topic, partition), through in [(place, found.cumulative.get(key))]
        ]
        parts = {"joined": joined, "commits": commits, "acknowledged": acknowledged}
        return {**self._shown(found), **parts}

    async def abort_transaction(self, transaction: str) -> Mapping[str, Any]:
        """Abort an open transaction, and fence its producer; on disk on return.

        Raises ConflictError if it is being decided, StoreError.
        """
        found = self._find(transaction)
        shown = self._shown(found)
        try:
            await self._transactions.expire(found)
        except TransactionError as error:
            raise ConflictError(f"{shown['id']}: {error}") from error
        return shown

    def _find(self, name: str) -> Transaction:
        found = self._transactions.find(name.replace(":", "/", 1))
        if found is None and (producer := self._producers.find(name)) is not None:
            found = self._producers.transaction(producer)
        if found is None:
            raise ValueNotFoundError(f"no transaction {quoted(name)} is open")
        return found

    def _shown(self, found: Transaction) -> dict[str, Any]:
        producer = self._producers.of(found)
        return {
            "id": found.key.replace("/", ":", 1),
            "dialect": found.key.partition("/")[0],
            "state": STATES[found.committed],
            "producer": "" if producer is None else producer.name,
            "user": found.owner if producer is None else producer.principal,
            "epoch": None if producer is None else producer.current.epoch,
            "begun_ms": found.begun_ms,
            "age": max(0, self._topics.now_ms() - found.begun_ms) / 1_000,
            "timeout": found.timeout_ms / 1_000,
            "partitions": len(found.partitions),
            "positions": len(found.positions),
        }

    def _place(self, ledger_id: int) -> tuple[str, int] | None:
        """Return the topic of a log and its number there; None: the topic was deleted."""
        store = self._topics.store
        try:
            record = store.topic(store.ledger(ledger_id).topic_id)
        except KeyError:
            return None
        return None if record is None else (record.name, record.ledger_ids.index(ledger_id))
