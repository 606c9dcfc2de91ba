"""Owns what there is in a store, in memory: topics, ledgers and subscriptions by their ids.

A ledger is idle, and some bytes, until its first use; then it and its subscriptions become objects,
which stay. Nothing of an idle ledger changes, since every change is a use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import attrgetter

from router.broker.storage import idle_ledgers
from router.broker.storage.context import StoreContext
from router.broker.storage.idle_ledgers import LedgerSummary
from router.broker.storage.loading import StoredLedger
from router.broker.storage.partition import Ledger
from router.broker.storage.producer_state import ProducerStates
from router.broker.storage.retention import RetentionLimits, limits_of, roll_age_ms
from router.broker.storage.rows import SubscriptionRecord, TopicRecord
from router.broker.storage.values import StoredValues
from router.model.policies import Policies


class StorageCatalog:
    """Topics by id, ledgers and their subscriptions by id, in use or idle.

    `unsaved` are the subscriptions whose cursors the metadata does not know as they are. Until
    `recovered` is called cursors are as they were stored, and may be ahead of their ledgers.
    """

    def __init__(self, context: StoreContext) -> None:
        self.topics: dict[int, TopicRecord] = {}
        # The topic's own, until Store.resolve hands in what adds those of its namespace.
        self.policies: Callable[[TopicRecord], Policies] = attrgetter("policies")
        self.unsaved: dict[SubscriptionRecord, None] = {}
        self.values = StoredValues()
        self._context = context
        self._options = context.options
        self._recovered = False
        self._expired_ms = 0
        self._ahead: list[int] = []
        self._idle: dict[int, bytes] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._subscriptions: dict[int, dict[int, SubscriptionRecord]] = {}

    def add_idle(self, stored: StoredLedger) -> None:
        """Take a ledger in, which nothing uses; raise ValueError if it cannot be understood."""
        self._idle[stored.id], ahead = idle_ledgers.pack(stored)
        if ahead:
            self._ahead.append(stored.id)

    def recovered(self) -> tuple[list[Ledger], list[SubscriptionRecord]]:
        """Fit cursors to their ledgers, from now on too.

        Returns the ledgers in use, and the subscriptions whose cursors changed.
        """
        for ledger_id in self._ahead:
            self.ledger(ledger_id)
        self._recovered = True
        ledgers = list(self._ledgers.values())
        return ledgers, [record for ledger in ledgers for record in self._fit(ledger)]

    @property
    def ids(self) -> Collection[int]:
        """The ids of all ledgers."""
        return self._idle.keys() | self._ledgers.keys()

    def used(self) -> Collection[Ledger]:
        """Return the ledgers in use."""
        return self._ledgers.values()

    def idle(self) -> list[int]:
        """Return the ids of the ledgers that are not in use."""
        return list(self._idle)

    def ledger(self, ledger_id: int) -> Ledger:
        """Return a ledger, in use from now on; raise KeyError if there is none."""
        found = self._ledgers.get(ledger_id)
        if found is None:
            found, records = self._build(self._idle[ledger_id], ledger_id)
            del self._idle[ledger_id]
            self._ledgers[ledger_id] = found
            self._subscriptions[ledger_id] = {record.id: record for record in records}
            if self._recovered:
                self._fit(found)
        return found

    def find(self, ledger_id: int) -> Ledger | None:
        """Return a ledger, in use from now on; None if there is none."""
        found = self._ledgers.get(ledger_id)
        return self.ledger(ledger_id) if found is None and ledger_id in self._idle else found

    def summary(self, ledger_id: int) -> LedgerSummary | None:
        """Return the figures of an idle ledger; None: it is in use, or there is none."""
        data = self._idle.get(ledger_id)
        return None if data is None else idle_ledgers.summary(data)

    def look(self, ledger_id: int) -> tuple[Ledger, Collection[SubscriptionRecord]]:
        """Return a ledger and its subscriptions to look at, not to be changed.

        They are copies if the ledger is idle, which it stays. Raises KeyError if there is none.
        """
        if (data := self._idle.get(ledger_id)) is not None:
            ledger, records = self._build(data, ledger_id)
            for record in records:
                fit(record, ledger)
            return ledger, records
        return self._ledgers[ledger_id], self.subscriptions(ledger_id)

    def group_names(self, ledger_id: int) -> list[str]:
        """Return the names of a ledger's subscriptions; an idle ledger stays idle."""
        if (data := self._idle.get(ledger_id)) is not None:
            return [row[1] for row in idle_ledgers.unpack(data).subscriptions]
        return [record.name for record in self._subscriptions.get(ledger_id, {}).values()]

    def discard(self, topic: TopicRecord) -> None:
        """Let a topic go that was deleted, with its ledgers and their subscriptions."""
        self.topics.pop(topic.id, None)
        for ledger_id in topic.ledger_ids:
            self._idle.pop(ledger_id, None)
            if (ledger := self._ledgers.pop(ledger_id, None)) is not None:
                ledger.discard()
            for record in self._subscriptions.pop(ledger_id, {}).values():
                self.unsaved.pop(record, None)

    def add(self, record: SubscriptionRecord) -> None:
        """Take a subscription in, unless its ledger is gone."""
        if self.find(record.ledger_id) is not None:
            self._subscriptions[record.ledger_id][record.id] = record

    def subscriptions(self, ledger_id: int) -> tuple[SubscriptionRecord, ...]:
        """Return the subscriptions of a ledger, in use from now on; none if there is none."""
        self.find(ledger_id)
        return tuple(self._subscriptions.get(ledger_id, {}).values())

    def subscription(self, ledger_id: int, number: int) -> SubscriptionRecord | None:
        """Return a subscription of a ledger, in use from now on; None if there is none."""
        self.find(ledger_id)
        return self._subscriptions.get(ledger_id, {}).get(number)

    def used_subscriptions(self) -> Iterable[SubscriptionRecord]:
        """Return the subscriptions of all ledgers in use."""
        for records in self._subscriptions.values():
            yield from records.values()

    def drop(self, record: SubscriptionRecord) -> None:
        """Let a subscription go; one that is gone is no error."""
        if self.find(record.ledger_id) is not None:
            gone = self._subscriptions[record.ledger_id].pop(record.id, None)
            if gone is not None:
                self.unsaved.pop(gone, None)

    def retention_limits(self, topic_id: int) -> RetentionLimits:
        """Return the bounds of what is kept of each ledger of a topic."""
        topic = self.topics.get(topic_id)
        return limits_of(Policies() if topic is None else self.policies(topic), self._options)

    def expire_producers(self, now_ms: int) -> None:
        """Forget the producers that stored nothing for so long that they are due."""
        self._expired_ms = now_ms
        for ledger in self._ledgers.values():
            ledger.producers.expire(now_ms)

    def roll_ms(self, ledger: Ledger) -> int:
        """Return the age at which the ledger's segments end, in milliseconds."""
        return roll_age_ms(self.retention_limits(ledger.topic_id))

    def _build(self, data: bytes, ledger_id: int) -> tuple[Ledger, list[SubscriptionRecord]]:
        stored = idle_ledgers.unpack(data)
        options = self._options
        producers = ProducerStates(options.dedup_window_ms, options.dedup_producers)
        ledger = Ledger(stored.row(), producers, self._context)
        producers.expire(self._expired_ms)
        return ledger, stored.records()

    def _fit(self, ledger: Ledger) -> list[SubscriptionRecord]:
        changed = [r for r in self._subscriptions[ledger.id].values() if fit(r, ledger)]
        self.unsaved.update(dict.fromkeys(changed))
        return changed


def fit(subscription: SubscriptionRecord, ledger: Ledger) -> bool:
    """Take acknowledgements of entries that do not exist from a cursor; return if there were any.

    The metadata may know more of a cursor than the journal had on disk, and in relaxed mode
    acknowledge entries that a power cut took: their ids are given out again.
    """
    clipped = subscription.cursor.clip(ledger.next_entry)
    return skip_holes(subscription, ledger) or clipped


def skip_holes(subscription: SubscriptionRecord, ledger: Ledger) -> bool:
    """Acknowledge entries that are gone; return whether that changed anything."""
    gone = [*((hole.first, hole.last) for hole in ledger.holes), *ledger.gaps()]
    skipped = [subscription.cursor.skip(first, last) for first, last in gone]
    return any(skipped)
