"""Owns what there is in a store, in memory: topics, ledgers and subscriptions by their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from router.broker.storage.options import StoreOptions
from router.broker.storage.partition import Ledger
from router.broker.storage.retention import RetentionLimits, limits_of, roll_age_ms
from router.broker.storage.rows import Rows, SubscriptionRecord, TopicRecord
from router.model import Policies


class Catalog:
    """Topics and ledgers by id, subscriptions by ledger and id."""

    def __init__(self, found: Rows, ledgers: dict[int, Ledger], options: StoreOptions) -> None:
        self.topics: dict[int, TopicRecord] = found.topics
        # Whose policies a topic has where it has none of its own is not known here.
        self.policies: Callable[[TopicRecord], Policies] = attrgetter("policies")
        self.ledgers = ledgers
        self._options = options
        self._subscriptions: dict[int, dict[int, SubscriptionRecord]] = {}
        for record in found.subscriptions.values():
            self.add(record)

    def add(self, record: SubscriptionRecord) -> None:
        """Take a subscription in."""
        self._subscriptions.setdefault(record.ledger_id, {})[record.id] = record

    def subscriptions(self, ledger_id: int) -> tuple[SubscriptionRecord, ...]:
        """Return the subscriptions of a ledger."""
        return tuple(self._subscriptions.get(ledger_id, {}).values())

    def all_subscriptions(self) -> Iterable[SubscriptionRecord]:
        """Return the subscriptions of all ledgers."""
        for records in self._subscriptions.values():
            yield from records.values()

    def pop_subscription(self, subscription_id: int) -> SubscriptionRecord | None:
        """Let a subscription go; None if it is gone."""
        for records in self._subscriptions.values():
            if subscription_id in records:
                return records.pop(subscription_id)
        return None

    def pop_subscriptions(self, ledger_id: int) -> Iterable[SubscriptionRecord]:
        """Let all subscriptions of a ledger go."""
        return self._subscriptions.pop(ledger_id, {}).values()

    def keep(self, ledger: Ledger) -> RetentionLimits:
        """Return what is kept of a ledger."""
        topic = self.topics.get(ledger.topic_id)
        return limits_of(Policies() if topic is None else self.policies(topic), self._options)

    def roll_ms(self, ledger: Ledger) -> int:
        """Return the age at which the ledger's segments end, in milliseconds."""
        return roll_age_ms(self.keep(ledger))
